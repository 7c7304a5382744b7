"""A prepared folder: data files, and a manifest, written last, that records the inputs they were made from.

If no input has changed, preparing again does nothing. While a folder `shards` is being prepared, its files are in
`shards.incomplete` beside it. A killed process leaves that folder behind, and the next process that prepares the same
folder removes it. A lock file in it shows whether its process is still running.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chumoku.errors import ChumokuError, CorpusError, UsageError
from chumoku.partial_output import incomplete_folder, remove_leftovers
from chumoku.safe_files import read_any_json

FILE_NAME = "manifest.json"
VERSION = 1
MAX_BYTES = 1 << 28
# The names of all files that preparing writes. A folder with only such files is ours, even if its manifest is damaged.
PARTS = "source|target|reference|(conversations|chosen|rejected)(-learned)?|anchor|positive|negative|groups"
OURS = re.compile(
    r"manifest\.json|tokenizer\.json|vectors\.f32|"
    rf"(texts|shard-\d{{5}}|(train|validation)-({PARTS}))\.(tokens|ends)"
)


class UnreadableManifestError(CorpusError):
    """The manifest is damaged or incomplete, so its folder counts as not prepared."""


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a prepared folder: its inputs, files and further entries."""
    path = folder / FILE_NAME
    if not path.exists():
        raise CorpusError(f"{folder} is not a prepared corpus: {FILE_NAME} is missing. Prepare it first.")
    try:
        manifest = read_any_json(path, max_bytes=MAX_BYTES)
    except UsageError as error:
        raise CorpusError(f"{error} Prepare the corpus again.") from error
    except ChumokuError as error:
        raise UnreadableManifestError(f"{error} Prepare the corpus again.") from error
    values = manifest if isinstance(manifest, dict) else {}
    if values.get("version") != VERSION or "made_of" not in values or not isinstance(values.get("files"), dict):
        raise CorpusError(f"{path} is not a manifest of this version ({VERSION}). Prepare the corpus again.")
    return values


def is_up_to_date(folder: Path, inputs: dict[str, Any]) -> bool:
    """Whether the folder was prepared from exactly these inputs, and all its files exist with their recorded sizes."""
    try:
        manifest = read_manifest(folder)
        sizes = {name: (folder / name).stat().st_size for name in manifest["files"]}
    except (CorpusError, OSError):
        return False
    return bool(manifest["made_of"] == json.loads(json.dumps(inputs)) and sizes == manifest["files"])


@contextlib.contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """Yield a working folder that replaces `folder` when the work succeeds and is removed when it fails."""
    folder = folder.resolve()
    check_replaceable(folder)
    with incomplete_folder(folder, activity="is preparing the same folder") as place:
        remove_leftovers(place)
        working, replaced = place / "new", place / "old"
        working.mkdir()
        yield working
        if folder.exists():
            folder.replace(replaced)
        working.replace(folder)


def check_replaceable(folder: Path) -> None:
    """Raise CorpusError if the folder contains files that this package did not write."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise CorpusError(f"{folder} is a file, not a folder. Choose another output folder.")
    present = {file.name for file in folder.iterdir()}
    try:
        ours = {FILE_NAME, *read_manifest(folder)["files"]} if present else set()
    except UnreadableManifestError:
        ours = {name for name in present if OURS.fullmatch(name)}
    except CorpusError:
        ours = set()
    if present - ours:
        raise CorpusError(
            f"{folder} exists and is not a prepared corpus: it contains {min(present - ours)}. Choose another folder; "
            "nothing was changed."
        )


def write_manifest(folder: Path, inputs: dict[str, Any], **rest: Any) -> None:
    files = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
    values = {"version": VERSION, "made_of": inputs, "files": files, **rest}
    (folder / FILE_NAME).write_text(json.dumps(values, ensure_ascii=False, indent=1), encoding="utf-8")


def describe_report(folder: Path, what: str) -> tuple[str, ...]:
    """What was read, cut and dropped when the folder was prepared, as sentences; `what` is the plural of its rows."""
    found = read_manifest(folder)["report"]
    if "train" in found:
        kept = f"{found['train']:,} {what} for training and {found['validation']:,} for validation, of"
        lines = [f"{kept} {found['read']:,} read."]
    else:
        lines = [f"{found['kept']:,} {what}."]
    if found.get("cut"):
        lines.append(f"{found['cut']:,} of them were cut: their last turns do not fit train.sequence_length.")
    if found.get("truncated"):
        lines.append(f"{found['truncated']:,} of them were cut to train.sequence_length or the model's context.")
    for reason, times in found["dropped"].items():
        first = found["examples"].get(reason, [])[:1]
        where = f", first at {first[0]['file']}:{first[0]['line']}" if first else ""
        lines.append(f"{times:,} dropped ({reason}){where}.")
    return tuple(lines)
