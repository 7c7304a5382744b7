"""The tokenizer: text → numbers → text, on the `tokenizers` library.

    tokenizer.encode("こたつでみかん") → [...]      tokenizer.decode([...]) → "こたつでみかん"

A special token typed in a text stays text unless `special=True`. Byte-level kinds give back any text and any bytes;
the others give back the text as their normalizer writes it, with <unk> decoded as nothing.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import tokenizers
from tokenizers import decoders, pre_tokenizers

from chumoku.errors import UsageError
from chumoku.text import japanese
from chumoku.text.backend import (
    PrefixAndSuffix,
    copy_with_specials_as_text,
    encode_in_batches,
    find_prefix_and_suffix,
    read_roles,
    set_prefix_and_suffix,
)
from chumoku.text.byte_chars import fix_surrogates, show_piece, unicode_to_bytes
from chumoku.text.special_tokens import Roles, find_roles
from chumoku.text.stream_decoder import Stream

__all__ = ["Tokenizer", "load"]

# Longer texts are cut before a space or line end (or, where there is none, anywhere), so that time grows with length
# alone.
MAX_PIECE_LENGTH = 1 << 13
MAX_SPLITS_TRIED = 100
MAX_TOKEN_ID = 1 << 23
BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")


class Tokenizer:
    """A trained tokenizer. Two objects of the library stand behind it: one that takes special tokens for text."""

    def __init__(self, backend: tokenizers.Tokenizer, *, size: int | None = None) -> None:
        """`size` is the number of tokens, where it is known: asking the library takes long."""
        self._special = backend
        self._special.no_padding()
        self._special.no_truncation()
        added = backend.get_added_tokens_decoder()
        self.specials = {token.content: number for number, token in added.items() if token.special}
        self.size = size = _size(backend) if size is None else size
        self._plain = copy_with_specials_as_text(backend) if added else backend
        self.prefix_and_suffix: PrefixAndSuffix = find_prefix_and_suffix(backend, size)
        given = read_roles(backend)
        self._check_ids(given.values())
        self.roles: Roles = find_roles({**self.specials, **self._unmarked_specials()}, given)
        self.segments = japanese.SEPARATOR in str(backend.pre_tokenizer)
        self.byte_level = isinstance(backend.decoder, decoders.ByteLevel)

    @property
    def kind(self) -> str:
        """The kind of model inside, in our words."""
        model = type(self._special.model).__name__
        if model == "BPE":
            merges = json.loads(self.json)["model"]["merges"]
            return "bpe" if merges else "byte" if self.byte_level else "character"
        return {"WordLevel": "word", "Unigram": "unigram", "WordPiece": "wordpiece"}.get(model, model.lower())

    @property
    def json(self) -> str:
        """What tokenizer.json holds."""
        return self._special.to_str(pretty=True)

    @property
    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer | None:
        """What cuts a text before the model does."""
        found: pre_tokenizers.PreTokenizer | None = self._special.pre_tokenizer
        return found

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything that decides how text becomes numbers; the last digits of scores, which a JSON file
        may round, do not."""
        rounded = json.loads(self.json, parse_float=lambda number: round(float(number), 5))
        return hashlib.sha256(json.dumps(rounded, sort_keys=True).encode()).hexdigest()

    def encode(
        self,
        text: str,
        *,
        special: bool = False,
        begin: bool = False,
        end: bool = False,
        language: str | None = None,
    ) -> list[int]:
        """Numbers of a text; `language`, `begin` and `end` put the tokens of those roles around it."""
        return self.encode_batch([text], special=special, begin=begin, end=end, language=language)[0]

    def encode_batch(
        self,
        texts: Sequence[str],
        *,
        special: bool = False,
        begin: bool = False,
        end: bool = False,
        language: str | None = None,
    ) -> list[list[int]]:
        """The numbers of many texts, on all cores."""
        before = [*([self._language(language)] if language else []), *([self._role("begin")] if begin else [])]
        after = [self._role("end")] if end else []
        backend = self._special if special else self._plain
        pieces = [self._pieces_of(self._prepare(text, special=special), special=special) for text in texts]
        encoded = encode_in_batches(backend, itertools.chain(*pieces))
        return [[*before, *itertools.chain(*(next(encoded) for _ in parts)), *after] for parts in pieces]

    def encode_bytes(self, data: bytes) -> list[int]:
        """Any bytes: valid UTF-8 as text, every other byte (in byte-level kinds) as its own token."""
        if not self.byte_level:
            return self.encode(data.decode("utf-8", "replace"))
        ids: list[int] = []
        while data:
            try:
                return ids + self.encode(data.decode("utf-8"))
            except UnicodeDecodeError as error:
                ids += self.encode(data[: error.start].decode("utf-8")) if error.start else []
                ids += [self._byte_ids[byte] for byte in data[error.start : error.end]]
                data = data[error.end :]
        return ids

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """Text of numbers; special tokens are shown when `special` is true."""
        return self._special.decode(self._check_ids(ids), skip_special_tokens=not special)

    def decode_batch(self, batch: Sequence[Iterable[int]], *, special: bool = False) -> list[str]:
        return self._special.decode_batch([self._check_ids(ids) for ids in batch], skip_special_tokens=not special)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of numbers: in byte-level kinds exactly those encoded."""
        if not self.byte_level:
            return self.decode(ids).encode()
        pieces = (self._special.id_to_token(number) or "" for number in self._check_ids(ids))
        return b"".join(self._bytes_of(piece) for piece in pieces if piece not in self.specials)

    def pieces(self, text: str) -> list[str]:
        """The text cut as the model sees it, for people: a piece that is part of a character shows its bytes."""
        ids = self.encode(text)
        if not self.byte_level:
            return [self._special.id_to_token(number) or "" for number in ids]
        raw = [self.decode_bytes([number]) for number in ids]
        return [show_piece(piece) for piece in raw]

    def token(self, number: int) -> str:
        """The name of a token in the vocabulary."""
        return self._special.id_to_token(self._check_ids([number])[0]) or ""

    def stream(self) -> Stream:
        """Decode one number at a time."""
        return Stream(self.decode, self._ends_in_byte)

    def save(self, path: Path | str) -> Path:
        """Write tokenizer.json, whole or not at all."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            temporary.write_text(self.json, encoding="utf-8")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        return path

    @functools.cached_property
    def _split_chars(self) -> str:
        """Where a long text may be cut."""
        return "".join(gap for gap in " \n" if self._splits_before(gap))

    @property
    def _unicode_to_bytes(self) -> dict[str, int]:
        """Byte-level tokens write each byte as one printable letter: letter → byte."""
        return unicode_to_bytes()

    @functools.cached_property
    def _byte_ids(self) -> list[int]:
        numbers = self._special.get_vocab(with_added_tokens=False)
        if not self._unicode_to_bytes.keys() <= numbers.keys():
            raise UsageError("This tokenizer has no token for some bytes, so it cannot write just any bytes.")
        return [numbers[letter] for letter in sorted(self._unicode_to_bytes, key=self._unicode_to_bytes.__getitem__)]

    def _bytes_of(self, piece: str) -> bytes:
        """Tokens added later are written as themselves."""
        if any(char not in self._unicode_to_bytes for char in piece):
            return piece.encode()
        return bytes(self._unicode_to_bytes[char] for char in piece)

    def _unmarked_specials(self) -> dict[str, int]:
        """Role names that stand in the vocabulary without being marked as special, as in SentencePiece models."""
        names = ("<unk>", "[UNK]")
        numbers = {name: self._special.token_to_id(name) for name in names}
        return {name: number for name, number in numbers.items() if number is not None}

    def _ends_in_byte(self, ids: list[int]) -> bool:
        """Whether the last token to be shown is one byte of a character that the vocabulary does not hold."""
        shown = (token for token in map(self._special.id_to_token, reversed(ids)) if token not in self.specials)
        return BYTE_TOKEN.fullmatch(next(shown, None) or "") is not None

    def _prepare(self, text: str, *, special: bool) -> str:
        text = fix_surrogates(text)
        if not self.segments:
            return text
        if not special:
            return japanese.segment(text)
        parts = self._around_specials(text)
        return "".join(part if part in self.specials else japanese.segment(part) for part in parts)

    def _encode_unsplit(self, text: str) -> list[int]:
        return self._plain.encode(text, add_special_tokens=False).ids

    def _pieces_of(self, text: str, *, special: bool) -> list[str]:
        """The text, a long one in pieces that can be encoded each by itself."""
        if len(text) <= MAX_PIECE_LENGTH or not self._split_chars:
            return [text]
        pieces = []
        for part in self._around_specials(text) if special else [text]:
            start = 0
            while len(part) - start > MAX_PIECE_LENGTH:
                cut = _find_split(part, start + MAX_PIECE_LENGTH // 2, start + MAX_PIECE_LENGTH, self._split_chars)
                pieces.append(part[start:cut])
                start = cut
            pieces.append(part[start:])
        return pieces

    def _around_specials(self, text: str) -> list[str]:
        """The text cut before and after each special token in it."""
        if not self.specials:
            return [text]
        return re.split("(" + "|".join(map(re.escape, self.specials)) + ")", text)

    def _splits_before(self, gap: str) -> bool:
        """Whether a text may be cut before a space or line end: tried out on what pre-tokenizers treat differently."""
        pairs = itertools.product(("a", "word.", "猫。", "x!?", "12", "'s"), ("b", "猫", "34", '"q', "(c"))
        return all(
            self._encode_unsplit(left + gap + right) == self._encode_unsplit(left) + self._encode_unsplit(gap + right)
            for left, right in pairs
        )

    def _check_ids(self, ids: Iterable[int]) -> list[int]:
        ids = list(ids)
        wrong = next((number for number in ids if not 0 <= number < self.size), None)
        if wrong is not None:
            raise UsageError(f"There is no token {wrong}: this tokenizer has {self.size:,}, numbered from 0.")
        return ids

    def _role(self, role: str) -> int:
        number = getattr(self.roles, role)
        if number is None:
            raise UsageError(f"This tokenizer has no token for the role '{role}'. It has {', '.join(self.specials)}.")
        return int(number)

    def _language(self, code: str) -> int:
        if code not in self.roles.languages:
            known = ", ".join(self.roles.languages) or "none"
            raise UsageError(f"This tokenizer knows no language '{code}'. The languages it knows: {known}.")
        return self.roles.languages[code]


def with_prefix_and_suffix(tokenizer: Tokenizer, before: Sequence[str], after: Sequence[str]) -> Tokenizer:
    """The same tokenizer with these tokens in its frame."""
    backend = tokenizers.Tokenizer.from_str(tokenizer.json)
    set_prefix_and_suffix(
        backend, before, after, {role: tokenizer.token(number) for role, number in read_roles(backend).items()}
    )
    return Tokenizer(backend)


def load(path: Path | str) -> Tokenizer:
    """Open a tokenizer: ours, or a public one in any of its usual files (`text.formats.tokenizer_files`)."""
    from chumoku.text.formats.tokenizer_files import explain_errors, open_backend

    path = Path(path)
    return explain_errors(path, lambda: Tokenizer(open_backend(path)))


def _size(backend: tokenizers.Tokenizer) -> int:
    size = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    if size > MAX_TOKEN_ID:
        # The library walks through all numbers up to the last, whether there are tokens or not.
        raise UsageError(f"A token has the number {size - 1:,}, and {MAX_TOKEN_ID:,} can be. Is the file whole?")
    return size


def _find_split(text: str, low: int, high: int, gaps: str) -> int:
    """The last single space or line end between two other characters, where kinds begin a new piece anyway."""
    place = high
    for _ in range(MAX_SPLITS_TRIED):
        place = max(text.rfind(gap, low, place) for gap in gaps)
        if place < 0:
            break
        if not text[place - 1].isspace() and not text[place + 1].isspace():
            return place
    return high
