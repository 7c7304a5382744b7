"""A prepared folder: data files, and a manifest written last that says what they were made of.

When nothing it was made of has changed, preparing again does nothing. While a folder `shards` is being prepared, its
files are in `shards.incomplete` beside it. A process that was killed leaves that folder behind; the next one that
prepares the same folder removes it. A lock in it shows whether its process still lives.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chumoku.errors import ChumokuError, CorpusError, UsageError
from chumoku.partial_output import incomplete, remove_leftovers
from chumoku.safe_files import read_any_json

FILE_NAME = "manifest.json"
VERSION = 1
MAX_BYTES = 1 << 28
# The names of all files that preparing writes: a folder of such files with a torn manifest is ours.
OUR_FILES = re.compile(
    r"manifest\.json|tokenizer\.json|(shard-\d{5}|(train|validation)-(source|target))\.(tokens|ends)"
)


class UnreadableManifestError(CorpusError):
    """A manifest that is damaged or half written: its folder counts as not prepared."""


def read_manifest(folder: Path) -> dict[str, Any]:
    """What a prepared folder was made of, and its files."""
    path = folder / FILE_NAME
    if not path.exists():
        raise CorpusError(f"{folder} holds no prepared corpus: {FILE_NAME} is missing. Prepare it first.")
    try:
        manifest = read_any_json(path, largest=MAX_BYTES)
    except UsageError as error:
        raise CorpusError(f"{error} Prepare the corpus again.") from error
    except ChumokuError as error:
        raise UnreadableManifestError(f"{error} Prepare the corpus again.") from error
    values = manifest if isinstance(manifest, dict) else {}
    if values.get("version") != VERSION or "made_of" not in values or not isinstance(values.get("files"), dict):
        raise CorpusError(f"{path} is not a manifest of this version ({VERSION}). Prepare the corpus again.")
    return values


def is_up_to_date(folder: Path, inputs: dict[str, Any]) -> bool:
    """Whether the folder was already made of exactly this, and its files are all there, of their sizes."""
    try:
        manifest = read_manifest(folder)
        sizes = {name: (folder / name).stat().st_size for name in manifest["files"]}
    except (CorpusError, OSError):
        return False
    return bool(manifest["made_of"] == json.loads(json.dumps(inputs)) and sizes == manifest["files"])


@contextlib.contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """A working folder that takes the place of `folder` when the work is done, and is removed when it fails."""
    folder = folder.resolve()
    check_replaceable(folder)
    with incomplete(folder, doing="is preparing the same folder") as place:
        remove_leftovers(place)
        working, replaced = place / "new", place / "old"
        working.mkdir()
        yield working
        if folder.exists():
            folder.replace(replaced)
        working.replace(folder)


def check_replaceable(folder: Path) -> None:
    """Refuse, before any work, a folder that holds anything we did not put there."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise CorpusError(f"{folder} is a file, and a folder is to be made there. Choose another place.")
    present = {file.name for file in folder.iterdir()}
    try:
        ours = {FILE_NAME, *read_manifest(folder)["files"]} if present else set()
    except UnreadableManifestError:
        ours = {name for name in present if OUR_FILES.fullmatch(name)}
    except CorpusError:
        ours = set()
    if present - ours:
        raise CorpusError(
            f"{folder} exists and is no prepared corpus: it holds {min(present - ours)}. Choose another folder; "
            "nothing was touched."
        )


def write_manifest(folder: Path, inputs: dict[str, Any], **rest: Any) -> None:
    files = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
    values = {"version": VERSION, "made_of": inputs, "files": files, **rest}
    (folder / FILE_NAME).write_text(json.dumps(values, ensure_ascii=False, indent=1), encoding="utf-8")
