"""The tokenizer inside a GGUF file: its fields `tokenizer.ggml.*`.

    model    gpt2 (byte-level BPE)    llama (SentencePiece BPE)    t5 (Unigram)    bert (WordPiece)
    tokens, token_type                text and type of each token; gpt2: merges, pre; llama, t5: scores
    bos_token_id, eos_token_id …      which token has which role
    add_bos_token, add_eos_token      tokens added around a text
    add_space_prefix …                llama, t5: how spaces are treated
    tokenizer.chat_template           the chat template; others are named in tokenizer.chat_templates

bert writes ▁word for the start of a word, and omits BERT's ##. Fields are untrusted: types, counts and ids are checked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from chumoku.errors import UsageError
from chumoku.text import pretokenizers
from chumoku.text.backend import check_added_tokens, set_prefix_and_suffix
from chumoku.text.chat_template import DEFAULT, ChatTemplate, parse_chat_template
from chumoku.text.formats import sentencepiece as sp
from chumoku.text.formats.gguf_export import NO_MERGES, PREFIX, TEMPLATE, TEMPLATES, to_ggml
from chumoku.text.formats.tokenizer_files import explain_errors, is_uncased
from chumoku.text.special_tokens import find_roles
from chumoku.text.tokenizer import Tokenizer

__all__ = ["from_ggml", "to_ggml"]

MAX_MAP_BYTES = 1 << 24
# The misspelling below is GGUF's own.
ROLE_KEYS = {"begin": "bos_token_id", "end": "eos_token_id", "pad": "padding_token_id", "mask": "mask_token_id"}
SEPARATOR = "seperator_token_id"


def from_ggml(fields: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer described by the metadata of a GGUF file."""
    return explain_errors("The tokenizer in this GGUF file", lambda: _open(_Fields(fields)))


def _read_chat_template(fields: _Fields, roles: Mapping[str, str]) -> ChatTemplate | None:
    """The chat templates, read as those of a tokenizer_config.json."""
    named = fields.named_templates()
    tokens = {"bos_token": roles.get("begin"), "eos_token": roles.get("end"), "pad_token": roles.get("pad")}
    return parse_chat_template({"chat_template": named, **tokens, "unk_token": fields.unknown})


class _Fields:
    """The fields, each checked as it is read."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields
        self.tokens: list[str] = self.values("tokens", (str, bytes))
        if bytes in set(map(type, self.tokens)):
            self.tokens = [token.decode("utf-8") if isinstance(token, bytes) else token for token in self.tokens]
        if not 0 < len(self.tokens) <= sp.MAX_PIECES or max(map(len, self.tokens)) > sp.MAX_PIECE_LENGTH:
            raise ValueError(f"it has {len(self.tokens):,} tokens; 1 to {sp.MAX_PIECES:,} short ones are allowed")
        self.vocab = dict(zip(self.tokens, range(len(self.tokens)), strict=True))
        if len(self.vocab) < len(self.tokens):
            raise ValueError(f"of its {len(self.tokens):,} tokens, only {len(self.vocab):,} are different")
        self.types: list[int] = self.aligned("token_type", (int,), sp.NORMAL)
        kinds = set(self.types) - {sp.NORMAL}
        rare = [(token, kind) for token, kind in zip(self.tokens, self.types, strict=True) if kind in kinds]
        self.control = [token for token, kind in rare if kind == sp.CONTROL]
        self.user = [token for token, kind in rare if kind == sp.USER]
        unknown = next((token for token, kind in rare if kind == sp.UNKNOWN), None)
        self.unknown = unknown or self.token("unknown_token_id")

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        value = self._fields.get(PREFIX + key, default)
        if value is not default and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            raise ValueError(f"{PREFIX}{key} is {str(value)[:40]!r}, which is not of type {kind.__name__}")
        return value

    def values(self, key: str, kinds: tuple[type, ...]) -> list[Any]:
        value = self._fields.get(PREFIX + key)
        if not isinstance(value, list) or not set(map(type, value)) <= {*kinds}:
            names = " or ".join(kind.__name__ for kind in kinds)
            raise ValueError(f"{PREFIX}{key} is missing or not a list of {names}")
        return value

    def aligned(self, key: str, kinds: tuple[type, ...], default: Any) -> list[Any]:
        """A list with one value per token."""
        if PREFIX + key not in self._fields:
            return [default] * len(self.tokens)
        values = self.values(key, kinds)
        if len(values) != len(self.tokens):
            raise ValueError(f"{PREFIX}{key} has {len(values):,} values for {len(self.tokens):,} tokens")
        return values

    def named_templates(self) -> list[dict[str, Any]]:
        """The chat templates by name, the default one first."""
        names = self._fields.get(TEMPLATES, [])
        keys = {DEFAULT: TEMPLATE, **{str(name): f"{TEMPLATE}.{name}" for name in names if isinstance(name, str)}}
        return [{"name": name, "template": self._fields[key]} for name, key in keys.items() if self._fields.get(key)]

    def token(self, key: str, default: int | None = None) -> str | None:
        """The token whose id is stored under a key."""
        token_id = self.get(key, int, default)
        # Some files write −1, signed or unsigned, if there is no such token.
        if token_id is None or token_id in (-1, 0xFFFFFFFF):
            return None
        if not 0 <= token_id < len(self.tokens):
            raise ValueError(f"{PREFIX}{key} is {token_id}, but there are {len(self.tokens):,} tokens")
        return str(self.tokens[token_id])


def _open(fields: _Fields) -> Tokenizer:
    model = fields.get("model", str, "")
    if model not in _MODELS:
        raise UsageError(f"A GGUF tokenizer of model '{model}' cannot be read; {', '.join(_MODELS)} can.")
    check_added_tokens([*fields.control, *fields.user])
    backend = _MODELS[model](fields)
    default_ids = {"begin": 1, "end": 2} if model == "llama" else {}
    roles = {role: fields.token(key, default_ids.get(role)) for role, key in ROLE_KEYS.items()}
    if model == "bert":
        roles["end"] = fields.token(SEPARATOR) or roles["end"]
        roles["begin"] = fields.token("cls_token_id") or roles["begin"]
    role_tokens = {role: name for role, name in roles.items() if name is not None}
    backend.add_special_tokens(_added([*role_tokens.values(), *fields.control], special=True))
    backend.add_tokens(_added(fields.user, special=False))
    gpt2_adds_bos = fields.get("pre", str, "default") in pretokenizers.STARTS_WITH_BOS
    adds_bos = {"llama": True, "bert": True, "gpt2": gpt2_adds_bos}.get(model, False)
    before = [role_tokens["begin"]] if fields.get("add_bos_token", bool, adds_bos) and "begin" in role_tokens else []
    adds_eos = fields.get("add_eos_token", bool, model == "t5") or model == "bert"
    after = [role_tokens["end"]] if adds_eos and "end" in role_tokens else []
    known = find_roles({name: fields.vocab[name] for name in (*role_tokens.values(), *fields.control)})
    unrecognized = {role: name for role, name in role_tokens.items() if fields.vocab[name] != getattr(known, role)}
    set_prefix_and_suffix(backend, before, after, unrecognized)
    tokenizer = Tokenizer(backend, size=len(fields.tokens))
    tokenizer.chat_template = _read_chat_template(fields, role_tokens)
    return tokenizer


def _added(names: list[str], *, special: bool) -> list[AddedToken]:
    return [AddedToken(name, special=special, normalized=False) for name in names if name]


def _gpt2(fields: _Fields) -> tokenizers.Tokenizer:
    pre = fields.get("pre", str, "default")
    if pre not in pretokenizers.PATTERNS:
        raise UsageError(
            f"The tokenizer of this GGUF file has the pre-tokenizer '{pre[:80]}', which is not supported. Supported: "
            f"{', '.join(pretokenizers.PATTERNS)}."
        )
    stored_merges = fields.values("merges", (str,))
    # The library itself checks that both parts and their result are tokens.
    merges = [merge.partition(" ")[::2] for merge in stored_merges] if stored_merges != NO_MERGES else []
    model = models.BPE(vocab=fields.vocab, merges=merges, ignore_merges=pre in pretokenizers.IGNORE_MERGES)
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pretokenizers.build_pretokenizer(pre)
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(fields: _Fields, kind: int) -> tokenizers.Tokenizer:
    scores = fields.aligned("scores", (float, int), 0.0)
    if not all(map(math.isfinite, scores)):
        raise ValueError(f"{PREFIX}scores has values that are not finite")
    pieces = list(map(sp.Piece, fields.tokens, scores, fields.types))
    if fields.unknown is not None and sp.UNKNOWN not in fields.types:
        token_id = fields.vocab[fields.unknown]
        pieces[token_id] = pieces[token_id]._replace(kind=sp.UNKNOWN)
    character_map = fields._fields.get(PREFIX + "precompiled_charsmap", b"")
    if not isinstance(character_map, (bytes, bytearray, list)) or len(character_map) > MAX_MAP_BYTES:
        raise ValueError(f"{PREFIX}precompiled_charsmap is not a list of bytes")
    return sp.build_backend(
        sp.Model(
            pieces,
            kind,
            byte_fallback=sp.BYTE in fields.types,
            character_map=bytes(byte & 255 for byte in character_map),
            dummy_prefix=fields.get("add_space_prefix", bool, True),
            remove_extra_spaces=fields.get("remove_extra_whitespaces", bool, False),
        )
    )


def _bert(fields: _Fields) -> tokenizers.Tokenizer:
    if fields.unknown is None:
        raise ValueError("it has no unknown token, which WordPiece needs")
    special = {*fields.control, *fields.user, fields.unknown}
    special |= {token for token in fields.tokens if token[:1] == "[" and token[-1:] == "]"}

    def to_wordpiece(token: str) -> str:
        return token if token in special else token[1:] if token.startswith("▁") else f"##{token}"

    tokens = [to_wordpiece(token) for token in fields.tokens]
    vocab = dict(zip(tokens, range(len(tokens)), strict=True))
    if len(vocab) < len(tokens):
        raise ValueError("two of its tokens are the same word")
    backend = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token=fields.unknown))
    backend.normalizer = normalizers.BertNormalizer(lowercase=is_uncased(tokens))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(_added([fields.unknown], special=True))
    return backend


_MODELS = {
    "gpt2": _gpt2,
    "llama": lambda fields: _sentencepiece(fields, sp.BPE),
    "t5": lambda fields: _sentencepiece(fields, sp.UNIGRAM),
    "bert": _bert,
}
