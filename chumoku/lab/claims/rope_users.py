"""Rotary positions: shifting all positions changes nothing; scaling them does."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import torch

from chumoku.lab.experiment import FAILS, HOLDS, PARTLY, Budget, Correction, Outcome, Words

# Results of the measurement below, for use if transformers is not installed.
RECORDED = {"GPT-Neo": False, "LLaMA": True, "GPT-J": True, "GPT-NeoX": True}
NOTE_VALUES = ("GPT-Neo", "LLaMA")

_SIZES = {
    "bos_token_id": 1,
    "eos_token_id": 2,
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "max_position_embeddings": 61,
}
_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT-Neo": (
        "GPTNeo",
        {"num_layers": 2, "num_heads": 4, "attention_types": [[["global"], 2]], "intermediate_size": 64},
    ),
    "LLaMA": ("Llama", {"num_attention_heads": 4, "intermediate_size": 64}),
    "GPT-J": (
        "GPTJ",
        {
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 61,
            "rotary_dim": 8,
            "vocab_size": 97,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "GPT-NeoX": ("GPTNeoX", {"num_attention_heads": 4, "intermediate_size": 64}),
}


def run(budget: Budget) -> Outcome:
    installed = importlib.util.find_spec("transformers") is not None
    changes = {name: measure_changes(name) for name in _FAMILIES} if installed else {}
    rotary = {name: moved < 1e-4 < scaled for name, (moved, scaled) in changes.items()} if installed else RECORDED
    numbers: dict[str, Any] = {
        "rotary": rotary,
        "change_when_moved_by_11_and_when_doubled": {name: list(pair) for name, pair in changes.items()},
        "how": f"measured, transformers {importlib.import_module('transformers').__version__}"
        if installed
        else "recorded",
        "seeds": [0],
    }
    yes = ", ".join(name for name, is_rotary in rotary.items() if is_rotary)
    no = ", ".join(name for name, is_rotary in rotary.items() if not is_rotary)
    moved = f"{changes['GPT-Neo'][0]:.2f}" if installed else "much"
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"Rotary: {yes}. Not rotary: {no}, which has a learned table; its output changes by {moved} when all "
            "positions are shifted.",
            f"RoPE を使うのは {yes} です。{no} は学習された位置の表を持ち、位置をずらすと出力が変わります"
            + (f"(最大 {moved})。" if installed else "。"),
        ),
        when=Words("LLaMA (or GPT-J, GPT-NeoX) is meant", "LLaMA(または GPT-J、GPT-NeoX)のとき"),
        correction=Correction(
            "GPT-Neo, LLaMA",
            yes,
            Words(
                "GPT-Neo adds wpe, a learned table, to the embedding", "GPT-Neo は学習された表 wpe を埋め込みに足します"
            ),
        ),
    )


def measure_changes(name: str) -> tuple[float, float]:
    """How much the output of a small model changes when all positions are shifted by 11, and when they are doubled."""
    import transformers

    family, settings = _FAMILIES[name]
    sizes = settings if "n_embd" in settings else {**_SIZES, **settings}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        config = getattr(transformers, f"{family}Config")(**sizes)
        model = getattr(transformers, f"{family}Model")(config).eval()
        for theta in model.parameters():
            torch.nn.init.normal_(theta, std=0.3)
        tokens, positions = torch.arange(7)[None] + 5, torch.arange(7)[None]
        plain, moved, scaled = (
            model(tokens, position_ids=given).last_hidden_state for given in (positions, positions + 11, positions * 2)
        )
    return float((moved - plain).abs().max()), float((scaled - plain).abs().max())


def judge(numbers: dict[str, Any]) -> str:
    named = [numbers["rotary"][name] for name in NOTE_VALUES]
    if all(named):
        return HOLDS
    return PARTLY if any(named) else FAILS
