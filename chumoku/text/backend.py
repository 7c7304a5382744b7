"""What stands behind a tokenizer: objects of the `tokenizers` library, and the little that is asked of them.

check_added  added tokens are few enough: each text is searched for all of them
plain_twin   the same tokenizer, which takes special tokens for text; the model is shared, so a twin costs little
frame        the special tokens that a tokenizer puts around a text: [CLS] text [SEP], <s> text
set_frame    … and giving it such a frame, with the roles that names alone do not tell
in_turns     many texts, never too many at once
"""

from __future__ import annotations

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
# Gemma has 6,400; models that speak have a token for each sound, up to 66,000. Opening takes 20 µs for each.
MAX_ADDED_TOKENS = 1 << 17
MAX_ADDED_CHARACTERS = 1 << 22
# Roles that names do not tell stand in the post-processor's table of special tokens, the one place of a
# tokenizer.json that has room for them and that others read past.
ROLE_PREFIX = "role:"
PrefixAndSuffix = tuple[tuple[int, ...], tuple[int, ...]]


def check_added_tokens(contents: Iterable[Any]) -> None:
    """Tokens that are searched for in every text before the model cuts it."""
    count = characters = 0
    for content in contents:
        count += 1
        characters += len(content) if isinstance(content, str) else 0
    if count > MAX_ADDED_TOKENS or characters > MAX_ADDED_CHARACTERS:
        raise ValueError(
            f"it has {count:,} added tokens of {characters:,} characters; up to {MAX_ADDED_TOKENS:,} of "
            f"{MAX_ADDED_CHARACTERS:,} can be"
        )


def copy_with_specials_as_text(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A tokenizer on the same model that takes special tokens for text."""
    added = backend.get_added_tokens_decoder()
    twin = tokenizers.Tokenizer(backend.model)
    if backend.normalizer is not None:
        twin.normalizer = backend.normalizer
    if backend.pre_tokenizer is not None:
        twin.pre_tokenizer = backend.pre_tokenizer
    twin.add_tokens([added[number] for number in sorted(added)])
    numbers = {number: token.content for number, token in twin.get_added_tokens_decoder().items()}
    if numbers != {number: token.content for number, token in added.items()}:
        # Numbers with holes can be told to the library only by way of a file.
        twin = tokenizers.Tokenizer.from_str(backend.to_str())
    twin.encode_special_tokens = True
    split_typed_specials(twin, [token.content for token in added.values() if token.special])
    return twin


def split_typed_specials(twin: tokenizers.Tokenizer, names: Sequence[str]) -> None:
    """Unigram and word models hold their special tokens as words; a cut after the first letter makes them text."""
    model = twin.model
    if not names or not isinstance(model, (models.Unigram, models.WordLevel)):
        return
    first_letters = "|".join(f"{re.escape(name[:1])}(?={re.escape(name[1:])})" for name in names)
    if isinstance(model, models.Unigram):
        first_letters += "|<(?=0x[0-9A-F]{2}>)"
    apart = pre_tokenizers.Split(Regex(first_letters), "isolated")
    earlier = [twin.pre_tokenizer] if twin.pre_tokenizer is not None else []
    twin.pre_tokenizer = pre_tokenizers.Sequence([*earlier, apart])


def find_prefix_and_suffix(backend: tokenizers.Tokenizer, size: int) -> PrefixAndSuffix:
    """What its post-processor puts before and behind a text."""
    if backend.post_processor is None:
        return (), ()
    word = backend.encode("a", add_special_tokens=True)
    added = "".join("x" if special else "-" for special in word.special_tokens_mask)
    before, after = len(added) - len(added.lstrip("x")), len(added) - len(added.rstrip("x"))
    if max(before, after) > MAX_PREFIX_TOKENS or not all(0 <= number < size for number in word.ids):
        raise UsageError(
            f"This tokenizer puts {before} tokens before a text and {after} behind it, {word.ids[:MAX_PREFIX_TOKENS]}; up "
            f"to {MAX_PREFIX_TOKENS} of its own {size:,} can be. Is the file whole?"
        )
    return tuple(word.ids[:before]), tuple(word.ids[len(word.ids) - after :] if before < len(added) else ())


def prefix_and_suffix_names(backend: tokenizers.Tokenizer) -> tuple[list[str], list[str]]:
    """The frame in the names of its tokens."""
    before, after = find_prefix_and_suffix(backend, 1 << 32)
    names = {number: backend.id_to_token(number) for number in (*before, *after)}
    if not all(names.values()):
        raise ValueError("what it puts around a text is none of its tokens")
    return [names[number] or "" for number in before], [names[number] or "" for number in after]


def set_prefix_and_suffix(
    backend: tokenizers.Tokenizer, before: Sequence[str], after: Sequence[str], roles: Mapping[str, str] | None = None
) -> None:
    """Put tokens around a text, and keep which token has which role."""
    tokens = {name: backend.token_to_id(name) for name in (*before, *after)}
    role_ids = {f"{ROLE_PREFIX}{role}": backend.token_to_id(name) for role, name in (roles or {}).items()}
    absent = next((name for name, number in (tokens | role_ids).items() if number is None), None)
    if absent is not None:
        raise ValueError(f"{absent} is none of its tokens")
    if not tokens and not role_ids:
        return
    # The library writes a special token of a template as its name, and takes a name apart at spaces and $.
    keys = {name: f"[{place}]" for place, name in enumerate(tokens)}
    backend.post_processor = processors.TemplateProcessing(
        single=[*(keys[name] for name in before), "$A", *(keys[name] for name in after)],
        pair=[*(keys[name] for name in before), "$A", *(keys[name] for name in after), "$B:1"]
        + [f"{keys[name]}:1" for name in after],
        special_tokens=[
            *({"id": keys[name], "ids": [number], "tokens": [name]} for name, number in tokens.items()),
            *({"id": role, "ids": [number], "tokens": [role]} for role, number in role_ids.items()),
        ],
    )


def read_roles(backend: tokenizers.Tokenizer) -> dict[str, int]:
    """The roles that `set_prefix_and_suffix` kept."""
    if backend.post_processor is None:
        return {}
    state = json.loads(backend.post_processor.__getstate__())
    table = state.get("special_tokens", {}) if state.get("type") == "TemplateProcessing" else {}
    return {
        key.removeprefix(ROLE_PREFIX): entry["ids"][0] for key, entry in table.items() if key.startswith(ROLE_PREFIX)
    }


def encode_in_batches(backend: tokenizers.Tokenizer, pieces: Iterable[str]) -> Iterator[list[int]]:
    """The numbers of each piece. What the library keeps of a piece is large, so it never has too many at once."""
    turn: list[str] = []
    characters = 0
    for piece in itertools.chain(pieces, [None]):
        if turn and (piece is None or characters + len(piece) > BATCH_CHARACTERS):
            yield from _encode(backend, turn)
            turn, characters = [], 0
        if piece is not None:
            turn.append(piece)
            characters += len(piece)


def _is_rust_panic(error: BaseException) -> bool:
    return type(error).__name__ == "PanicException"


def _encode(backend: tokenizers.Tokenizer, texts: list[str]) -> list[list[int]]:
    try:
        return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]
    except BaseException as error:
        # A file may lack the token for what is unknown. The library is written in Rust, whose panics are no Exceptions;
        # a pattern that tries too long ends in one.
        if isinstance(error, MemoryError) or not (isinstance(error, Exception) or _is_rust_panic(error)):
            raise
        raise UsageError(f"This tokenizer fails on a text: {str(error)[:200]}. Is it whose it says it is?") from error
