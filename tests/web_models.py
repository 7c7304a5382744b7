"""Small random models of every choice, and the modules of a web page in Chromium, which compute the same."""

from __future__ import annotations

import base64
import os
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from browser import module_page
from torch import Tensor

from chumoku.errors import ConfigError
from chumoku.models.build import build
from chumoku.models.config import ModelConfig, RotarySettings, SinusoidalSettings
from chumoku.models.model import Model
from chumoku.web.container import prepare_model

RANDOM_MODELS = int(os.environ.get("CHUMOKU_MODELS", "7"))  # in the tests of random models
VOCABULARY, SOURCE_VOCABULARY, CONTEXT = 29, 31, 23
SCALED = (
    RotarySettings(scaling="linear", factor=3.0),
    RotarySettings(scaling="llama3", factor=7.0, original=11, high=5.0),
    RotarySettings(scaling="yarn", factor=4.0, high=8.0, original=16, attention_factor=1.3),
    RotarySettings(
        scaling="longrope", factor=3.0, original=7, short_factors=[1.0] * 5, long_factors=[1.0, 1.3, 2.0, 3.7, 5.0]
    ),
)
# Every setting that changes what a model computes. What does not fit together is drawn again.
CHOICES: dict[str, tuple[Any, ...]] = {
    "kind": ("decoder", "encoder", "encoder-decoder"),
    "source_vocabulary": (None, None, None, SOURCE_VOCABULARY),
    "width": (30, 64),
    "layers": (2,),
    "encoder_layers": (None, None, 1),
    "heads": (3, 2),
    "kv_heads": (None, 1),
    "head_width": (10, 14, None),
    "feedforward": ("relu", "gelu", "gelu_tanh", "silu", "geglu", "geglu_tanh", "swiglu"),
    "feedforward_width": (37, None),
    "experts": (0, 0, 0, 5),
    "experts_per_token": (2, 3),
    "normalize_experts": (True, True, False),
    "shared_expert_width": (None, None, 41),
    "position": ("rotary", "sinusoidal", "learned", "relative", "relative_bias", "alibi", "none", "rotary"),
    "pairing": ("interleaved", "half"),
    "relative_clip": (4,),
    "relative_buckets": (7, 12),
    "relative_max_distance": (11, 7),
    "sinusoidal": (SinusoidalSettings(), SinusoidalSettings(endpoint=True, start=2)),
    "rotary": (
        *(RotarySettings(), RotarySettings(), RotarySettings(), RotarySettings(base=77.0, local_base=19.0)),
        *(RotarySettings(share=0.4), *SCALED),
    ),
    "no_position_every": (None, None, None, 2),
    "attention_window": (None, 3),
    "full_attention_every": (None, None, 2),
    "full_attention_first": (False, False, True),
    "attention_bias": (None, "qkv", "none", "all"),
    "query_key_norm": ("none", "head", "all"),
    "attention_scale": (None, 0.4),
    "score_cap": (None, 3.0),
    "norm": ("layer", "rms", "batch"),
    "norm_epsilon": (1e-5, 0.01),
    "norm_bias": (True, True, False),
    "first_norm": (True, True, False),
    "norm_unit_offset": (False, False, True),
    "placement": ("pre", "post", "output", "sandwich"),
    "parallel": (False, False, True),
    "shared_norm": (False, False, True),
    "bias": (True, False),
    "scale_embedding": (False, True),
    "embedding_norm": (False, True),
    "segments": (0, 0, 0, 3),
    "share_embeddings": (False, False, False, True),
    "tie_output": (True, False),
    "output_bias": (False, True),
    "scale_logits": (False, True),
    "logit_cap": (None, 5.0),
    "head": (None, None, None, "vector", "classes", "tags"),
    "classifier_activation": (None, None, None, "tanh", "relu", "gelu", "gelu_tanh", "silu"),
    "classifier_bias": (True, True, False),
    "classifier_norm": (False, False, True),
    "label_bias": (True, True, False),
    "pooling": ("mean", "first", "last"),
    "normalize": (True, False),
}


LABELS = ("a", "b", "c", "d", "e", "f", "g")
TOGETHER = (("kind", "position"), ("kind", "placement"), ("kind", "head"), ("position", "pairing"), ("experts", "bias"))
ONLY_WITH = {
    **{"rotary": ("position", "rotary"), "sinusoidal": ("position", "sinusoidal")},
    **{"relative_buckets": ("position", "relative_bias"), "relative_max_distance": ("position", "relative_bias")},
    **{"experts_per_token": ("experts", 5), "pooling": ("kind", "encoder"), "normalize": ("head", "vector")},
}


def random_config(draw: random.Random) -> ModelConfig:
    """Settings drawn at random; those that do not fit the others become the default."""
    while True:
        drawn = {key: draw.choice(values) for key, values in CHOICES.items()}
        if drawn["head"] in ("classes", "tags"):
            drawn["labels"] = LABELS
        while True:
            try:
                return ModelConfig(vocabulary=VOCABULARY, context=CONTEXT, initialization="xavier", **drawn)
            except ConfigError as error:
                wrong = {problem.key.split(".")[0] for problem in error.problems} & set(drawn)
                if not wrong:
                    break
                drawn = {key: value for key, value in drawn.items() if key not in wrong}


def covering_configs(
    seed: int = 0, candidates: int = 500, *, accept: Callable[[ModelConfig], bool] = lambda config: True
) -> list[ModelConfig]:
    """A few configs that together have every value of every setting, and every pair of values of TOGETHER."""
    draw = random.Random(seed)
    configs = (random_config(draw) for _ in range(candidates))
    drawn = [(config, values_of(config)) for config in configs if accept(config)]
    missing, chosen = set.union(*(values for _, values in drawn)), []
    while missing:
        config, values = max(drawn, key=lambda pair: len(pair[1] & missing))
        missing -= values
        chosen.append(config)
    return chosen


def values_of(config: ModelConfig) -> set[tuple[str, ...]]:
    """Every setting that has an effect, with its value, and the pairs of TOGETHER."""
    keys = [
        (key,) for key in CHOICES if key not in ONLY_WITH or getattr(config, ONLY_WITH[key][0]) == ONLY_WITH[key][1]
    ]
    return {(*names, *(repr(getattr(config, name)) for name in names)) for names in (*keys, *TOGETHER)}


def build_random(config: ModelConfig, precision: str) -> Model:
    """A model whose parameters are all random, none of them 0 or 1, with the weights of a page."""
    model = build(config)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if tensor.ndim == 1 or name.endswith("_bias"):
                noise = torch.rand(tensor.shape, generator=generator)
                # A batch norm divides by what was measured in training, so with random numbers vectors could grow.
                tensor.copy_(9 + noise if name.endswith("variance") else noise + (0.5 if "gamma" in name else -0.5))
    return prepare_model(model, precision)


ENTRY = """
import { Container, halfToFloat } from "./container.js";
import { Model } from "./model.js";
import { ACTIVATIONS, activate } from "./nn/activations.js";
import { multiply } from "./nn/products.js";
import { JavaScriptEngine } from "./session.js";
window.modules = { Container, Model, JavaScriptEngine, halfToFloat, ACTIVATIONS, activate, multiply };
"""
# Numbers travel as base64 of float32: page.evaluate would send a list of them as text.
HELPERS = """
window.toBase64 = (array) => {
  const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
  let text = "";
  for (let at = 0; at < bytes.length; at += 32768) text += String.fromCharCode(...bytes.subarray(at, at + 32768));
  return btoa(text);
};
window.send = ({ shape, data }) => ({ shape, data: toBase64(data) });
window.toBytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer;
window.toFloats = (text) => new Float32Array(toBytes(text));
window.openModel = (text) => new modules.Model(new modules.Container(toBytes(text)));
"""


@contextmanager
def twin_page(browser: Any, *, entry: str = ENTRY) -> Iterator[Any]:
    """A page with the modules of a web page's models; `entry` sets window.modules."""
    with module_page(browser, entry, more=HELPERS) as page:
        yield page


def to_text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def floats_to_text(numbers: Tensor) -> str:
    return to_text(numbers.contiguous().numpy().tobytes())


def text_to_floats(text: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.float32)


def to_tensor(received: Mapping[str, Any]) -> Tensor:
    """A tensor that the page sent."""
    return text_to_floats(received["data"]).view(received["shape"])
