"""ES modules as one inline script."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import pytest
from browser import monitored_page

from chumoku.errors import ChumokuError
from chumoku.probe.inline_modules import inline_modules

MODULES = {
    "views/main.js": 'import {\n  add,\n  NAME as other,\n} from "../core/math.js";\n'
    'import { Box, late } from "./box.js";\nconst NAME = "main";\n'
    "window.result = [NAME, other, add(2, 3), new Box().value, late()];\n",
    "views/box.js": 'export { add as late } from "../core/names.js";\nimport { add } from "../core/math.js";\n'
    "const NAME = 7;\nexport class Box {\n  value = add(NAME, 11);\n}\n",
    "core/math.js": 'export const NAME = "math";\nexport function add(a, b) {\n  return a + b;\n}\n'
    "window.loads = (window.loads ?? 0) + 1;\nexport async function* unused() {}\n",
    "core/names.js": "export const add = () => NAME;\nexport const hidden = 1;\nconst NAME = 13;\n",
}


def test_modules_keep_their_names_apart_and_run_once(browser: Any) -> None:
    script = inline_modules("views/main.js", MODULES.__getitem__)
    with monitored_page(browser) as (page, log):
        page.set_content(f'<script type="module">{script}</script>')
        assert page.evaluate("window.result") == ["main", "math", 5, 18, 13]
        assert page.evaluate("window.loads") == 1
        assert log.messages == []


@pytest.mark.parametrize(
    "source",
    [
        'import all from "./a.js";',
        'import * as all from "./a.js";',
        'import "./a.js";',
        "import { a } from 'quotes.js';",
        'import { a } from "package";',
        "export default 1;",
        "export let changing = 1;",
        "export const { a, b } = {};",
        'export * from "./a.js";',
        "const a = 1;\nexport { a };",
        'const a = await import("./a.js");',
        "const a = import.meta.url;",
        'const text = "</script>";',
        'const text = "<!--";',
    ],
)
def test_other_forms_are_refused(source: str) -> None:
    with pytest.raises(ChumokuError, match="cannot be part of an inline script"):
        inline_modules("main.js", {"main.js": f"{source}\n", "a.js": "export const a = 1;\n"}.__getitem__)


def test_cycles_are_refused() -> None:
    modules = {"a.js": 'import { b } from "./b.js";\n', "b.js": 'import { a } from "./a.js";\n'}
    with pytest.raises(ChumokuError, match=r"a\.js → b\.js → a\.js import each other"):
        inline_modules("a.js", modules.__getitem__)


@pytest.mark.parametrize("view", ["chat", "lab", "look", "playground", "runs", "translate"])
def test_every_view_can_be_inlined(view: str) -> None:
    folder = files("chumoku") / "viewer"
    script = inline_modules(f"views/{view}/{view}.js", lambda name: (folder / name).read_text(encoding="utf-8"))
    assert script.count("\nconst module_") > 1
