"""A tokenizer trained on a corpus and kept beside it: trained once, opened ever after."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from chumoku.data.files import fingerprint
from chumoku.data.manifest import fresh_folder, unchanged, write_manifest
from chumoku.text import Tokenizer, load, train


def prepare_tokenizer(texts: Iterable[str], files: Sequence[Path], folder: Path | str, **settings: Any) -> Tokenizer:
    """Train on `texts`, which come from `files`, with the settings of `chumoku.text.train`, or open what was."""
    folder = Path(folder)
    made_of = {"sources": [fingerprint(file)._asdict() for file in files], "settings": settings}
    if not unchanged(folder, made_of):
        tokenizer = train(texts, **settings)
        with fresh_folder(folder) as working:
            tokenizer.save(working / "tokenizer.json")
            write_manifest(working, made_of, fingerprint=tokenizer.fingerprint)
    return load(folder / "tokenizer.json")
