"""A tokenizer that is trained on a corpus once, saved, and then loaded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from chumoku.data.manifest import is_up_to_date, read_manifest, replace_folder, write_manifest
from chumoku.data.text_files import compute_fingerprints, refuse_if_changed
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
    """Train on `texts` with the settings of `chumoku.text.train`, or load the saved tokenizer if no input has changed.

    files     where the texts come from
    read_as   how they were read (columns, field, cleaning …)
    """
    folder = Path(folder)
    sources = compute_fingerprints(files, progress)
    inputs = {"sources": sources, "read_as": read_as, "settings": settings}
    if not is_up_to_date(folder, inputs):
        with replace_folder(folder) as working, refuse_if_changed(files):
            tokenizer = train(texts, **settings, progress=progress)
            tokenizer.save(working / "tokenizer.json")
            write_manifest(working, inputs, fingerprint=tokenizer.fingerprint)
    return _load_verified(folder)


def keep_tokenizer(path: Path, folder: Path) -> Tokenizer:
    """Load the tokenizer at `path` and save it in `folder`, so that the folder has all that training needs."""
    tokenizer = load(path)
    inputs = {"fingerprint": tokenizer.fingerprint}
    if not is_up_to_date(folder, inputs):
        with replace_folder(folder) as working:
            tokenizer.save(working / "tokenizer.json")
            write_manifest(working, inputs, fingerprint=tokenizer.fingerprint)
    return _load_verified(folder)


def _load_verified(folder: Path) -> Tokenizer:
    """The tokenizer of a prepared folder, after checking its fingerprint."""
    path, expected = folder / "tokenizer.json", read_manifest(folder).get("fingerprint")
    try:
        tokenizer = load(path)
    except UsageError as error:
        raise _damage_error(path) from error
    if tokenizer.fingerprint != expected:
        raise _damage_error(path)
    return tokenizer


def _damage_error(path: Path) -> DamagedError:
    return DamagedError(
        f"{path} was changed or damaged since it was trained: its fingerprint differs from the manifest. Remove the "
        f"folder {path.parent} and run the same command again to train it again."
    )
