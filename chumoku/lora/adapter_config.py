"""adapter_config.json: what PEFT says about an adapter, read with suspicion.

    s = lora_alpha / r, or lora_alpha / √r with use_rslora;   rank_pattern, alpha_pattern: where r and α are others

Keys that say how an adapter was made do not matter once it is there; keys that change what it computes are either
understood or refused by name, and so is any key that is not known.
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
# Starts that leave the base alone, beside true and false; others (pissa, olora, loftq …) take something out of it.
PLAIN_INITS = ("gaussian", "eva", "orthogonal")
KNOWN_KEYS = (
    *("peft_type", "base_model_name_or_path", "r", "lora_alpha", "lora_dropout", "use_dora", "use_rslora"),
    *("rank_pattern", "alpha_pattern", "bias", "init_lora_weights"),
)
# How it was made, or which modules it has, which the tensors' names say too.
IGNORED_KEYS = (
    *("task_type", "auto_mapping", "revision", "inference_mode", "peft_version", "fan_in_fan_out", "target_modules"),
    *("exclude_modules", "layers_to_transform", "layers_pattern", "runtime_config", "megatron_core"),
    *("eva_config", "loftq_config", "qalora_group_size", "ensure_weight_tying"),
)


class AdapterConfig(NamedTuple):
    """An adapter as its config has it."""

    base: str  # the model it was made for
    rank: int
    alpha: float
    stabilised: bool
    dora: bool
    dropout: float
    ranks: Mapping[str, int]  # where they differ, by module or the end of its name
    alphas: Mapping[str, float]

    def rank_of(self, module: str) -> int:
        return self.ranks.get(_find_key(self.ranks, module), self.rank)

    def alpha_of(self, module: str) -> float:
        return self.alphas.get(_find_key(self.alphas, module), self.alpha)


def read_adapter_config(folder: Path | str) -> AdapterConfig:
    """Read the config of an adapter's folder, or say which key stands in the way."""
    folder = Path(folder)
    if not (folder / CONFIG).is_file():
        raise UsageError(f"{folder} is no adapter: it holds no {CONFIG}. Name a folder that `lora.save` or PEFT wrote.")
    if not (folder / WEIGHTS).is_file():
        if (folder / PICKLED).is_file():
            raise UsageError(
                f"{folder / PICKLED} is a pickled file, which can run programs when it is opened. Convert it "
                "where you trust it: PeftModel.from_pretrained(base, folder).save_pretrained(folder) of the PEFT "
                f"library writes {WEIGHTS}."
            )
        raise UsageError(f"{folder} is no adapter: it holds no {WEIGHTS}.")
    path = folder / CONFIG
    check_links(folder)
    values = read_json(path, largest=LARGEST_CONFIG)
    obstacles = [f"{key} = {json.dumps(values.get(key))[:80]} {reason}" for key, reason in _find_unsupported(values)]
    if obstacles:
        raise UsageError(f"{path}: {'; '.join(obstacles[:9])}.")
    return AdapterConfig(
        base=str(values.get("base_model_name_or_path") or "")[:1000],
        rank=_read_rank(path, "r", values.get("r", 8)),
        alpha=_read_alpha(path, "lora_alpha", values.get("lora_alpha", 8)),
        stabilised=_read_flag(path, "use_rslora", values),
        dora=_read_flag(path, "use_dora", values),
        dropout=_read_dropout(path, values.get("lora_dropout") or 0.0),
        ranks={key: _read_rank(path, "rank_pattern", one) for key, one in _read_pattern(path, values, "rank_pattern")},
        alphas={
            key: _read_alpha(path, "alpha_pattern", one) for key, one in _read_pattern(path, values, "alpha_pattern")
        },
    )


def _find_unsupported(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Keys that make this more than LoRA or DoRA, and why each cannot be taken."""
    found = []
    if values.get("peft_type") != "LORA":
        found.append(("peft_type", "is no LoRA adapter, and others are not known here"))
    if values.get("bias", "none") != "none":
        found.append(("bias", "trained the base's biases too, which an adapter here leaves alone"))
    start = values.get("init_lora_weights", True)
    if not isinstance(start, bool) and start not in PLAIN_INITS:
        found.append(("init_lora_weights", "took a part out of the base, which is not the base that is here"))
    for key, value in values.items():
        if key not in KNOWN_KEYS and key not in IGNORED_KEYS and value not in (None, False, [], {}):
            found.append((key, "changes what the adapter computes in a way that is not known here"))
    return found


def _read_pattern(path: Path, values: Mapping[str, Any], key: str) -> list[tuple[str, Any]]:
    table = values.get(key) or {}
    if not isinstance(table, dict):
        raise DamagedError(f"{path}: {key} is no table.")
    for name in table:
        # Theirs are regular expressions, which a stranger can make run for years. Names are enough.
        if not re.fullmatch(r"\^?[\w.\\-]{1,500}", name) or re.search(r"\\[^.]|\\$", name):
            raise UsageError(f"{path}: {key} has the key {name[:80]!r}, and only modules' names are taken there.")
    return list(table.items())


def _find_key(table: Iterable[str], module: str) -> str:
    """The first name in the table that is this module's, or the end of it."""
    for key in table:
        name = key.replace("\\.", ".")
        if name.removeprefix("^") == module or (name[0] != "^" and module.endswith(f".{name}")):
            return key
    return ""


def _read_rank(path: Path, key: str, value: Any) -> int:
    if type(value) is not int or not 1 <= value <= LARGEST_RANK:
        raise DamagedError(f"{path}: {key} has {str(value)[:60]!r} for a rank; it is from 1 to {LARGEST_RANK:,}.")
    return value


def _read_alpha(path: Path, key: str, value: Any) -> float:
    if type(value) not in (int, float) or not 0 < abs(value) <= LARGEST_ALPHA:
        shown = str(value)[:60]
        raise DamagedError(f"{path}: {key} has {shown!r} for an alpha; a number up to 1e9 is needed, and not 0.")
    return float(value)


def _read_flag(path: Path, key: str, values: Mapping[str, Any]) -> bool:
    value = values.get(key)
    if value not in (None, True, False):
        raise DamagedError(f"{path}: {key} is {str(value)[:60]!r}, which is neither true nor false.")
    return bool(value)


def _read_dropout(path: Path, value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < 1:
        raise DamagedError(f"{path}: lora_dropout is {str(value)[:60]!r}; a share from 0 to below 1 is needed.")
    return float(value)
