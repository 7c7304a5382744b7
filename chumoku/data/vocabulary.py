"""A tokenizer trained on a corpus and kept beside it: trained once, opened ever after."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from chumoku.data.files import at_rest, fingerprint
from chumoku.data.manifest import fresh_folder, unchanged, write_manifest
from chumoku.text import Tokenizer, load, train


def prepare_tokenizer(
    texts: Iterable[str], files: Sequence[Path], folder: Path | str, *, read_as: dict[str, Any], **settings: Any
) -> Tokenizer:
    """Train on `texts` with the settings of `chumoku.text.train`, or open what was trained.

    `files` and `read_as` (columns, field, cleaning …) are what the texts come from: when they change, so does it.
    """
    folder = Path(folder)
    sources = [fingerprint(file)._asdict() for file in files]
    made_of = {"sources": sources, "read_as": read_as, "settings": settings}
    if not unchanged(folder, made_of):
        with fresh_folder(folder) as working, at_rest(files):
            tokenizer = train(texts, **settings)
            tokenizer.save(working / "tokenizer.json")
            write_manifest(working, made_of, fingerprint=tokenizer.fingerprint)
    return load(folder / "tokenizer.json")
