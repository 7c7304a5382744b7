"""Files of strangers: bounded, checked, and never followed out of their folder.

check_file       a regular file: reading a pipe or a device may never end
check_depth      values that are not nested too deeply for whoever walks through them
read_json        a table of values, of so many bytes at most, and nothing but JSON
check_safetensors_header     the head of a safetensors file, before the library is asked to read it
inside           a file of this very folder, by its plain name
check_links      no link leads out of a folder
"""

from __future__ import annotations

import json
import re
import stat
import struct
from pathlib import Path
from typing import Any

from chumoku.errors import DamagedError, UsageError

MAX_HEADER_BYTES = 1 << 24
MAX_JSON_BYTES = 1 << 24
MAX_DEPTH = 64  # levels of tables and lists within each other
NAME = re.compile(r"[\w.+-]{1,200}")


def check_file(path: Path) -> int:
    """The size of a regular file; a folder, a pipe, a device, or a link to one, is refused before it is opened."""
    try:
        found = path.stat()
    except OSError as error:
        raise UsageError(f"{path} could not be read: {error.strerror}. Check the path and try again.") from error
    if not stat.S_ISREG(found.st_mode):
        kind = next((name for test, name in _KINDS if test(found.st_mode)), "not a regular file")
        raise UsageError(f"{path} is {kind}, and a regular file is needed. Write its content to a file first.")
    return found.st_size


_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


def check_depth(value: Any, max_depth: int = MAX_DEPTH) -> None:
    """Raise ValueError for tables and lists nested more than `max_depth` levels; the check itself does not recurse."""
    level = [value]
    for _ in range(max_depth + 1):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return
    raise ValueError(f"it is nested more than {max_depth} levels deep")


def parse_json(text: str | bytes) -> Any:
    """JSON of a bounded depth; anything else is a ValueError."""
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep") from error
    if isinstance(value, (dict, list)):
        check_depth(value)
    return value


def read_json(path: Path, *, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    values = read_any_json(path, max_bytes=max_bytes)
    if not isinstance(values, dict):
        raise DamagedError(f"{path} holds no table of values.")
    return values


def read_any_json(path: Path, *, max_bytes: int = MAX_JSON_BYTES) -> Any:
    size = check_file(path)
    if size > max_bytes:
        raise UsageError(f"{path} has {size:,} bytes, and {max_bytes:,} are the most that is read.")
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DamagedError(f"{path} does not read as JSON: {str(error)[:200]}.") from error
    except OSError as error:
        raise UsageError(f"{path} could not be read: {error.strerror}. Check the path and try again.") from error


def check_safetensors_header(path: Path) -> None:
    """A header is a length and so many bytes of JSON; the length is looked at first."""
    size = check_file(path)
    try:
        with path.open("rb") as stream:
            first = stream.read(8)
    except OSError as error:
        raise UsageError(f"{path} could not be read: {error.strerror}. Check the path and try again.") from error
    length = struct.unpack("<Q", first)[0] if len(first) == 8 else None
    if length is None or length > size - 8:
        raise DamagedError(f"{path} does not read as safetensors: it ends within its header. Is the download whole?")
    if length > MAX_HEADER_BYTES:
        raise DamagedError(f"{path} has a header of {length:,} bytes; {MAX_HEADER_BYTES:,} are the most that is read.")


def file_inside(folder: Path, name: Any) -> Path:
    """A file of this folder by its plain name; names and links that lead elsewhere are refused."""
    if not isinstance(name, str) or not NAME.fullmatch(name) or name in (".", ".."):
        raise UsageError(f"{folder} names the file {str(name)[:80]!r}, which is no plain name of a file in it.")
    if is_outside_link(folder / name):
        raise UsageError(f"{folder / name} is a link that leads out of its folder. Put the file itself there.")
    return folder / name


def check_links(folder: Path) -> None:
    """Refuse a folder from which a link leads out, whoever would follow it."""
    for path in folder.iterdir():
        if path.is_symlink() and is_outside_link(path):
            raise UsageError(f"{path} is a link that leads out of its folder. Put the file itself there.")


def is_outside_link(path: Path) -> bool:
    try:
        return not path.resolve().is_relative_to(_root(path.parent))
    except (OSError, RuntimeError):  # a link to itself
        return True


def _root(folder: Path) -> Path:
    """Where a folder's files may lie: in it, or, in the hub's cache, beside it."""
    folder = folder.resolve()
    for part in (folder, folder.parent):  # a model's folder there, or one within it
        if part.parent.name == "snapshots" and (part.parent.parent / "blobs").is_dir():
            return part.parent.parent
    return folder
