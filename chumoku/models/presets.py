"""Configs of known models: `preset("gpt2")`, or `preset = "gpt2"` in a recipe. Other keys override the preset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chumoku.config import parse_settings
from chumoku.errors import ConfigError, Problem, did_you_mean
from chumoku.models.config import ModelConfig

_TRANSFORMER = {
    "kind": "encoder-decoder",
    "vocabulary": 37000,
    "context": 512,
    "feedforward": "relu",
    "position": "sinusoidal",
    "norm": "layer",
    "norm_epsilon": 1e-6,
    "placement": "post",
    "scale_embedding": True,
    "share_embeddings": True,
    "initialization": "xavier",
}
_GPT2 = {
    "kind": "decoder",
    "vocabulary": 50257,
    "context": 1024,
    "feedforward": "gelu_tanh",
    "position": "learned",
    "norm": "layer",
    "placement": "pre",
    "dropout": {"embedding": 0.1, "attention": 0.1, "sublayer": 0.1},
}
_BERT = {
    "kind": "encoder",
    "vocabulary": 30522,
    "context": 512,
    "feedforward": "gelu",
    "position": "learned",
    "norm": "layer",
    "norm_epsilon": 1e-12,
    "placement": "post",
    "embedding_norm": True,
    "segments": 2,
    "output_bias": True,
    "heads": 12,
    "dropout": {"embedding": 0.1, "attention": 0.1, "sublayer": 0.1},
}
_LLAMA = {
    "kind": "decoder",
    "feedforward": "swiglu",
    "position": "rotary",
    "pairing": "half",
    "norm": "rms",
    "placement": "pre",
    "bias": False,
}
_TINY = {"vocabulary": 512, "context": 128, "width": 64, "layers": 2, "heads": 4, "feedforward_width": 256}

PRESETS: dict[str, dict[str, Any]] = {
    # Vaswani et al. 2017, table 3; 37,000 shared byte-pair tokens.
    "transformer-base": {
        **_TRANSFORMER,
        **{"width": 512, "layers": 6, "heads": 8, "feedforward_width": 2048},
        "dropout": {"embedding": 0.1, "sublayer": 0.1},
    },
    "transformer-big": {
        **_TRANSFORMER,
        **{"width": 1024, "layers": 6, "heads": 16, "feedforward_width": 4096},
        "dropout": {"embedding": 0.3, "sublayer": 0.3},
    },
    "gpt2": {**_GPT2, "width": 768, "layers": 12, "heads": 12},
    "gpt2-medium": {**_GPT2, "width": 1024, "layers": 24, "heads": 16},
    "gpt2-large": {**_GPT2, "width": 1280, "layers": 36, "heads": 20},
    "gpt2-xl": {**_GPT2, "width": 1600, "layers": 48, "heads": 25},
    "bert-base": {**_BERT, "width": 768, "layers": 12},
    "minilm-l6": {**_BERT, "width": 384, "layers": 6, "head": "vector", "output_bias": False},
    # Llama 3.2 1B.
    "llama-1b": {
        **_LLAMA,
        **{"vocabulary": 128256, "context": 131072, "width": 2048, "layers": 16, "heads": 32, "kv_heads": 8},
        "feedforward_width": 8192,
        "rotary": {"base": 500000.0, "scaling": "llama3", "factor": 32.0},
    },
    "smollm2-135m": {
        **_LLAMA,
        **{"vocabulary": 49152, "context": 8192, "width": 576, "layers": 30, "heads": 9, "kv_heads": 3},
        "feedforward_width": 1536,
        "rotary": {"base": 100000.0},
    },
    "tiny-encoder": {**_TINY, "kind": "encoder"},
    "tiny-decoder": {**_TINY, "kind": "decoder"},
    "tiny-encoder-decoder": {**_TINY, "kind": "encoder-decoder", "share_embeddings": True},
}


def preset(name: str, **changes: Any) -> ModelConfig:
    """Return the config of a known model, with some keys changed: `preset("gpt2", layers=2)`."""
    return read_model_config({**changes, "preset": name})


def read_model_config(values: Mapping[str, Any]) -> ModelConfig:
    """Return the config for a recipe's [model] table, which may have the key `preset`."""
    rest = dict(values)
    name = rest.pop("preset", None)
    if name is None:
        return parse_settings(ModelConfig, rest, prefix="model.")
    if not isinstance(name, str) or name not in PRESETS:
        hint = did_you_mean(str(name), PRESETS, f"Choose {', '.join(PRESETS)}.")
        raise ConfigError([Problem("model.preset", f"there is no preset '{str(name)[:60]}'. {hint}")])
    return parse_settings(ModelConfig, deep_merge(PRESETS[name], rest), prefix="model.")


def deep_merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `changes`, merging nested tables."""
    result = dict(base)
    for key, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = deep_merge(result[key], value) if both else value
    return result
