"""ModernBERT: rotary positions with two bases, local and global attention, GeGLU, no biases, no norm before the first
attention, and a masked-token head.

local_attention counts keys on both sides: a token sees those up to local_attention / 2 positions away.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chumoku.errors import UsageError
from chumoku.models.config import ModelConfig
from chumoku.text.special_tokens import Roles
from chumoku.weights.families.classifier import HEADS, Classifier
from chumoku.weights.families.family import Family, Values, make_config, our_name, read_number, require, their_name
from chumoku.weights.families.table import Row, Source, layer_rows, linear_rows, norm_rows, tensor_row

ACTIVATIONS = {"gelu": "geglu", "gelu_new": "geglu_tanh", "gelu_pytorch_tanh": "geglu_tanh", "silu": "swiglu"}
CLASSIFIER_ACTIVATIONS = {
    **{"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"},
    **{"silu": "silu", "relu": "relu", "tanh": "tanh"},
}
POOLINGS = {"cls": "first", "mean": "mean"}
CLASSIFIER = Classifier("classifier", "classifier", transform="head.dense", norm="head.norm")
EMBEDDING, OUTPUT = "model.embeddings.tok_embeddings.weight", "decoder.weight"
FULL, LOCAL = "full_attention", "sliding_attention"
BASES = {FULL: ("global_rope_theta", 160000.0), LOCAL: ("local_rope_theta", 10000.0)}


def rows(config: ModelConfig) -> list[Row]:
    ours, theirs = "encoder.blocks.{}", "model.layers.{}"
    joined = {
        end: (
            Row(tuple(f"{ours}.attention.{part}.{end}" for part in ("query", "key", "value")),
                f"{theirs}.attn.Wqkv.{end}", heads=2 * config.heads),
            Row(tuple(f"{ours}.feedforward.{part}.{end}" for part in ("gate", "up")), f"{theirs}.mlp.Wi.{end}"),
        )
        for end in ("weight", "bias")
    }  # fmt: skip
    return [
        tensor_row("encoder.embedding.table", EMBEDDING),
        *norm_rows("encoder.embedding_norm", "model.embeddings.norm"),
        *layer_rows(
            config.layers,
            [
                *norm_rows(f"{ours}.attention_norm", f"{theirs}.attn_norm"),
                *joined["weight"],
                *joined["bias"],
                *linear_rows(f"{ours}.attention.output", f"{theirs}.attn.Wo"),
                *norm_rows(f"{ours}.feedforward_norm", f"{theirs}.mlp_norm"),
                *linear_rows(f"{ours}.feedforward.down", f"{theirs}.mlp.Wo"),
            ],
        ),
        *norm_rows("encoder.norm", "model.final_norm"),
        *(masked_rows() if config.labels is None else CLASSIFIER.rows(config)),
    ]


def masked_rows() -> list[Row]:
    return [
        *linear_rows("head.transform", "head.dense"),
        *norm_rows("head.norm", "head.norm"),
        tensor_row("head.logits.weight", OUTPUT),
        tensor_row("head.logits.bias", "decoder.bias"),
    ]


def read(values: Values, source: Source) -> ModelConfig:
    activation, bias = values.get("hidden_activation", "gelu"), values.get("mlp_bias", False)
    labels = read_labels(values, source)
    has_head = "head.dense.weight" in source.shapes and not labels
    if has_head:
        require(values, "ModernBERT", {"classifier_activation": (activation,), "classifier_bias": (bias,)})
    return make_config({
        "kind": "encoder", "position": "rotary", "pairing": "half", "norm": "layer", "placement": "pre",
        "embedding_norm": True, "first_norm": False,
        "vocabulary": read_number(values, "vocab_size", 50368),
        "context": read_number(values, "max_position_embeddings", 8192),
        "width": read_number(values, "hidden_size", 768),
        "layers": read_number(values, "num_hidden_layers", 22),
        "heads": read_number(values, "num_attention_heads", 12),
        "feedforward": our_name(values, "hidden_activation", ACTIVATIONS, "gelu"),
        "feedforward_width": read_number(values, "intermediate_size", 1152),
        "bias": bias,
        "attention_bias": "all" if values.get("attention_bias", False) else "none",
        "norm_epsilon": read_number(values, "norm_eps", 1e-5),
        "norm_bias": values.get("norm_bias", False),
        "tie_output": values.get("tie_word_embeddings", True) if has_head else True,
        "output_bias": has_head and "decoder.bias" in source.shapes,
        "head": "masked" if has_head else "vector",
        "dropout": {
            "embedding": read_number(values, "embedding_dropout", 0.0),
            "attention": read_number(values, "attention_dropout", 0.0),
            "sublayer": read_number(values, "mlp_dropout", 0.0),
        },
        **read_layers(values),
        **labels,
    })  # fmt: skip


def read_labels(values: Values, source: Source) -> dict[str, Any]:
    """Our config values of the label head (classes or tags); empty for a model without labels."""
    found = CLASSIFIER.read(values, source)
    if not found:
        return {}
    pooling = our_name(values, "classifier_pooling", POOLINGS, "cls")
    return {
        **found, **({"pooling": pooling} if found["head"] == "classes" else {}),
        "classifier_activation": our_name(values, "classifier_activation", CLASSIFIER_ACTIVATIONS, "gelu"),
        "classifier_bias": values.get("classifier_bias", False), "classifier_norm": True,
    }  # fmt: skip


def write_labels(config: ModelConfig) -> dict[str, Any]:
    if config.labels is None:
        return {}
    if config.classifier_activation not in CLASSIFIER_ACTIVATIONS.values() or not config.classifier_norm:
        raise UsageError(
            "ModernBERT has a layer and a norm before its labels: classifier_activation = 'gelu', classifier_norm = "
            f"true. This model has {config.classifier_activation!r} and {str(config.classifier_norm).lower()}."
        )
    if config.head == "classes" and (config.pooling not in POOLINGS.values() or not config.label_bias):
        raise UsageError("The classes of ModernBERT have pooling = 'first' or 'mean', and label_bias = true.")
    return {
        **CLASSIFIER.write(config, "ModernBert"),
        "classifier_activation": their_name(str(config.classifier_activation), CLASSIFIER_ACTIVATIONS),
        "classifier_bias": config.classifier_bias,
        "classifier_pooling": their_name(config.pooling, POOLINGS) if config.head == "classes" else "cls",
    }


def read_layers(values: Values) -> dict[str, Any]:
    """Config values of the layers with and without a window, and of their rotary positions."""
    every, depth = values.get("global_attn_every_n_layers", 3), read_number(values, "num_hidden_layers", 22)
    types = values.get("layer_types")
    if types is not None:
        types = types if isinstance(types, list) else []
        full = [layer for layer, kind in enumerate(types) if kind == FULL]
        every = full[1] if len(full) > 1 else max(1, len(types))
        if len(types) != depth or types != [LOCAL if layer % every else FULL for layer in range(len(types))]:
            raise UsageError("This ModernBERT's layer_types are not full attention in every n-th layer from the first.")
    bases = {kind: _read_base(values, kind) for kind in BASES}
    if every == 1 or depth == 1:
        return {"rotary": {"base": bases[FULL]}}
    return {
        "attention_window": read_number(values, "local_attention", 128) // 2 + 1,
        "full_attention_every": every, "full_attention_first": True,
        "rotary": {"base": bases[FULL], "local_base": bases[LOCAL]},
    }  # fmt: skip


def _read_base(values: Values, kind: str) -> Any:
    """The base of the layers of this kind; older files have it outside rope_parameters."""
    parameters = values.get("rope_parameters") or {}
    rope = parameters.get(kind) or {} if isinstance(parameters, Mapping) else None
    if not isinstance(rope, Mapping):
        raise UsageError("The config's rope_parameters must be an object.")
    require(rope, "ModernBERT", {"rope_type": ("default",)})
    key, default = BASES[kind]
    return read_number({"rope_theta": values.get(key, default), **rope}, "rope_theta")


def write(config: ModelConfig, roles: Roles) -> dict[str, Any]:
    has_head, activation = config.head_kind == "masked", their_name(config.feedforward, ACTIVATIONS)
    local = config.rotary.base if config.rotary.local_base is None else config.rotary.local_base
    bases = {FULL: config.rotary.base, LOCAL: local}
    window = {} if config.attention_window is None else {"local_attention": 2 * (config.attention_window - 1)}
    return {
        "model_type": "modernbert", "architectures": ["ModernBertForMaskedLM" if has_head else "ModernBertModel"],
        "vocab_size": config.vocabulary,
        "max_position_embeddings": config.context,
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "hidden_activation": activation, "classifier_activation": activation,
        "intermediate_size": config.hidden,
        "mlp_bias": config.bias, "classifier_bias": config.bias,
        "attention_bias": config.biased_attention == "all",
        "norm_eps": config.norm_epsilon, "norm_bias": config.norm_bias,
        "decoder_bias": config.output_bias,
        "tie_word_embeddings": config.tie_output,
        "embedding_dropout": config.dropout.embedding,
        "attention_dropout": config.dropout.attention,
        "mlp_dropout": config.dropout.sublayer,
        **window,
        "layer_types": [LOCAL if config.is_local(layer) else FULL for layer in range(config.layers)],
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()},
        "pad_token_id": roles.pad, "bos_token_id": roles.begin, "eos_token_id": roles.end,
        "cls_token_id": roles.begin, "sep_token_id": roles.end,
        **write_labels(config),
    }  # fmt: skip


def duplicates(config: ModelConfig) -> dict[str, str]:
    return {OUTPUT: EMBEDDING} if config.tie_output else {}


SUPPORTED = {
    "kind": ("encoder",),
    "position": ("rotary",),
    "rotary.scaling": ("none",),
    "rotary.local_base": None,
    "attention_window": None,
    "full_attention_every": None,
    "norm": ("layer",),
    "norm_bias": (True, False),
    "first_norm": (False,),
    "placement": ("pre",),
    "feedforward": tuple(dict.fromkeys(ACTIVATIONS.values())),
    "attention_bias": (None, "all", "none"),
    "kv_heads": (None,),
    "experts": (0,),
    "scale_embedding": (False,),
    "embedding_norm": (True,),
    "segments": (0,),
    **{"head": HEADS, "classifier_norm": (True, False), "classifier_bias": (True, False)},
}
IGNORED = {r"decoder\.weight": "a copy of the embedding, if tied"}
MODERNBERT = Family(
    "modernbert", "ModernBERT", "model.", read, write, rows, SUPPORTED, IGNORED, duplicates, pairing="half"
)
