"""Safe reading of untrusted files.

check_file                 accepts only regular files: reading a pipe or device may never end
check_depth                limits the nesting of tables and lists, which recursive code walks through
read_json                  reads a JSON object of limited size
check_safetensors_header   checks the header of a safetensors file before the library reads it
file_inside                returns the path of a file in a folder, without path separators or links to the outside
check_links                refuses a folder with links to the outside
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
MAX_DEPTH = 64  # levels of nested tables and lists
NAME = re.compile(r"[\w.+-]{1,200}")


def check_file(path: Path) -> int:
    """Return the size of a regular file; raise UsageError for a folder, pipe or device, without opening it."""
    try:
        found = path.stat()
    except OSError as error:
        raise UsageError(f"{path} could not be read: {error.strerror}. Check the path and try again.") from error
    if not stat.S_ISREG(found.st_mode):
        kind = next((name for test, name in _KINDS if test(found.st_mode)), "not a regular file")
        raise UsageError(f"{path} is {kind}, but a regular file is needed. Write its content to a file first.")
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
    """Parse JSON; raise ValueError if it is not valid or nested too deeply."""
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep") from error
    if isinstance(value, (dict, list)):
        check_depth(value)
    return value


def read_json(path: Path, *, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Read a JSON object from a file of at most `max_bytes`."""
    values = read_any_json(path, max_bytes=max_bytes)
    if not isinstance(values, dict):
        raise DamagedError(f"{path} is not a JSON object.")
    return values


def read_any_json(path: Path, *, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """Read a JSON value of any type from a file of at most `max_bytes`."""
    size = check_file(path)
    if size > max_bytes:
        raise UsageError(f"{path} has {size:,} bytes; at most {max_bytes:,} are allowed.")
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DamagedError(f"{path} is not valid JSON: {str(error)[:200]}.") from error
    except OSError as error:
        raise UsageError(f"{path} could not be read: {error.strerror}. Check the path and try again.") from error


def check_safetensors_header(path: Path) -> None:
    """Raise unless the header length, the first 8 bytes of a safetensors file, fits the file and the limit."""
    size = check_file(path)
    try:
        with path.open("rb") as stream:
            first = stream.read(8)
    except OSError as error:
        raise UsageError(f"{path} could not be read: {error.strerror}. Check the path and try again.") from error
    length = struct.unpack("<Q", first)[0] if len(first) == 8 else None
    if length is None or length > size - 8:
        raise DamagedError(f"{path} is not valid safetensors: it ends within its header. Is the download complete?")
    if length > MAX_HEADER_BYTES:
        raise DamagedError(f"{path} has a header of {length:,} bytes; at most {MAX_HEADER_BYTES:,} are allowed.")


def file_inside(folder: Path, name: Any) -> Path:
    """Return the path of a file in this folder; raise UsageError if the name or a link points elsewhere."""
    if not isinstance(name, str) or not NAME.fullmatch(name) or name in (".", ".."):
        raise UsageError(f"{folder} refers to the file {str(name)[:80]!r}, which is not a plain file name.")
    if is_outside_link(folder / name):
        raise UsageError(f"{folder / name} is a link that leads out of its folder. Put the file itself there.")
    return folder / name


def check_links(folder: Path) -> None:
    """Raise UsageError if a file in this folder is a link to a place outside it."""
    for path in folder.iterdir():
        if path.is_symlink() and is_outside_link(path):
            raise UsageError(f"{path} is a link that leads out of its folder. Put the file itself there.")


def is_outside_link(path: Path) -> bool:
    """Return True if a path is a link to a place outside its folder, or to itself."""
    try:
        return not path.resolve().is_relative_to(_allowed_root(path.parent))
    except (OSError, RuntimeError):  # a link to itself
        return True


def _allowed_root(folder: Path) -> Path:
    """Return the folder that links may point into: the folder itself, or its model in the Hugging Face cache."""
    folder = folder.resolve()
    for part in (folder, folder.parent):  # a snapshot in the cache, or a folder in it
        if part.parent.name == "snapshots" and (part.parent.parent / "blobs").is_dir():
            return part.parent.parent
    return folder
