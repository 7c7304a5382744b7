"""The HTML of a model's page: one file with all scripts, styles and numbers, that makes no request.

    head    character set, content security policy, viewport, icon
    body    a message that stays unless the script removes it · styles · digest · contents · certificate · scripts ·
            the worker's script · chunks of the payload · a mark of the end

Every element is a `Part`, whose `data-part` is its name. The digest is the SHA-256 sum of all parts (`describe`), which
in_page/integrity.js computes again from the document before anything is shown; the payload has sums of its own. What is
not needed is left out: there is nothing between the parts, html, head and body have no tags, and no element before the
message has text, which damage could make longer. So a changed byte leads to another document, which is refused, or to
exactly the same one (a capital letter in the name of a tag).
"""

from __future__ import annotations

import hashlib
import html
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Any

from chumoku.probe.csp import csp_hash
from chumoku.probe.inline_modules import inline_modules
from chumoku.web.payload import Payload

VIEW_STYLES = (
    *(f"views/{name}/{name}.css" for name in ("chat", "look", "playground", "translate")),
    "in_page/about/about.css",
)
ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Ccircle cx='8' cy='8' r='6' "
    "fill='none' stroke='%231f5fa8' stroke-width='2'/%3E%3Ccircle cx='8' cy='8' r='2.4' fill='%231f5fa8'/%3E%3C/svg%3E"
)
MESSAGES = {
    "en": "This page is opening. If this message stays, the file is damaged or incomplete, or the browser is too old "
    "or runs no JavaScript. Get the file again, or open it in a current browser.",
    "ja": "ページを開いています。この表示が消えない場合は、ファイルが壊れているか途中で切れている、ブラウザが古い、"
    "または JavaScript が無効になっている可能性があります。ファイルを入手し直すか、新しいブラウザで開いてください。",
}
COMMENT_LINES = re.compile(r"^[ \t]*(?://.*|/\*\*.*\*/)\n", re.MULTILINE)  # a tenth of the scripts
VOID = ("meta", "link")
WITHOUT_TEXT = ("digest", "chunk")  # the digest is the sum itself, and chunks have their own


@dataclass(frozen=True)
class Part:
    """One element of the page. parent: the element that the browser puts it into, head or body."""

    name: str
    tag: str
    text: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict)
    parent: str = "body"

    @property
    def all_attributes(self) -> dict[str, str]:
        return {"data-part": self.name, **self.attributes}

    def render(self) -> str:
        """The element as HTML. Scripts and styles are written as they are, and must not end their element."""
        attributes = "".join(f' {name}="{escape(value)}"' for name, value in self.all_attributes.items())
        if self.tag in VOID:
            return f"<{self.tag}{attributes}>"
        text = self.text if self.tag in ("script", "style") else escape(self.text)
        return f"<{self.tag}{attributes}>{text}</{self.tag}>"

    def describe(self) -> str:
        """The element as integrity.js sees it."""
        text = "" if self.name in WITHOUT_TEXT else self.text
        return compact_json([self.parent, self.tag, sorted(self.all_attributes.items()), text])


def escape(text: str) -> str:
    return html.escape(text, quote=False).replace('"', "&quot;")


def render_page(payload: Payload, *, name: str, precision: str, certificate: Mapping[str, Any] | None = None) -> str:
    """The page of a model.

    payload       with the file "model", a container
    name          the model's name
    precision     of its weights
    certificate   what was found when the page was compared with Python in a browser; None if it was not
    """
    (size,) = (part["size"] for part in payload.parts if part["name"] == "model")
    contents = {"name": name, "precision": precision, "bytes": size, "parts": payload.parts}
    contents["chars"] = sum(map(len, payload.chunks))
    scripts = [Part("early", "script", read("core/early.js")), Part("main", "script", inline_script("in_page/main.js"))]
    styles = [Part("style", "style", read("core/base.css") + read("in_page/page.css"))]
    styles += [Part("view-style", "style", read(sheet), {"data-name": sheet}) for sheet in VIEW_STYLES]
    inert = {"type": "text/plain"}
    parts = [
        *head_parts(policy(scripts, styles)),
        *(Part("opening", "p", text, {"lang": language}) for language, text in MESSAGES.items()),
        *styles,
        Part("digest", "script", attributes=inert),
        Part("contents", "script", inert_json(contents), {"type": "application/json"}),
        Part("certificate", "script", inert_json(certificate), {"type": "application/json"}),
        *scripts,
        Part("worker", "script", inline_script("in_page/worker.js"), inert),
        *(Part("chunk", "script", chunk, inert) for chunk in payload.chunks),
        Part("end", "meta", attributes={"name": "end", "content": "end"}),
    ]
    return render_document(parts)


def render_document(parts: Iterable[Part]) -> str:
    """The whole document, with the sum of its parts in the part "digest"."""
    parts = list(parts)
    digest = hashlib.sha256("".join(f"{part.describe()}\n" for part in parts).encode()).hexdigest()
    whole = (replace(part, text=digest) if part.name == "digest" else part for part in parts)
    return "<!doctype html>" + "".join(part.render() for part in whole)


def head_parts(content_policy: str) -> list[Part]:
    given = {
        "charset": {"charset": "utf-8"},
        "policy": {"http-equiv": "Content-Security-Policy", "content": content_policy},
        "viewport": {"name": "viewport", "content": "width=device-width, initial-scale=1"},
        "color-scheme": {"name": "color-scheme", "content": "light dark"},
        "referrer": {"name": "referrer", "content": "no-referrer"},
    }
    metas = [Part(name, "meta", attributes=attributes, parent="head") for name, attributes in given.items()]
    return [*metas, Part("icon", "link", attributes={"rel": "icon", "href": ICON}, parent="head")]


def policy(scripts: Iterable[Part], styles: Iterable[Part]) -> str:
    """The content security policy: these scripts and styles, WebAssembly, workers of the page, and no connection."""
    allowed = {
        "default-src": "'none'",
        "script-src": " ".join((*(f"'{csp_hash(part.text)}'" for part in scripts), "'wasm-unsafe-eval'")),
        "style-src": " ".join(f"'{csp_hash(part.text)}'" for part in styles),
        "worker-src": "blob:",
        "img-src": "data:",
        **dict.fromkeys(("connect-src", "form-action", "base-uri"), "'none'"),
    }
    return "; ".join(f"{name} {sources}" for name, sources in allowed.items())


def read(name: str) -> str:
    """A file of the viewer."""
    return (files("chumoku") / "viewer" / name).read_text(encoding="utf-8")


def inline_script(entry: str, read: Callable[[str], str] = read) -> str:
    """A module with all that it imports, as a classic script without global names and comment lines.

    read    returns the source of a module by its path; by default a file of the viewer
    """
    return f'"use strict";\n(() => {{\n{COMMENT_LINES.sub("", inline_modules(entry, read))}}})();\n'


def inert_json(value: Any) -> str:
    """JSON that cannot end its script element."""
    return compact_json(value).replace("<", "\\u003c")


def compact_json(value: Any) -> str:
    """The text that JavaScript's JSON.stringify makes of the same value."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
