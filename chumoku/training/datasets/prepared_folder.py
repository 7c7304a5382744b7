"""data.prepared: the tokens and the tokenizer that `chumoku prepare` wrote, instead of files.

    FOLDER/tokenizer    the tokenizer            FOLDER/shards    a text            FOLDER/pairs    sentence pairs

Their checksums are verified when they are opened. The tokenizer must be the one they were encoded with.
"""

from __future__ import annotations

from pathlib import Path

from chumoku.data.manifest import read_manifest
from chumoku.data.prepared import open_pairs
from chumoku.data.shards import Shards
from chumoku.errors import CorpusError
from chumoku.text import Tokenizer


def open_prepared_text(folder: Path | str, tokenizer: Tokenizer) -> Shards:
    """The tokens of a text that was prepared with this tokenizer."""
    place = _find(Path(folder), "shards", "pairs")
    _check_tokenizers(place, [read_manifest(place)["made_of"].get("tokenizer")], [tokenizer])
    return Shards(place)


def find_prepared_pairs(folder: Path | str, source: Tokenizer, target: Tokenizer) -> Path:
    """The folder of sentence pairs that were prepared with these tokenizers."""
    place = _find(Path(folder), "pairs", "shards")
    _check_tokenizers(place, read_manifest(place)["made_of"].get("tokenizers"), [source, target])
    if not len(open_pairs(place, "validation")):
        raise CorpusError(f"{place} has no pairs for validation. Prepare it again with a larger --validation.")
    return place


def _find(folder: Path, name: str, other: str) -> Path:
    """The subfolder `name`; an error that says what the folder has instead."""
    if (folder / name).is_dir():
        return folder / name
    if (folder / other).is_dir():
        if other == "shards":
            raise CorpusError(f"{folder} contains a text: data.kind = 'text' is needed.")
        raise CorpusError(f"{folder} contains sentence pairs: data.kind = 'pairs' is needed.")
    raise CorpusError(f"{folder} was not written by `chumoku prepare`: it has no folder named {name}.")


def _check_tokenizers(place: Path, expected: object, tokenizers: list[Tokenizer]) -> None:
    if expected != [tokenizer.fingerprint for tokenizer in tokenizers]:
        raise CorpusError(
            f"{place} was encoded with another tokenizer. Prepare it with this one: chumoku prepare … --tokenizer FILE."
        )
