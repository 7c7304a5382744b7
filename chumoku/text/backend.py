"""Helpers for the `tokenizers` library's Tokenizer objects, which this package calls backends.

The special tokens that a tokenizer adds around a text, as in [CLS] text [SEP] or <s> text, are its prefix and suffix.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import Regex, models, pre_tokenizers, processors

from chumoku.errors import UsageError

BATCH_CHARACTERS = 1 << 18
MAX_PREFIX_TOKENS = 16
# Gemma has 6,400; speech models have one token per sound, up to 66,000. Loading takes 20 µs per token.
MAX_ADDED_TOKENS = 1 << 17
MAX_ADDED_CHARACTERS = 1 << 22
# A role that cannot be recognized by the token's name is stored in the post-processor's table of special tokens:
# the one place in a tokenizer.json that can hold it and that other programs ignore.
ROLE_KEY = "role:"
PrefixAndSuffix = tuple[tuple[int, ...], tuple[int, ...]]


def check_added_tokens(contents: Iterable[Any]) -> None:
    """Raise ValueError if there are too many added tokens: every text is searched for all of them."""
    count = characters = 0
    for content in contents:
        count += 1
        characters += len(content) if isinstance(content, str) else 0
    if count > MAX_ADDED_TOKENS or characters > MAX_ADDED_CHARACTERS:
        raise ValueError(
            f"it has {count:,} added tokens with {characters:,} characters; the limits are {MAX_ADDED_TOKENS:,} tokens "
            f"and {MAX_ADDED_CHARACTERS:,} characters"
        )


def copy_with_specials_as_text(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A copy of a backend that encodes special tokens in a text as ordinary text. Both share one model."""
    added = backend.get_added_tokens_decoder()
    copy = tokenizers.Tokenizer(backend.model)
    if backend.normalizer is not None:
        copy.normalizer = backend.normalizer
    if backend.pre_tokenizer is not None:
        copy.pre_tokenizer = backend.pre_tokenizer
    copy.add_tokens([added[token_id] for token_id in sorted(added)])
    copied = {token_id: token.content for token_id, token in copy.get_added_tokens_decoder().items()}
    if copied != {token_id: token.content for token_id, token in added.items()}:
        # The library accepts ids with gaps only from a file.
        copy = tokenizers.Tokenizer.from_str(backend.to_str())
    copy.encode_special_tokens = True
    split_typed_specials(copy, [token.content for token in added.values() if token.special])
    return copy


def split_typed_specials(backend: tokenizers.Tokenizer, names: Sequence[str]) -> None:
    """Make a backend split each special token after its first letter, so that a Unigram or word model, whose
    vocabulary contains it as a word, does not match it."""
    model = backend.model
    if not names or not isinstance(model, (models.Unigram, models.WordLevel)):
        return
    first_letters = "|".join(f"{re.escape(name[:1])}(?={re.escape(name[1:])})" for name in names)
    if isinstance(model, models.Unigram):
        first_letters += "|<(?=0x[0-9A-F]{2}>)"
    split = pre_tokenizers.Split(Regex(first_letters), "isolated")
    earlier = [backend.pre_tokenizer] if backend.pre_tokenizer is not None else []
    backend.pre_tokenizer = pre_tokenizers.Sequence([*earlier, split])


def find_prefix_and_suffix(backend: tokenizers.Tokenizer, size: int) -> PrefixAndSuffix:
    """The ids that the backend's post-processor adds before and after a text."""
    if backend.post_processor is None:
        return (), ()
    word = backend.encode("a", add_special_tokens=True)
    added = "".join("x" if special else "-" for special in word.special_tokens_mask)
    before, after = len(added) - len(added.lstrip("x")), len(added) - len(added.rstrip("x"))
    if max(before, after) > MAX_PREFIX_TOKENS or not all(0 <= token_id < size for token_id in word.ids):
        raise UsageError(
            f"This tokenizer adds {before} tokens before a text and {after} after it ({word.ids[:MAX_PREFIX_TOKENS]}). "
            f"The limit is {MAX_PREFIX_TOKENS}, and ids must be below {size:,}. Is the file complete?"
        )
    return tuple(word.ids[:before]), tuple(word.ids[len(word.ids) - after :] if before < len(added) else ())


def prefix_and_suffix_names(backend: tokenizers.Tokenizer) -> tuple[list[str], list[str]]:
    """The names of the tokens that the backend adds before and after a text."""
    before, after = find_prefix_and_suffix(backend, 1 << 32)
    names = {token_id: backend.id_to_token(token_id) for token_id in (*before, *after)}
    if not all(names.values()):
        raise ValueError("it adds ids around a text that are not in its vocabulary")
    return [names[token_id] or "" for token_id in before], [names[token_id] or "" for token_id in after]


def set_prefix_and_suffix(
    backend: tokenizers.Tokenizer, before: Sequence[str], after: Sequence[str], roles: Mapping[str, str] | None = None
) -> None:
    """Make a backend add these tokens around a text, and store which token has which role."""
    tokens = {name: backend.token_to_id(name) for name in (*before, *after)}
    role_ids = {f"{ROLE_KEY}{role}": backend.token_to_id(name) for role, name in (roles or {}).items()}
    absent = next((name for name, token_id in (tokens | role_ids).items() if token_id is None), None)
    if absent is not None:
        raise ValueError(f"it has no token {absent}")
    if not tokens and not role_ids:
        return
    # The library parses names in a template and splits them at spaces and $, so the template uses short keys instead.
    keys = {name: f"[{place}]" for place, name in enumerate(tokens)}
    backend.post_processor = processors.TemplateProcessing(
        single=[*(keys[name] for name in before), "$A", *(keys[name] for name in after)],
        pair=[*(keys[name] for name in before), "$A", *(keys[name] for name in after), "$B:1"]
        + [f"{keys[name]}:1" for name in after],
        special_tokens=[
            *({"id": keys[name], "ids": [token_id], "tokens": [name]} for name, token_id in tokens.items()),
            *({"id": role, "ids": [token_id], "tokens": [role]} for role, token_id in role_ids.items()),
        ],
    )


def read_roles(backend: tokenizers.Tokenizer) -> dict[str, int]:
    """The roles that `set_prefix_and_suffix` stored: role → id."""
    if backend.post_processor is None:
        return {}
    state = json.loads(backend.post_processor.__getstate__())
    table = state.get("special_tokens", {}) if state.get("type") == "TemplateProcessing" else {}
    return {key.removeprefix(ROLE_KEY): entry["ids"][0] for key, entry in table.items() if key.startswith(ROLE_KEY)}


def encode_in_batches(backend: tokenizers.Tokenizer, pieces: Iterable[str]) -> Iterator[list[int]]:
    """Yield the ids of each piece. Pieces are encoded in batches, because the library's encodings take much memory."""
    batch: list[str] = []
    characters = 0
    for piece in itertools.chain(pieces, [None]):
        if batch and (piece is None or characters + len(piece) > BATCH_CHARACTERS):
            yield from _encode(backend, batch)
            batch, characters = [], 0
        if piece is not None:
            batch.append(piece)
            characters += len(piece)


def _is_rust_panic(error: BaseException) -> bool:
    return type(error).__name__ == "PanicException"


def _encode(backend: tokenizers.Tokenizer, texts: list[str]) -> list[list[int]]:
    with _explain_failure():
        return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]


def encode_with_offsets(backend: tokenizers.Tokenizer, pieces: Sequence[str]) -> list[tuple[int, tuple[int, int]]]:
    """Each id of a text, given in pieces, with the characters (start, end) that it stands for."""
    with _explain_failure():
        encodings = [backend.encode(piece, add_special_tokens=False) for piece in pieces]
    starts = itertools.accumulate(map(len, pieces), initial=0)
    return [
        (token_id, (start + first, start + last))
        for start, encoding in zip(starts, encodings, strict=False)
        for token_id, (first, last) in zip(encoding.ids, encoding.offsets, strict=True)
    ]


@contextlib.contextmanager
def _explain_failure() -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        # The vocabulary may lack an unknown token, or a pattern may exceed its retry limit. The latter is a Rust panic,
        # which is not an Exception.
        if isinstance(error, MemoryError) or not (isinstance(error, Exception) or _is_rust_panic(error)):
            raise
        raise UsageError(f"This tokenizer fails on a text: {str(error)[:200]}. Is the file correct?") from error
