"""tokenizer_config.json: which token has which role, and what stands around a text.

    bos_token, eos_token, pad_token, mask_token, unk_token     names, as "</s>" or {"content": "</s>"}
    cls_token, sep_token                                       BERT's words for the first and the last
    add_bos_token, add_eos_token                               the frame, where the tokenizer's own file has none
    model_max_length                                           how long a text may be

It is read as JSON and nothing else: templates in it are not run, classes in it are not loaded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from chumoku.errors import UsageError
from chumoku.text.backend import prefix_and_suffix_names, set_prefix_and_suffix
from chumoku.text.special_tokens import find_roles
from chumoku.text.tokenizer import Tokenizer

SETTINGS, TOKENIZER = "tokenizer_config.json", "tokenizer.json"
MAX_BYTES = 1 << 24
KEYS = {
    "begin": ("bos_token", "cls_token"),
    "end": ("eos_token", "sep_token"),
    "pad": ("pad_token",),
    "mask": ("mask_token",),
    "unknown": ("unk_token",),
}
# Where the file does not say: classes that put a begin token before, or an end token behind a text.
ADDS_BOS = ("LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer", "CodeLlamaTokenizerFast")
ADDS_EOS = ("T5Tokenizer", "T5TokenizerFast")


def read_settings(folder: Path) -> dict[str, Any]:
    """What tokenizer_config.json says; nothing where there is none."""
    path = folder / SETTINGS
    if not path.is_file():
        return {}
    if path.stat().st_size > MAX_BYTES:
        raise UsageError(f"{path} has more than {MAX_BYTES:,} bytes, and no settings of a tokenizer do.")
    try:
        settings_read = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no JSON: {str(error)[:200]}. Is the file whole?") from error
    if not isinstance(settings_read, dict):
        raise UsageError(f"{path} holds no table of settings. Is the file whole?")
    return settings_read


def token_names(settings: dict[str, Any]) -> dict[str, str]:
    """The token of each role that the settings name."""
    settings_read: dict[str, str] = {}
    for role, keys in KEYS.items():
        values = (settings.get(key) for key in keys)
        texts = (value.get("content") if isinstance(value, dict) else value for value in values)
        name = next((text for text in texts if isinstance(text, str) and text), None)
        if name is not None:
            settings_read[role] = name
    return settings_read


def apply_settings(backend: tokenizers.Tokenizer, settings: dict[str, Any]) -> tokenizers.Tokenizer:
    """The tokenizer with the roles and the frame of its settings."""
    backend.no_padding()
    backend.no_truncation()
    # A name that is no token would be added by others, as one that no model has seen: here it has no role.
    role_tokens = {role: name for role, name in token_names(settings).items() if backend.token_to_id(name) is not None}
    role_tokens.pop("unknown", None)
    added = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    missing = [name for name in role_tokens.values() if name not in added]
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in missing])
    before, after = prefix_and_suffix_names(backend)
    kind = settings.get("tokenizer_class")
    if (
        backend.post_processor is None
        and "begin" in role_tokens
        and _get_bool(settings, "add_bos_token", kind in ADDS_BOS)
    ):
        before = [role_tokens["begin"]]
    if (
        backend.post_processor is None
        and "end" in role_tokens
        and _get_bool(settings, "add_eos_token", kind in ADDS_EOS)
    ):
        after = [role_tokens["end"]]
    numbers = {name: backend.token_to_id(name) for name in {*added, *role_tokens.values()}}
    known = find_roles({name: number for name, number in numbers.items() if number is not None})
    unrecognized = {role: name for role, name in role_tokens.items() if numbers[name] != getattr(known, role)}
    if unrecognized or (backend.post_processor is None and (before or after)):
        set_prefix_and_suffix(backend, before, after, unrecognized)
    return backend


def _get_bool(settings: dict[str, Any], key: str, default: bool) -> bool:
    value = settings.get(key)
    return value if isinstance(value, bool) else default


def write_tokenizer(tokenizer: Tokenizer, folder: Path | str, *, context: int) -> None:
    """tokenizer.json and its settings, as transformers opens them."""
    if tokenizer.segments:
        raise UsageError("This tokenizer cuts Japanese by a dictionary first, which transformers does not.")
    folder = Path(folder)
    tokenizer.save(folder / TOKENIZER)
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
    }
    for role, (key, *_) in KEYS.items():
        number = getattr(tokenizer.roles, role)
        settings |= {} if number is None else {key: tokenizer.token(number)}
    (folder / SETTINGS).write_text(json.dumps(settings, ensure_ascii=False, indent=1), encoding="utf-8")
