"""Special tokens by role (pad, begin, end, unknown, mask, language), whatever their names are in a tokenizer.

Ours are <pad> <s> </s> <unk> <mask>, and <2en> for "into English". `NAMES` lists the names in other tokenizers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from chumoku.errors import UsageError

PAD, BEGIN, END, UNKNOWN, MASK = OURS = ("<pad>", "<s>", "</s>", "<unk>", "<mask>")

NAMES: dict[str, tuple[str, ...]] = {
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|endoftext|>", "<|finetune_right_pad_id|>"),
    "begin": ("<s>", "[CLS]", "<bos>", "<|begin_of_text|>", "<|im_start|>", "<|endoftext|>"),
    "end": ("</s>", "[SEP]", "<eos>", "<|end_of_text|>", "<|im_end|>", "<|endoftext|>"),
    "unknown": ("<unk>", "[UNK]"),
    "mask": ("<mask>", "[MASK]"),
}
LANGUAGE = re.compile(r"<2([a-zA-Z]{2,3}(?:[-_][a-zA-Z0-9]+)*)>|>>([a-zA-Z]{2,3}(?:[-_][a-zA-Z0-9]+)*)<<")


@dataclass(frozen=True)
class Roles:
    """The token id for each role, or None if the tokenizer has no such token."""

    pad: int | None = None
    begin: int | None = None
    end: int | None = None
    unknown: int | None = None
    mask: int | None = None
    source_begin: int | None = None  # before every source of a translator
    languages: Mapping[str, int] = field(default_factory=dict)

    @property
    def end_tokens(self) -> list[int]:
        """[end], or [] if there is no end token."""
        return [] if self.end is None else [self.end]


def find_roles(tokens: Mapping[str, int], overrides: Mapping[str, int] | None = None) -> Roles:
    """Roles from the names of special tokens (name → id). `overrides` (role → id) takes precedence over names."""
    roles = {role: next((tokens[name] for name in names if name in tokens), None) for role, names in NAMES.items()}
    if roles["begin"] is None and END in tokens:
        roles["begin"] = tokens.get(PAD)  # the decoders of T5 and Marian start with <pad>
    roles["source_begin"] = None  # only a model's files say whether it needs one
    roles |= {role: token_id for role, token_id in (overrides or {}).items() if role in roles}
    matched = {token: LANGUAGE.fullmatch(token) for token in tokens}
    languages = {match[1] or match[2]: tokens[token] for token, match in matched.items() if match}
    return Roles(**roles, languages=languages)


def language_token(code: str) -> str:
    return f"<2{code}>"


def special_tokens(languages: Iterable[str] = ()) -> list[str]:
    """Our special tokens, in the order of their ids."""
    tokens = [language_token(code) for code in ([languages] if isinstance(languages, str) else languages)]
    for token in tokens:
        if LANGUAGE.fullmatch(token) is None:
            raise UsageError(f"'{token[2:-1]}' is not a language code. Use a code such as ja, en or zh-Hans.")
    return [*OURS, *tokens]
