"""chumoku (注目, "attention"): build, train, run and look inside Transformers.

The public names below are imported when first used, so that `import chumoku` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "ModelConfig": "chumoku.models.config",
    "preset": "chumoku.models.presets",
    "build": "chumoku.models.build",
    "count": "chumoku.models.count",
    "load": "chumoku.pipeline",
    "save": "chumoku.save_model",
    "Pipeline": "chumoku.pipeline",
    "Tokenizer": "chumoku.text.tokenizer",
    "SamplingOptions": "chumoku.decoding.sampling",
    "Cache": "chumoku.nn.cache",
    "Tape": "chumoku.nn.tap",
    "TrainEvent": "chumoku.training.loop",
    "TrainResult": "chumoku.training.run",
    "build_index": "chumoku.search",
    "open_index": "chumoku.search",
    "compare_choices": "chumoku.compare.run",
    "convert": "chumoku.weights.convert",
    "diff": "chumoku.model_diff.diff",
    "push": "chumoku.weights.push",
    "train": "chumoku.training.run",
    "plain": "chumoku.nn.plain",
    "record": "chumoku.nn.tap",
    "addresses": "chumoku.nn.tap",
    "logit_lens": "chumoku.probe.lens",
    "attention_rollout": "chumoku.probe.attention",
    "patch": "chumoku.probe.patching",
    "ablate": "chumoku.probe.patching",
    "ChumokuError": "chumoku.errors",
}
# Subpackages that `import chumoku` gives access to, as in chumoku.nn.Attention.
_PACKAGES = (
    "compare",
    "data",
    "decoding",
    "errors",
    "evaluation",
    "lora",
    "models",
    "nn",
    "probe",
    "text",
    "training",
    "weights",
)
__all__ = [
    "Cache",
    "ChumokuError",
    "ModelConfig",
    "Pipeline",
    "SamplingOptions",
    "Tape",
    "Tokenizer",
    "TrainEvent",
    "TrainResult",
    "ablate",
    "addresses",
    "attention_rollout",
    "build",
    "build_index",
    "compare_choices",
    "convert",
    "count",
    "diff",
    "load",
    "logit_lens",
    "open_index",
    "patch",
    "plain",
    "preset",
    "push",
    "record",
    "save",
    "train",
]

if TYPE_CHECKING:
    from chumoku.compare.run import compare_choices
    from chumoku.decoding.sampling import SamplingOptions
    from chumoku.errors import ChumokuError
    from chumoku.model_diff.diff import diff
    from chumoku.models.build import build
    from chumoku.models.config import ModelConfig
    from chumoku.models.count import count
    from chumoku.models.presets import preset
    from chumoku.nn.cache import Cache
    from chumoku.nn.plain import plain
    from chumoku.nn.tap import Tape, addresses, record
    from chumoku.pipeline import Pipeline, load
    from chumoku.probe.attention import attention_rollout
    from chumoku.probe.lens import logit_lens
    from chumoku.probe.patching import ablate, patch
    from chumoku.save_model import save
    from chumoku.search import build_index, open_index
    from chumoku.text.tokenizer import Tokenizer
    from chumoku.training.loop import TrainEvent
    from chumoku.training.run import TrainResult, train
    from chumoku.weights.convert import convert
    from chumoku.weights.push import push


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"chumoku.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'chumoku' has no attribute '{name}'; it offers {', '.join(__all__)}.")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, *_PACKAGES])
