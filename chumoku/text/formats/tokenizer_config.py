"""tokenizer_config.json: which token has which role, which tokens are added around a text, and the chat template.

    bos_token, eos_token, pad_token, mask_token, unk_token     names, as "</s>" or {"content": "</s>"}
    cls_token, sep_token                                       BERT's names for begin and end
    add_bos_token, add_eos_token                               used if the tokenizer's own file does not say
    model_max_length                                           the maximum number of tokens
    chat_template                                              a string, or a list of {name, template}

A template can also be in a file of its own, chat_template.jinja, which comes first, or chat_template.json. The file is
only parsed as JSON: templates in it are not run here (`text.chat_template`), classes in it are not loaded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from chumoku.errors import UsageError
from chumoku.text.backend import prefix_and_suffix_names, set_prefix_and_suffix
from chumoku.text.chat_template import ChatTemplate, parse_chat_template, template_settings
from chumoku.text.special_tokens import find_roles
from chumoku.text.tokenizer import Tokenizer

SETTINGS, TOKENIZER = "tokenizer_config.json", "tokenizer.json"
TEMPLATE, TEMPLATE_JSON = "chat_template.jinja", "chat_template.json"
MAX_BYTES = 1 << 24
KEYS = {
    "begin": ("bos_token", "cls_token"),
    "end": ("eos_token", "sep_token"),
    "pad": ("pad_token",),
    "mask": ("mask_token",),
    "unknown": ("unk_token",),
}
# Classes that add a begin or an end token if the file does not say.
ADDS_BOS = ("LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer", "CodeLlamaTokenizerFast")
ADDS_EOS = ("T5Tokenizer", "T5TokenizerFast")


def read_settings(folder: Path, name: str = SETTINGS) -> dict[str, Any]:
    """The content of tokenizer_config.json or another JSON file beside it, or {} if there is no such file."""
    path = folder / name
    if not path.is_file():
        return {}
    try:
        settings_read = json.loads(_read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {str(error)[:200]}. Is the file complete?") from error
    if not isinstance(settings_read, dict):
        raise UsageError(f"{path} is not a JSON object. Is the file complete?")
    return settings_read


def _read_bytes(path: Path) -> bytes:
    if path.stat().st_size > MAX_BYTES:
        raise UsageError(f"{path} has more than {MAX_BYTES:,} bytes, the limit for a tokenizer's settings.")
    return path.read_bytes()


def read_chat_template(folder: Path) -> ChatTemplate | None:
    """The chat template of a tokenizer's folder, if it has one."""
    settings = read_settings(folder)
    if (folder / TEMPLATE).is_file():
        settings["chat_template"] = _read_bytes(folder / TEMPLATE).decode("utf-8", "replace")
    elif not settings.get("chat_template"):
        settings |= read_settings(folder, TEMPLATE_JSON)
    return parse_chat_template(settings)


def token_names(settings: dict[str, Any]) -> dict[str, str]:
    """The token of each role in the settings: role → token."""
    settings_read: dict[str, str] = {}
    for role, keys in KEYS.items():
        values = (settings.get(key) for key in keys)
        texts = (value.get("content") if isinstance(value, dict) else value for value in values)
        name = next((text for text in texts if isinstance(text, str) and text), None)
        if name is not None:
            settings_read[role] = name
    return settings_read


def apply_settings(backend: tokenizers.Tokenizer, settings: dict[str, Any]) -> tokenizers.Tokenizer:
    """Give a backend the roles, prefix and suffix of its settings, and return it."""
    backend.no_padding()
    backend.no_truncation()
    # Other programs would add a missing token, which the model was never trained on; here it gets no role.
    role_tokens = {role: name for role, name in token_names(settings).items() if backend.token_to_id(name) is not None}
    role_tokens.pop("unknown", None)
    added = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    missing = [name for name in role_tokens.values() if name not in added]
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in missing])
    before, after = prefix_and_suffix_names(backend)
    kind = settings.get("tokenizer_class")
    undecided = backend.post_processor is None
    if undecided and "begin" in role_tokens and _get_bool(settings, "add_bos_token", kind in ADDS_BOS):
        before = [role_tokens["begin"]]
    if undecided and "end" in role_tokens and _get_bool(settings, "add_eos_token", kind in ADDS_EOS):
        after = [role_tokens["end"]]
    vocab = {name: backend.token_to_id(name) for name in {*added, *role_tokens.values()}}
    known = find_roles({name: token_id for name, token_id in vocab.items() if token_id is not None})
    unrecognized = {role: name for role, name in role_tokens.items() if vocab[name] != getattr(known, role)}
    if unrecognized or (undecided and (before or after)):
        set_prefix_and_suffix(backend, before, after, unrecognized)
    return backend


def _get_bool(settings: dict[str, Any], key: str, default: bool) -> bool:
    value = settings.get(key)
    return value if isinstance(value, bool) else default


def write_tokenizer(tokenizer: Tokenizer, folder: Path | str, *, context: int) -> None:
    """Write tokenizer.json and tokenizer_config.json for transformers. `context` is the maximum number of tokens."""
    if tokenizer.segments:
        raise UsageError("This tokenizer splits Japanese with a dictionary first, which transformers cannot do.")
    folder = Path(folder)
    tokenizer.save(folder / TOKENIZER)
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
    }
    for role, (key, *_) in KEYS.items():
        token_id = getattr(tokenizer.roles, role)
        settings |= {} if token_id is None else {key: tokenizer.token(token_id)}
    settings |= template_settings(tokenizer.chat_template)
    (folder / SETTINGS).write_text(json.dumps(settings, ensure_ascii=False, indent=1), encoding="utf-8")
