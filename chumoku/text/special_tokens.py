"""Special tokens by role (pad, begin, end, unknown, mask, language), whatever their names are in a tokenizer.

Ours are <pad> <s> </s> <unk> <mask>, and <2en> for "into English". `NAMES` lists the names in other tokenizers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from chumoku.errors import UsageError, did_you_mean

PAD, BEGIN, END, UNKNOWN, MASK = OURS = ("<pad>", "<s>", "</s>", "<unk>", "<mask>")

NAMES: dict[str, tuple[str, ...]] = {
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|endoftext|>", "<|finetune_right_pad_id|>"),
    "begin": ("<s>", "[CLS]", "<bos>", "<|begin_of_text|>", "<|im_start|>", "<|endoftext|>"),
    "end": ("</s>", "[SEP]", "<eos>", "<|end_of_text|>", "<|im_end|>", "<|endoftext|>"),
    "unknown": ("<unk>", "[UNK]"),
    "mask": ("<mask>", "[MASK]"),
}
# Before the source of a translation into that language.
LANGUAGE = re.compile(r"<2([a-zA-Z]{2,3}(?:[-_][a-zA-Z0-9]+)*)>|>>([a-zA-Z]{2,3}(?:[-_][a-zA-Z0-9]+)*)<<")

SENTINEL = re.compile(r"<extra_id_(\d{1,6})>")  # a span of text that is left out, as in T5

# Around a source of that language, and first in a translation: M2M100, mBART, NLLB.
TEXT_LANGUAGE = re.compile(r"__([a-z]{2,3})__|([a-z]{2}_[A-Z]{2})|([a-z]{3}_[A-Z][a-z]{3})")


@dataclass(frozen=True)
class Roles:
    """The token id for each role, or None if the tokenizer has no such token."""

    pad: int | None = None
    begin: int | None = None
    end: int | None = None
    unknown: int | None = None
    mask: int | None = None
    source_begin: int | None = None  # before every source of a translator
    forced_begin: int | None = None  # of a translation, after begin
    languages: Mapping[str, int] = field(default_factory=dict)
    text_languages: Mapping[str, int] = field(default_factory=dict)

    @property
    def end_tokens(self) -> list[int]:
        """[end], or [] if there is no end token."""
        return [] if self.end is None else [self.end]


def find_roles(tokens: Mapping[str, int], overrides: Mapping[str, int] | None = None) -> Roles:
    """Roles from the names of special tokens (name → id). `overrides` (role → id) takes precedence over names."""
    roles = {role: next((tokens[name] for name in names if name in tokens), None) for role, names in NAMES.items()}
    if roles["begin"] is None and END in tokens:
        roles["begin"] = tokens.get(PAD)  # the decoders of T5 and Marian start with <pad>
    roles |= {"source_begin": None, "forced_begin": None}  # only a model's files say whether it needs them
    roles |= {role: token_id for role, token_id in (overrides or {}).items() if role in roles}
    languages, text_languages = (_match_languages(pattern, tokens) for pattern in (LANGUAGE, TEXT_LANGUAGE))
    return Roles(**roles, languages=languages, text_languages=text_languages)


def _match_languages(pattern: re.Pattern[str], tokens: Mapping[str, int]) -> dict[str, int]:
    matched = {token: pattern.fullmatch(token) for token in tokens}
    return {next(filter(None, match.groups())): tokens[token] for token, match in matched.items() if match}


def find_language(languages: Mapping[str, int], code: str) -> int:
    """The token of a language; an error suggests a similar code and lists all."""
    if code not in languages:
        near = did_you_mean(code, languages, cutoff=0.55)
        known = ", ".join(languages) or "none"
        raise UsageError(
            f"This tokenizer has no language '{code[:40]}'. {near}{' ' if near else ''}Its languages: {known}."
        )
    return languages[code]


def language_token(code: str) -> str:
    return f"<2{code}>"


def special_tokens(languages: Iterable[str] = (), sentinels: int = 0) -> list[str]:
    """Our special tokens, in the order of their ids."""
    tokens = [language_token(code) for code in ([languages] if isinstance(languages, str) else languages)]
    for token in tokens:
        if LANGUAGE.fullmatch(token) is None:
            raise UsageError(f"'{token[2:-1]}' is not a language code. Use a code such as ja, en or zh-Hans.")
    return [*OURS, *tokens, *(f"<extra_id_{number}>" for number in range(sentinels))]
