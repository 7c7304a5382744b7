"""The keyword arguments of the methods that decode: unknown ones are refused, with a suggestion."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from chumoku.decoding.defaults import MIN_P, MODEL_DEFAULT
from chumoku.decoding.sampling import SamplingOptions
from chumoku.errors import UnknownArgumentError, did_you_mean
from chumoku.models.generation_config import GenerationConfig

OTHER_NAMES = {  # names used earlier, or elsewhere, and ours
    "new": "max_new_tokens",
    "max_tokens": "max_new_tokens",
    "max_length": "max_new_tokens",
    "limit": "max_new_tokens",
    "least": "min_new_tokens",
    "min_length": "min_new_tokens",
    "min_tokens": "min_new_tokens",
    "repetition": "repetition_penalty",
    "presence": "presence_penalty",
    "logit_bias": "bias",
    "num_beams": "beam",
    "language": "into",
    "target_language": "into",
    "target": "into",
    "tgt_lang": "into",
    "source": "source_language",
    "src_lang": "source_language",
    "batch_size": "batch_tokens",
}


def sampling_options(
    method: Callable[..., Any], arguments: Mapping[str, Any], config: GenerationConfig
) -> SamplingOptions:
    """The sampling options among the arguments of a method; refuses its unknown keyword arguments.

    config    gives the options whose argument is MODEL_DEFAULT
    """
    check_arguments(method, arguments["unknown"])
    names = [name for name in SamplingOptions.__dataclass_fields__ if name in arguments]
    return fill_options(config, {name: arguments[name] for name in names if name != "bias" or arguments[name]})


def fill_options(config: GenerationConfig, given: Mapping[str, Any]) -> SamplingOptions:
    """The given options; those that are missing or MODEL_DEFAULT are the model's, or the defaults."""
    explicit = {name: value for name, value in given.items() if value is not MODEL_DEFAULT}
    chosen = {**config.sampling, **explicit}
    if not chosen.keys() & {"temperature", "top_k", "top_p", "min_p"}:
        chosen["min_p"] = MIN_P
    return SamplingOptions(**chosen)


def check_arguments(method: Callable[..., Any], unknown: Iterable[str]) -> None:
    """Refuse keyword arguments that a method does not have, and suggest the right one."""
    parameters = inspect.signature(method).parameters.values()
    allowed = sorted(one.name for one in parameters if one.kind is one.KEYWORD_ONLY)
    for name in unknown:
        right = OTHER_NAMES[name] if OTHER_NAMES.get(name) in allowed else name
        hint = did_you_mean(right, allowed, f"It has {', '.join(allowed)}.")
        raise UnknownArgumentError(f"{method.__name__}() has no argument '{name}'. {hint}")
