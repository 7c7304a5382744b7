"""ES modules as one inline script: a page that is opened from disk cannot load modules by their address.

    import { a, b as c } from "./x.js";     →   const { a, b: c } = module_0;
    export const d = 1;                     →   const d = 1;  …  return { d };
    export { a, b as c } from "./x.js";     →   return { a: module_0.a, c: module_0.b };

Each module becomes a function that returns its exports and is called once, after the modules that it imports. Every
other form of import and export is refused, and so are import cycles.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable

from chumoku.errors import ChumokuError

FROM = r' \{([^{}]*)\} from "(\.[^"\n]*)";$'
IMPORT, REEXPORT = (re.compile(rf"^{word}{FROM}", re.M) for word in ("import", "export"))
EXPORT = re.compile(r"^export (?=(?:const|class|(?:async )?function\*?) (\w+)\b)", re.M)
UNSUPPORTED = re.compile(r"^\s*(?:import|export)\b.*|\bimport\s*[(.].*|</script.*|<!--.*", re.M | re.I)


def inline_modules(entry: str, read: Callable[[str], str]) -> str:
    """One script that does what the module `entry` does; `read` returns the source of a module by its path."""
    numbers: dict[str, int] = {}
    scripts: list[str] = []

    def add(path: str, importers: tuple[str, ...]) -> str:
        """Add a module after the modules that it imports; return the name of its exports."""
        if path in importers:
            raise ChumokuError(f"The modules {' → '.join((*importers, path))} import each other.")
        if path not in numbers:
            script = translate(path, (*importers, path))
            numbers[path] = len(scripts)
            scripts.append(f"// {path}\nconst module_{numbers[path]} = (() => {{\n{script}}})();\n")
        return f"module_{numbers[path]}"

    def translate(path: str, importers: tuple[str, ...]) -> str:
        source, exports = read(path), []

        def imported(target: str) -> str:
            return add(posixpath.normpath(posixpath.join(posixpath.dirname(path), target)), importers)

        for names, target in REEXPORT.findall(source):
            exports += [f"{new}: {imported(target)}.{old}" for old, new in _parse_names(names)]
        exports += EXPORT.findall(source)
        source = EXPORT.sub("", REEXPORT.sub("", source))
        source = IMPORT.sub(lambda found: f"const {_destructure(found[1])} = {imported(found[2])};", source)
        if found := UNSUPPORTED.search(source):
            raise ChumokuError(f"{path}: this form cannot be part of an inline script: {found[0].strip()}")
        return f"{source}return {{ {', '.join(exports)} }};\n"

    add(entry, ())
    return "".join(scripts)


def _parse_names(names: str) -> list[tuple[str, str]]:
    """The names in the braces of an import or export: (name in the other module, name here)."""
    parts = [part.split() for part in names.split(",") if part.strip()]
    return [(part[0], part[-1]) for part in parts]


def _destructure(names: str) -> str:
    pairs = (old if old == new else f"{old}: {new}" for old, new in _parse_names(names))
    return f"{{ {', '.join(pairs)} }}"
