"""The group of all commands: it chooses the language, translates help and wrong use, and reports Ctrl-C.

Typer writes help and wrong use in English. In Japanese, a command translates its help texts when typer asks for its
usage line, with which help begins; and typer's own titles are replaced while the command line runs.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from typer.core import TyperGroup

from chumoku import messages
from chumoku.cli.shared import KNOWN, OR_MODEL
from chumoku.cli.wrap_japanese import break_between_characters
from chumoku.errors import ChumokuError

TITLES = (  # texts of typer.rich_utils
    "DEFAULT_STRING",
    "ENVVAR_STRING",
    "REQUIRED_LONG_STRING",
    "ARGUMENTS_PANEL_TITLE",
    "OPTIONS_PANEL_TITLE",
    "COMMANDS_PANEL_TITLE",
    "ERRORS_PANEL_TITLE",
    "ABORTED_TEXT",
    "RICH_HELP",
)


class StoppedError(ChumokuError):
    """Ctrl-C stopped a command."""

    exit_code = 130


class Group(TyperGroup):
    """All commands, in the language of the environment."""

    def main(self, *args: Any, **options: Any) -> Any:
        messages.use_language(messages.language())
        with ExitStack() as self.restore:
            if messages.language() == "ja":
                self.restore.enter_context(break_between_characters())
                for command in _all_commands(self):  # typer makes them of its own classes, so each gets an attribute
                    command.get_usage = functools.partial(self.usage, command, command.get_usage)
            return super().main(*args, **options)

    def make_context(self, *args: Any, **options: Any) -> Any:
        try:
            return super().make_context(*args, **options)
        except Exception as error:
            self.translate_error(error)
            raise

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise StoppedError("Stopped.") from None
        except Exception as error:
            self.translate_error(error)
            raise

    def translate_error(self, error: Any) -> None:
        """Translate wrong use that typer found and prints; other errors are translated where they are printed."""
        if hasattr(error, "format_message") and messages.language() == "ja":
            self.translate_titles()
            error.format_message = functools.partial(_translate_result, error.format_message)

    def usage(self, command: Any, get_usage: Any, context: Any) -> str:
        """The usage line in Japanese, after the help of the command and of its options is translated."""
        self.translate_titles()
        for one in (command, *getattr(command, "commands", {}).values()):
            one.help, one.short_help = translate_help(one.help), translate_help(one.short_help)
        for parameter in command.get_params(context):
            _translate_parameter(parameter)
        usage: str = get_usage(context)
        return usage.replace("Usage:", messages.heading("Usage:"), 1)

    def translate_titles(self) -> None:
        from typer import rich_utils

        for name in TITLES:
            title = getattr(rich_utils, name, "")
            if messages.heading(title) != title:
                self.restore.callback(setattr, rich_utils, name, title)
                setattr(rich_utils, name, messages.heading(title))


def _all_commands(command: Any) -> Iterator[Any]:
    yield command
    for one in getattr(command, "commands", {}).values():
        yield from _all_commands(one)


def _translate_result(function: Any) -> str:
    return messages.translate(function())


def _translate_parameter(parameter: Any) -> None:
    parameter.help = translate_help(getattr(parameter, "help", None))
    if isinstance(getattr(parameter, "show_default", None), str):
        parameter.show_default = translate_help(parameter.show_default)
    if getattr(parameter, "rich_help_panel", None) is not None:
        parameter.rich_help_panel = messages.heading(parameter.rich_help_panel)


def translate_help(text: str | None) -> str | None:
    """A help text in Japanese, paragraph by paragraph."""
    if not text:
        return text
    paragraphs = []
    for part in text.split("\n\n"):
        if part.endswith(f" {OR_MODEL}"):
            paragraphs.append(part.replace(OR_MODEL, messages.from_table(OR_MODEL, "commands")))
        elif part in messages.read_table(messages.HEADINGS):
            paragraphs.append(messages.heading(part))
        else:
            found = messages.from_table(part.replace(KNOWN, "{model}"), "commands")
            paragraphs.append(found.replace("{model}", messages.from_table(KNOWN, "commands")))
    return "\n\n".join(paragraphs)
