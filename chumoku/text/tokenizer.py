"""The tokenizer: text → token ids → text, based on the `tokenizers` library.

    tokenizer.encode("こたつでみかん") → [...]      tokenizer.decode([...]) → "こたつでみかん"

A special token typed in a text is encoded as text unless `special=True`. Byte-level kinds restore any text and any
bytes exactly; the other kinds restore the normalized text, and <unk> decodes to nothing.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import tokenizers
from tokenizers import decoders, pre_tokenizers

from chumoku.errors import UsageError
from chumoku.text import japanese
from chumoku.text.backend import (
    PrefixAndSuffix,
    copy_with_specials_as_text,
    encode_in_batches,
    encode_with_offsets,
    find_prefix_and_suffix,
    read_roles,
    set_prefix_and_suffix,
)
from chumoku.text.byte_chars import fix_surrogates, show_piece, unicode_to_bytes
from chumoku.text.special_tokens import Roles, find_language, find_roles
from chumoku.text.stream_decoder import Stream

if TYPE_CHECKING:
    from chumoku.text.chat_template import ChatTemplate

__all__ = ["Tokenizer"]

# Longer texts are split before a space or line end (without either, anywhere), so that time grows linearly.
MAX_PIECE_LENGTH = 1 << 13
MAX_SPLITS_TRIED = 100
MAX_TOKEN_ID = 1 << 23
BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")


class Tokenizer:
    """A trained tokenizer. It uses two backends: one recognizes special tokens, the other encodes them as text."""

    def __init__(self, backend: tokenizers.Tokenizer, *, size: int | None = None) -> None:
        """`size` is the number of tokens, if known: counting them with the library is slow."""
        self._special = backend
        self._special.no_padding()
        self._special.no_truncation()
        added = backend.get_added_tokens_decoder()
        self.specials = {token.content: token_id for token_id, token in added.items() if token.special}
        self.size = size = _size(backend) if size is None else size
        self._plain = copy_with_specials_as_text(backend) if added else backend
        self.prefix_and_suffix: PrefixAndSuffix = find_prefix_and_suffix(backend, size)
        stored_roles = read_roles(backend)
        self._check_ids(stored_roles.values())
        self.roles: Roles = find_roles({**self.specials, **self._unmarked_specials()}, stored_roles)
        splitting = b"" if backend.pre_tokenizer is None else backend.pre_tokenizer.__getstate__()
        self.segments = japanese.SEPARATOR.encode() in splitting
        self.byte_level = isinstance(backend.decoder, decoders.ByteLevel)
        # Set by whoever reads them; tokenizer.json has no place for them.
        self.chat_template: ChatTemplate | None = None
        self.stop_tokens: tuple[int, ...] = ()  # that end a generated text, beside the end token

    @property
    def kind(self) -> str:
        """The kind of model, as in `chumoku.text.KINDS`."""
        model = type(self._special.model).__name__
        if model == "BPE":
            merges = json.loads(self.json)["model"]["merges"]
            return "bpe" if merges else "byte" if self.byte_level else "character"
        return {"WordLevel": "word", "Unigram": "unigram", "WordPiece": "wordpiece"}.get(model, model.lower())

    @property
    def json(self) -> str:
        """The content of tokenizer.json."""
        return self._special.to_str(pretty=True)

    @property
    def target_language(self) -> str | None:
        """The language that a translator's sources ask for by default: that of a language token before every text."""
        before = self.prefix_and_suffix[0]
        return next((code for code, token_id in self.roles.languages.items() if token_id in before), None)

    @property
    def frame(self) -> PrefixAndSuffix:
        """The tokens before and after a text that an encoder reads: its prefix and suffix, or else its end token."""
        if any(self.prefix_and_suffix) or self.roles.end is None:
            return self.prefix_and_suffix
        return (), (self.roles.end,)

    @property
    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer | None:
        """The step that splits a text before the model does, or None."""
        pre_tokenizer: pre_tokenizers.PreTokenizer | None = self._special.pre_tokenizer
        return pre_tokenizer

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything that decides the ids. Scores are rounded, because a JSON file may round them too."""
        rounded = json.loads(self.json, parse_float=lambda value: round(float(value), 5))
        return hashlib.sha256(json.dumps(rounded, sort_keys=True).encode()).hexdigest()

    def encode(
        self,
        text: str,
        *,
        special: bool = False,
        begin: bool = False,
        end: bool = False,
        language: str | None = None,
        source: bool = False,
    ) -> list[int]:
        """The ids of a text.

        `special` recognizes special tokens in the text; `language`, `begin` and `end` add the tokens of these roles,
        and `source` the one that a translator's sources begin with, if there is one.
        """
        options = {"special": special, "begin": begin, "end": end, "source": source}
        return self.encode_batch([text], language=language, **options)[0]

    def encode_batch(
        self,
        texts: Sequence[str],
        *,
        special: bool = False,
        begin: bool = False,
        end: bool = False,
        language: str | None = None,
        source: bool = False,
    ) -> list[list[int]]:
        """The ids of many texts, encoded on all cores. The arguments are those of `encode`."""
        before = [self.roles.source_begin] if source and self.roles.source_begin is not None else []
        before += [
            *([find_language(self.roles.languages, language)] if language else []),
            *([self._role("begin")] if begin else []),
        ]
        after = [self._role("end")] if end else []
        backend = self._special if special else self._plain
        pieces = [self._pieces_of(self._prepare(text, special=special), special=special) for text in texts]
        encoded = encode_in_batches(backend, itertools.chain(*pieces))
        return [[*before, *itertools.chain(*(next(encoded) for _ in parts)), *after] for parts in pieces]

    def encode_with_offsets(self, text: str) -> list[tuple[int, tuple[int, int]]]:
        """Each id of a text, special tokens recognized, with the characters (start, end) that it stands for.

        The text is not segmented first.
        """
        # Not split around special tokens: a piece after one would get the space that some kinds put before a text.
        return encode_with_offsets(self._special, self._pieces_of(text, special=False))

    def encode_words(self, words: Sequence[str]) -> tuple[list[int], list[int]]:
        """The ids of a text that is given as words, and the number of the word that each id belongs to.

        Words are joined by spaces, in tokenizers for segmented Japanese by the separator that they split at.
        """
        between = japanese.SEPARATOR if self.segments else " "
        cleaned = [fix_surrogates(word).replace(japanese.SEPARATOR, "") for word in words]
        text = between.join(cleaned)
        ends = list(itertools.accumulate(len(word) + 1 for word in cleaned))  # where the next word starts
        found = encode_with_offsets(self._plain, self._pieces_of(text, special=False))
        # A token may include the space before its word, so that its last character decides.
        numbers = [min(bisect.bisect_right(ends, max(0, stop - 1)), len(ends) - 1) for _, (_, stop) in found]
        return [token_id for token_id, _ in found], numbers

    def encode_bytes(self, data: bytes) -> list[int]:
        """The ids of any bytes: valid UTF-8 is encoded as text, every other byte (in byte-level kinds) as one token."""
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
        """The text of ids; special tokens are left out unless `special` is true."""
        return self._special.decode(self._check_ids(ids), skip_special_tokens=not special)

    def decode_batch(self, batch: Sequence[Iterable[int]], *, special: bool = False) -> list[str]:
        return self._special.decode_batch([self._check_ids(ids) for ids in batch], skip_special_tokens=not special)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of ids; byte-level kinds restore exactly the bytes that were encoded."""
        if not self.byte_level:
            return self.decode(ids).encode()
        pieces = (self._special.id_to_token(token_id) or "" for token_id in self._check_ids(ids))
        return b"".join(self._bytes_of(piece) for piece in pieces if piece not in self.specials)

    def pieces(self, text: str) -> list[str]:
        """The readable tokens of a text; an incomplete character is shown as its bytes."""
        ids = self.encode(text)
        if not self.byte_level:
            return [self._special.id_to_token(token_id) or "" for token_id in ids]
        raw = [self.decode_bytes([token_id]) for token_id in ids]
        return [show_piece(piece) for piece in raw]

    @functools.cached_property
    def split_characters(self) -> str:
        """The characters before which a long text may be split."""
        return "".join(char for char in " \n" if self._splits_before(char))

    @functools.cached_property
    def is_unknown(self) -> Callable[[str], bool]:
        """Whether a character has no token: it is encoded as <unk>, or as bytes in a vocabulary of pieces of text."""

        @functools.lru_cache(1 << 14)
        def is_unknown(character: str) -> bool:
            ids = () if self.byte_level else self.encode(character)
            return any(each == self.roles.unknown or BYTE_TOKEN.fullmatch(self.token(each)) for each in ids)

        return is_unknown

    def token(self, token_id: int) -> str:
        """The token with this id, as written in the vocabulary."""
        return self._special.id_to_token(self._check_ids([token_id])[0]) or ""

    def stream(self) -> Stream:
        """A decoder that takes one id at a time."""
        return Stream(self.decode, self._ends_in_byte)

    def save(self, path: Path | str) -> Path:
        """Write tokenizer.json atomically and return its path."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            temporary.write_text(self.json, encoding="utf-8")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        return path

    @property
    def _unicode_to_bytes(self) -> dict[str, int]:
        """Byte-level tokens write each byte as one printable character: character → byte."""
        return unicode_to_bytes()

    @functools.cached_property
    def _byte_ids(self) -> list[int]:
        vocab = self._special.get_vocab(with_added_tokens=False)
        if not self._unicode_to_bytes.keys() <= vocab.keys():
            raise UsageError("This tokenizer has no token for some bytes, so it cannot encode arbitrary bytes.")
        return [vocab[char] for char in sorted(self._unicode_to_bytes, key=self._unicode_to_bytes.__getitem__)]

    def _bytes_of(self, piece: str) -> bytes:
        """The bytes of a token. Added tokens are plain text, not byte characters."""
        if any(char not in self._unicode_to_bytes for char in piece):
            return piece.encode()
        return bytes(self._unicode_to_bytes[char] for char in piece)

    def _unmarked_specials(self) -> dict[str, int]:
        """Unknown tokens in the vocabulary that are not marked as special, as in SentencePiece models."""
        names = ("<unk>", "[UNK]")
        vocab = {name: self._special.token_to_id(name) for name in names}
        return {name: token_id for name, token_id in vocab.items() if token_id is not None}

    def _ends_in_byte(self, ids: list[int]) -> bool:
        """Whether the last token to be shown is one byte of a character that is not in the vocabulary."""
        visible = (token for token in map(self._special.id_to_token, reversed(ids)) if token not in self.specials)
        return BYTE_TOKEN.fullmatch(next(visible, None) or "") is not None

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
        """The text, or its pieces that can be encoded separately if it is long."""
        if len(text) <= MAX_PIECE_LENGTH or not self.split_characters:
            return [text]
        pieces = []
        for part in self._around_specials(text) if special else [text]:
            start = 0
            while len(part) - start > MAX_PIECE_LENGTH:
                split = _find_split(
                    part, start + MAX_PIECE_LENGTH // 2, start + MAX_PIECE_LENGTH, self.split_characters
                )
                pieces.append(part[start:split])
                start = split
            pieces.append(part[start:])
        return pieces

    def _around_specials(self, text: str) -> list[str]:
        """The text split before and after each special token in it."""
        if not self.specials:
            return [text]
        return re.split("(" + "|".join(map(re.escape, self.specials)) + ")", text)

    def _splits_before(self, char: str) -> bool:
        """Whether a text may be split before a space or line end; tested on cases that pre-tokenizers distinguish."""
        pairs = itertools.product(("a", "word.", "猫。", "x!?", "12", "'s"), ("b", "猫", "34", '"q', "(c"))
        return all(
            self._encode_unsplit(left + char + right) == self._encode_unsplit(left) + self._encode_unsplit(char + right)
            for left, right in pairs
        )

    def _check_ids(self, ids: Iterable[int]) -> list[int]:
        ids = list(ids)
        wrong = next((token_id for token_id in ids if not 0 <= token_id < self.size), None)
        if wrong is not None:
            raise UsageError(f"There is no token {wrong}: this tokenizer has {self.size:,} tokens, numbered from 0.")
        return ids

    def _role(self, role: str) -> int:
        token_id = getattr(self.roles, role)
        if token_id is None:
            known = ", ".join(self.specials)
            raise UsageError(f"This tokenizer has no token for the role '{role}'. Its special tokens are {known}.")
        return int(token_id)


def with_prefix_and_suffix(
    tokenizer: Tokenizer, before: Sequence[str], after: Sequence[str], roles: Mapping[str, int] | None = None
) -> Tokenizer:
    """A copy of a tokenizer that adds these tokens before and after every text; `roles` as in `with_roles`."""
    backend = tokenizers.Tokenizer.from_str(tokenizer.json)
    ids = {**read_roles(backend), **(roles or {})}
    set_prefix_and_suffix(backend, before, after, {role: tokenizer.token(token_id) for role, token_id in ids.items()})
    copy = Tokenizer(backend)
    copy.chat_template, copy.stop_tokens = tokenizer.chat_template, tokenizer.stop_tokens
    return copy


def with_roles(tokenizer: Tokenizer, roles: Mapping[str, int]) -> Tokenizer:
    """A copy of the tokenizer in which these tokens have roles: {"begin": 5} makes token 5 its begin token.

    Returns the tokenizer itself if `roles` is empty.
    """
    if not roles:
        return tokenizer
    before, after = (list(map(tokenizer.token, ids)) for ids in tokenizer.prefix_and_suffix)
    return with_prefix_and_suffix(tokenizer, before, after, roles)


def _size(backend: tokenizers.Tokenizer) -> int:
    size = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    if size > MAX_TOKEN_ID:
        # The library loops over all ids up to the largest one.
        raise UsageError(f"A token has the id {size - 1:,}; the limit is {MAX_TOKEN_ID:,}. Is the file complete?")
    return size


def _find_split(text: str, low: int, high: int, chars: str) -> int:
    """The index of the last single space or line end between two other characters, where a new piece starts anyway."""
    index = high
    for _ in range(MAX_SPLITS_TRIED):
        index = max(text.rfind(char, low, index) for char in chars)
        if index < 0:
            break
        if not text[index - 1].isspace() and not text[index + 1].isspace():
            return index
    return high
