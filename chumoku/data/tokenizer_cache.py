"""A tokenizer trained on a corpus and kept beside it: trained once, opened ever after."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from chumoku.data.manifest import fresh_folder, read_manifest, unchanged, write_manifest
from chumoku.data.text_files import at_rest, fingerprints
from chumoku.errors import DamagedError, UsageError
from chumoku.text import Tokenizer, load, train
from chumoku.text.progress import Progress, silent


def prepare_tokenizer(
    texts: Iterable[str],
    files: Sequence[Path],
    folder: Path | str,
    *,
    read_as: dict[str, Any],
    progress: Progress = silent,
    **settings: Any,
) -> Tokenizer:
    """Train on `texts` with the settings of `chumoku.text.train`, or open what was trained.

    `files` and `read_as` (columns, field, cleaning …) are what the texts come from: when they change, so does it.
    """
    folder = Path(folder)
    sources = fingerprints(files, progress)
    made_of = {"sources": sources, "read_as": read_as, "settings": settings}
    if not unchanged(folder, made_of):
        with fresh_folder(folder) as working, at_rest(files):
            tokenizer = train(texts, **settings, progress=progress)
            tokenizer.save(working / "tokenizer.json")
            write_manifest(working, made_of, fingerprint=tokenizer.fingerprint)
    return _verified(folder)


def _verified(folder: Path) -> Tokenizer:
    """The tokenizer of a prepared folder, when it is the one that was trained."""
    path, expected = folder / "tokenizer.json", read_manifest(folder).get("fingerprint")
    try:
        tokenizer = load(path)
    except UsageError as error:
        raise _damaged(path) from error
    if tokenizer.fingerprint != expected:
        raise _damaged(path)
    return tokenizer


def _damaged(path: Path) -> DamagedError:
    return DamagedError(
        f"{path} was changed or damaged since it was trained: it is not the tokenizer of its manifest. Remove "
        f"the folder {path.parent} and run the same command again; it will be trained anew."
    )
