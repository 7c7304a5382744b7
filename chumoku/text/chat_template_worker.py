"""The child process of `chat_template_process`: it renders chat templates with jinja2, within limits.

    a line of JSON {"template": …, "variables": …, "limit": …}  →  a line of JSON {"spans": [[text, own], …]}

A template is untrusted code. It runs in jinja2's sandbox, in a process that can open no files, that the system kills
after CPU_SECONDS of processor time per template, and that gets no more than MEMORY_BYTES of memory.

Only text that the template itself contains may become control tokens. `TemplateText` records for each character if it
is such text: `own`. Everything else (messages, results of functions) is an ordinary str, which is never own. A method
that TemplateText does not define returns an ordinary str, so what is not recorded counts as typed by a user.

This file is run as a script and imports nothing of this package, so that the process starts fast and stays small.
"""

from __future__ import annotations

import json
import re
import resource
import signal
import sys
from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, SupportsIndex

import jinja2
import jinja2.debug  # jinja2 imports it with the first error, when no file can be opened any more
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

CPU_SECONDS = 0.4
MEMORY_BYTES = 128 << 20
OWN, JOIN = "template text", "concatenate"  # filters with names that no template can write


class TemplateText(str):
    """A text that records which of its characters the template itself contains."""

    __slots__ = ("_own",)
    _own: bytes  # 1 for each such character, 0 for others

    def __new__(cls, text: str, own: bytes | None = None) -> TemplateText:
        new = super().__new__(cls, text)
        new._own = bytes(len(new)) if own is None else own
        return new

    def __str__(self) -> str:
        return self

    def __add__(self, other: str) -> TemplateText:
        return concatenate((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> TemplateText:
        return concatenate((other, self)) if isinstance(other, str) else NotImplemented

    def __mod__(self, values: Any) -> str:
        """Only %s keeps the record."""
        parts = self.split("%s")
        given = values if isinstance(values, tuple) else (values,)
        if any("%" in part for part in parts) or len(parts) != len(given) + 1:
            return super().__mod__(values)
        return concatenate([parts[0], *(one for pair in zip(map(str, given), parts[1:], strict=True) for one in pair)])

    def __getitem__(self, place: SupportsIndex | slice) -> TemplateText:
        text = super().__getitem__(place)
        own = self._own[place] if isinstance(place, slice) else bytes([self._own[place]])
        return TemplateText(text, own)

    def strip(self, chars: str | None = None) -> TemplateText:
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None) -> TemplateText:
        return self[len(self) - len(super().lstrip(chars)) :]

    def rstrip(self, chars: str | None = None) -> TemplateText:
        return self[: len(super().rstrip(chars))]

    def upper(self) -> str:
        return self._same_length(super().upper())

    def lower(self) -> str:
        return self._same_length(super().lower())

    def capitalize(self) -> str:
        return self._same_length(super().capitalize())

    def _same_length(self, text: str) -> str:
        """A text made character by character; changes of case never make one shorter."""
        return TemplateText(text, self._own) if len(text) == len(self) else text

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        parts, start = super().split(sep, maxsplit), 0
        if sep is None:
            return parts
        found: list[str] = []
        for part in parts:
            found.append(self[start : start + len(part)])
            start += len(part) + len(sep)
        return found

    def replace(self, old: str, new: str, count: SupportsIndex = -1) -> str:
        if not old:
            return super().replace(old, new, count)
        return TemplateText(new, own_of(new)).join(self.split(old, count))

    def join(self, parts: Iterable[str]) -> TemplateText:
        found = list(parts)
        return concatenate([one for part in found for one in (self, part)][1:])


def own_of(text: str) -> bytes:
    return text._own if isinstance(text, TemplateText) else bytes(len(text))


def concatenate(parts: Iterable[Any]) -> TemplateText:
    texts = list(map(str, parts))
    return TemplateText("".join(texts), b"".join(map(own_of, texts)))


@jinja2.pass_context  # not evaluated when the template is compiled, where the record would be lost
def template_text(context: Context | None, text: str) -> TemplateText:
    return TemplateText(text, b"\1" * len(text))


@jinja2.pass_context
def join_values(context: Context, values: Iterable[Any]) -> TemplateText:
    return concatenate(values)


class MarkTemplateText(NodeTransformer):
    """Passes every string of a template through the filter OWN, and replaces the operator ~ by the filter JOIN."""

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Filter:
        return _filter(nodes.Const(node.data), OWN, node)

    def visit_Const(self, node: nodes.Const) -> nodes.Expr:
        return _filter(node, OWN, node) if isinstance(node.value, str) else node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        return _filter(nodes.Tuple(node.nodes, "load"), JOIN, node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Getitem:
        node.node = self.visit(node.node)
        if not isinstance(node.arg, nodes.Const):  # the key itself is never shown
            node.arg = self.visit(node.arg)
        return node


def _filter(node: nodes.Expr, name: str, source: nodes.Node) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=source.lineno)


class GenerationBlock(jinja2.ext.Extension):
    """{% generation %} … {% endgeneration %} marks replies for training; here its content is only shown."""

    tags = {"generation"}  # noqa: RUF012 - the base class has no annotation

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


class SafeNamespace(Namespace):
    """namespace() without names that start with _, which would reach Python's internals."""

    def __init__(*args: Any, **values: Any) -> None:
        for name in (found := dict(*args[1:], **values)):
            _check_name(name)
        Namespace.__init__(args[0], found)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if str(name).startswith("_"):
        raise jinja2.TemplateError(f"a namespace has no name '{name}'")


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """jinja2 as transformers sets it up for chat templates. There is no loader, so a template cannot open another."""

    concat = staticmethod(concatenate)

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, "jinja2.ext.loopcontrols"])
        self.filters |= {OWN: template_text, JOIN: join_values, "tojson": to_json, "join": self._join}
        self.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now, "namespace": SafeNamespace}
        self.globals["dict"] = lambda *values, **more: dict(*values, **more)
        del self.globals["lipsum"]

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return MarkTemplateText().visit(super()._parse(source, name, filename))  # type: ignore[no-any-return]

    @staticmethod
    @jinja2.pass_environment
    def _join(environment: jinja2.Environment, values: Iterable[Any], d: str = "", attribute: Any = None) -> str:
        if attribute is not None:
            values = map(jinja2.filters.make_attrgetter(environment, attribute), values)
        return TemplateText(d, own_of(d)).join(map(str, values))


def raise_exception(message: str) -> None:
    raise jinja2.TemplateError(f"it says: {message}")


def strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@lru_cache(8)
def compile_template(source: str) -> jinja2.Template:
    return TemplateEnvironment().from_string(source)


def render(template: str, variables: dict[str, Any], own: dict[str, Any], limit: int) -> list[tuple[str, bool]]:
    """The rendered text as spans: (text, whether the template itself contains it).

    own     variables that count as text of the template: the names of special tokens, and `roles`, those of messages
    limit   most characters
    """
    roles = set(own.pop("roles", ()))
    names = {name: template_text(None, text) for name, text in own.items()}
    for message in variables["messages"]:
        if message["role"] in roles:
            message["role"] = template_text(None, message["role"])
    parts, length = [], 0
    for part in compile_template(template).generate(**variables, **names):
        parts.append(part)
        length += len(part)
        if length > limit:
            raise jinja2.TemplateError(f"it writes more than {limit:,} characters")
    text = concatenate(parts)
    runs = re.finditer(rb"\x00+|\x01+", text._own)
    return [(str.__getitem__(text, slice(*run.span())), run[0][:1] == b"\1") for run in runs]


def answer(line: bytes) -> dict[str, Any]:
    try:
        return {"spans": render(**json.loads(line))}
    except MemoryError:
        problem = f"it needs more than {MEMORY_BYTES >> 20} MB of memory"
    except RecursionError:
        problem = "it is nested too deeply"
    except jinja2.TemplateSyntaxError as error:
        problem = f"line {error.lineno}: {error.message}"
    except Exception as error:
        problem = str(error) or type(error).__name__
    return {"error": problem[:300]}


def limit_process() -> None:
    """Give up what a template does not need: files, and more memory than a prompt takes."""
    size = Path("/proc/self/statm")
    if size.exists():  # not on macOS, which does not limit memory
        used = int(size.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))


def main() -> None:
    """Answer lines of standard input until it ends. The timer has no handler, so the system kills this process."""
    warm_up = {"messages": [{"role": "user"}]}
    render("{{ strftime_now('%Y') }}{{ messages | tojson }}", warm_up, {}, 999)  # imports what it needs
    limit_process()
    while line := sys.stdin.buffer.readline():
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        result = json.dumps(answer(line)).encode()
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(result + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
