"""Read PEFT's adapter_config.json, an untrusted file.

    s = lora_alpha / r, or lora_alpha / √r with use_rslora;   rank_pattern, alpha_pattern: other r and α per module

Keys about how an adapter was trained are ignored. Keys that change what it computes are either supported or refused by
name, and so is any unknown key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from chumoku.errors import DamagedError, UsageError
from chumoku.safe_files import check_links, read_json

CONFIG, WEIGHTS, PICKLED = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
LARGEST_CONFIG = 1 << 20
LARGEST_RANK, LARGEST_ALPHA = 1 << 16, 1e9
# Besides true and false, the values of init_lora_weights that do not change the base (unlike pissa, olora, loftq …).
PLAIN_INITS = ("gaussian", "eva", "orthogonal")
KNOWN_KEYS = (
    *("peft_type", "base_model_name_or_path", "r", "lora_alpha", "lora_dropout", "use_dora", "use_rslora"),
    *("rank_pattern", "alpha_pattern", "bias", "init_lora_weights"),
)
# How the adapter was trained, or which modules it has, which the tensors' names tell too.
IGNORED_KEYS = (
    *("task_type", "auto_mapping", "revision", "inference_mode", "peft_version", "fan_in_fan_out", "target_modules"),
    *("exclude_modules", "layers_to_transform", "layers_pattern", "runtime_config", "megatron_core"),
    *("eva_config", "loftq_config", "qalora_group_size", "ensure_weight_tying"),
)


class AdapterConfig(NamedTuple):
    """The supported values of an adapter_config.json."""

    base: str  # the model that the adapter was trained on
    rank: int
    alpha: float
    stabilized: bool
    dora: bool
    dropout: float
    ranks: Mapping[str, int]  # exceptions, by a module's name or the end of it
    alphas: Mapping[str, float]

    def rank_of(self, module: str) -> int:
        return self.ranks.get(_find_key(self.ranks, module), self.rank)

    def alpha_of(self, module: str) -> float:
        return self.alphas.get(_find_key(self.alphas, module), self.alpha)


def read_adapter_config(folder: Path | str) -> AdapterConfig:
    """Read the config of an adapter's folder; unsupported keys are refused by name."""
    folder = Path(folder)
    if not (folder / CONFIG).is_file():
        raise UsageError(f"{folder} is not an adapter: it has no {CONFIG}. Give a folder that lora.save or PEFT wrote.")
    if not (folder / WEIGHTS).is_file():
        if (folder / PICKLED).is_file():
            raise UsageError(
                f"{folder / PICKLED} is a pickle file, which is never opened because it can run any code. If you trust "
                f"it, convert it with PEFT: PeftModel.from_pretrained(base, folder).save_pretrained(folder) writes "
                f"{WEIGHTS}."
            )
        raise UsageError(f"{folder} is not an adapter: it has no {WEIGHTS}.")
    path = folder / CONFIG
    check_links(folder)
    values = read_json(path, max_bytes=LARGEST_CONFIG)
    if problems := _find_unsupported(values):
        raise UsageError(f"{path}: {' '.join(problems[:9])}")
    ranks, alphas = (_read_pattern(path, values, key) for key in ("rank_pattern", "alpha_pattern"))
    return AdapterConfig(
        base=str(values.get("base_model_name_or_path") or "")[:1000],
        rank=_read_rank(path, "r", values.get("r", 8)),
        alpha=_read_alpha(path, "lora_alpha", values.get("lora_alpha", 8)),
        stabilized=_read_flag(path, "use_rslora", values),
        dora=_read_flag(path, "use_dora", values),
        dropout=_read_dropout(path, values.get("lora_dropout") or 0.0),
        ranks={key: _read_rank(path, "rank_pattern", value) for key, value in ranks},
        alphas={key: _read_alpha(path, "alpha_pattern", value) for key, value in alphas},
    )


def _find_unsupported(values: Mapping[str, Any]) -> list[str]:
    """A sentence for each key with an unsupported value."""

    def show(key: str) -> str:
        return f"{key} = {json.dumps(values.get(key))[:80]}"

    found = []
    if values.get("peft_type") != "LORA":
        found.append(f"{show('peft_type')} is not supported; only LORA is.")
    if values.get("bias", "none") != "none":
        found.append(f"{show('bias')} is not supported: it also trained the base model's biases.")
    init = values.get("init_lora_weights", True)
    if not isinstance(init, bool) and init not in PLAIN_INITS:
        found.append(f"{show('init_lora_weights')} is not supported: it changed the base model's weights.")
    for key, value in values.items():
        if key not in KNOWN_KEYS and key not in IGNORED_KEYS and value not in (None, False, [], {}):
            found.append(f"{show(key)} is not supported: it may change what the adapter computes.")
    return found


def _read_pattern(path: Path, values: Mapping[str, Any], key: str) -> list[tuple[str, Any]]:
    table = values.get(key) or {}
    if not isinstance(table, dict):
        raise DamagedError(f"{path}: {key} must be an object.")
    for name in table:
        # PEFT allows any regular expression here, which can take exponential time; we allow only module names.
        if not re.fullmatch(r"\^?[\w.\\-]{1,500}", name) or re.search(r"\\[^.]|\\$", name):
            raise UsageError(f"{path}: {key} has the key {name[:80]!r}; only module names are supported there.")
    return list(table.items())


def _find_key(table: Iterable[str], module: str) -> str:
    """The first key that is the module's name or the end of it, or ""."""
    for key in table:
        name = key.replace("\\.", ".")
        if name.removeprefix("^") == module or (name[0] != "^" and module.endswith(f".{name}")):
            return key
    return ""


def _read_rank(path: Path, key: str, value: Any) -> int:
    if type(value) is not int or not 1 <= value <= LARGEST_RANK:
        raise DamagedError(f"{path}: {key} has the rank {str(value)[:60]!r}; it must be from 1 to {LARGEST_RANK:,}.")
    return value


def _read_alpha(path: Path, key: str, value: Any) -> float:
    if type(value) not in (int, float) or not 0 < abs(value) <= LARGEST_ALPHA:
        shown = str(value)[:60]
        raise DamagedError(f"{path}: {key} has the alpha {shown!r}; it must be a number up to 1e9 and not 0.")
    return float(value)


def _read_flag(path: Path, key: str, values: Mapping[str, Any]) -> bool:
    value = values.get(key)
    if value not in (None, True, False):
        raise DamagedError(f"{path}: {key} is {str(value)[:60]!r}; it must be true or false.")
    return bool(value)


def _read_dropout(path: Path, value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < 1:
        raise DamagedError(f"{path}: lora_dropout is {str(value)[:60]!r}; it must be at least 0 and below 1.")
    return float(value)
