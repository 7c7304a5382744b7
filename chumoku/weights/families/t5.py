"""T5, FLAN-T5 and mT5: pre-norm encoder-decoders with RMS norms, no biases, and a learned bias for each distance.

T5              logits divided by √D, tied to the shared table
FLAN-T5, mT5    logits not divided, with a matrix of their own or tied; written as a T5 with tie_word_embeddings = false

Scores are not divided by √d_k. The bias of a stack is stored in its first block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from chumoku.errors import UsageError
from chumoku.models.config import ModelConfig
from chumoku.text.special_tokens import Roles
from chumoku.weights.families.family import Family, Values, make_config, our_name, read_number, require, their_name
from chumoku.weights.families.table import Row, Source, layer_rows, tensor_row

FEEDFORWARDS = {
    **{"relu": "relu", "gated-gelu": "geglu_tanh", "gated-silu": "swiglu", "gated-swish": "swiglu"},
    **{"gelu": "gelu", "gelu_new": "gelu_tanh", "silu": "silu"},
}
SHARED, OUTPUT = "shared.weight", "lm_head.weight"


def rows(config: ModelConfig) -> list[Row]:
    found = [tensor_row("encoder.embedding.table", SHARED), tensor_row("head.weight", OUTPUT)]
    for side, depth in (("encoder", config.encoder_depth), ("decoder", config.decoder_depth)):
        bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        found += [tensor_row(f"{side}.relative_bias.table", bias)]
        found += [tensor_row(f"{side}.norm.gamma", f"{side}.final_layer_norm.weight")]
        found += layer_rows(depth, block_rows(config, side))
    return found


def block_rows(config: ModelConfig, side: str) -> Iterator[Row]:
    sublayers = [("attention", "SelfAttention"), ("cross_attention", "EncDecAttention")][: 1 + (side == "decoder")]
    for number, (ours, theirs) in enumerate([*sublayers, ("feedforward", "DenseReluDense")]):
        ours, layer = f"{side}.blocks.{{}}.{ours}", f"{side}.block.{{}}.layer.{number}"
        yield tensor_row(f"{ours}_norm.gamma", f"{layer}.layer_norm.weight")
        names = {"query": "q", "key": "k", "value": "v", "output": "o"}
        if theirs == "DenseReluDense":
            gated = config.feedforward in ("geglu_tanh", "swiglu")
            names = {"gate": "wi_0", "up": "wi_1" if gated else "wi", "down": "wo"}
        for part, name in names.items():
            yield tensor_row(f"{ours}.{part}.weight", f"{layer}.{theirs}.{name}.weight")


def read(values: Values, source: Source) -> ModelConfig:
    tied = values.get("tie_word_embeddings", True) is not False
    return _read(values, source, scaled=values.get("scale_decoder_outputs", tied))


def read_mt5(values: Values, source: Source) -> ModelConfig:
    return _read(values, source, scaled=False)


def _read(values: Values, source: Source, *, scaled: bool) -> ModelConfig:
    require(values, "T5", {"is_decoder": (False,)})
    depth, dropout = read_number(values, "num_layers", 6), read_number(values, "dropout_rate", 0.1)
    decoder_depth = depth if values.get("num_decoder_layers") is None else read_number(values, "num_decoder_layers")
    return make_config({
        "kind": "encoder-decoder", "norm": "rms", "placement": "pre", "bias": False, "position": "relative_bias",
        "attention_scale": 1.0, "share_embeddings": True, "scale_logits": scaled,
        "tie_output": scaled or OUTPUT not in source.shapes,
        "vocabulary": read_number(values, "vocab_size", 32128),
        "context": read_number(values, "n_positions", 512),
        "width": read_number(values, "d_model", 512),
        "heads": read_number(values, "num_heads", 8),
        "head_width": read_number(values, "d_kv", 64),
        "layers": decoder_depth,
        **({} if depth == decoder_depth else {"encoder_layers": depth}),
        "feedforward": our_name(values, "feed_forward_proj", FEEDFORWARDS, "relu"),
        "feedforward_width": read_number(values, "d_ff", 2048),
        "norm_epsilon": read_number(values, "layer_norm_epsilon", 1e-6),
        "relative_buckets": read_number(values, "relative_attention_num_buckets", 32),
        "relative_max_distance": read_number(values, "relative_attention_max_distance", 128),
        "dropout": dict.fromkeys(("embedding", "sublayer", "attention"), dropout),
    })  # fmt: skip


def write(config: ModelConfig, roles: Roles) -> dict[str, Any]:
    if config.scale_logits and not config.tie_output:
        raise UsageError("T5 divides only tied logits by √D: set model.scale_logits = false, or tie the output.")
    return {
        "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True,
        "vocab_size": config.vocabulary,
        "n_positions": config.context,
        "d_model": config.width,
        "num_heads": config.heads,
        "d_kv": config.key_width,
        "num_layers": config.encoder_depth, "num_decoder_layers": config.decoder_depth,
        "feed_forward_proj": their_name(config.feedforward, FEEDFORWARDS),
        "d_ff": config.hidden,
        "layer_norm_epsilon": config.norm_epsilon,
        "relative_attention_num_buckets": config.relative_buckets,
        "relative_attention_max_distance": config.relative_max_distance,
        "dropout_rate": config.dropout.sublayer,
        "tie_word_embeddings": config.scale_logits,
        "pad_token_id": roles.pad, "eos_token_id": roles.end, "decoder_start_token_id": roles.begin,
    }  # fmt: skip


def duplicates(config: ModelConfig) -> dict[str, str]:
    names = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", *((OUTPUT,) if config.tie_output else ()))
    return dict.fromkeys(names, SHARED)


SUPPORTED = {
    "kind": ("encoder-decoder",),
    "position": ("relative_bias",),
    "norm": ("rms",),
    "placement": ("pre",),
    "feedforward": tuple(dict.fromkeys(FEEDFORWARDS.values())),
    "bias": (False,),
    "kv_heads": (None,),
    "head_width": None,
    "attention_scale": (1.0,),
    "experts": (0,),
    "scale_embedding": (False,),
    "embedding_norm": (False,),
    "share_embeddings": (True,),
    "output_bias": (False,),
    "scale_logits": (False, True),
}
IGNORED = {
    r"(encoder|decoder)\.embed_tokens\.weight": "a copy of the shared table",
    r"lm_head\.weight": "a copy of the shared table, if tied",
    r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight": "not used by the model",
}
T5 = Family("t5", "T5", "", read, write, rows, SUPPORTED, IGNORED, duplicates)
MT5 = replace(T5, name="mt5", title="mT5", read=read_mt5)
