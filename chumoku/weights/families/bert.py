"""BERT: learned positions, segments, a norm after the embeddings, post-norm blocks and a masked-token head."""

from __future__ import annotations

from typing import Any

from chumoku.errors import UsageError
from chumoku.models.config import ModelConfig
from chumoku.text.special_tokens import Roles
from chumoku.weights.families.classifier import HEADS, Classifier
from chumoku.weights.families.family import Family, Values, make_config, our_name, read_number, require, their_name
from chumoku.weights.families.table import Row, Source, layer_rows, linear_rows, norm_rows, tensor_row

ACTIVATIONS = {
    **{"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"},
    **{"relu": "relu", "silu": "silu"},
}
CLASSIFIER = Classifier("classifier", transform="bert.pooler.dense", activation="tanh")
DUPLICATES = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}


def body_rows(config: ModelConfig, model: str, *, unused_rows: bool = False) -> list[Row]:
    """Rows of the model without its head; `model` is the first part of their names."""
    ours, theirs = "encoder.blocks.{}", f"{model}.encoder.layer.{{}}"
    return [
        tensor_row("encoder.embedding.table", f"{model}.embeddings.word_embeddings.weight"),
        tensor_row("encoder.position.table", f"{model}.embeddings.position_embeddings.weight", unused_rows=unused_rows),
        tensor_row("encoder.segment.table", f"{model}.embeddings.token_type_embeddings.weight"),
        *norm_rows("encoder.embedding_norm", f"{model}.embeddings.LayerNorm"),
        *layer_rows(
            config.layers,
            [
                *linear_rows(f"{ours}.attention.query", f"{theirs}.attention.self.query"),
                *linear_rows(f"{ours}.attention.key", f"{theirs}.attention.self.key"),
                *linear_rows(f"{ours}.attention.value", f"{theirs}.attention.self.value"),
                *linear_rows(f"{ours}.attention.output", f"{theirs}.attention.output.dense"),
                *norm_rows(f"{ours}.attention_norm", f"{theirs}.attention.output.LayerNorm"),
                *linear_rows(f"{ours}.feedforward.up", f"{theirs}.intermediate.dense"),
                *linear_rows(f"{ours}.feedforward.down", f"{theirs}.output.dense"),
                *norm_rows(f"{ours}.feedforward_norm", f"{theirs}.output.LayerNorm"),
            ],
        ),
    ]


def rows(config: ModelConfig) -> list[Row]:
    if config.labels is not None:
        return [*body_rows(config, "bert"), *CLASSIFIER.rows(config)]
    return [
        *body_rows(config, "bert"),
        *linear_rows("head.transform", "cls.predictions.transform.dense"),
        *norm_rows("head.norm", "cls.predictions.transform.LayerNorm"),
        tensor_row("head.logits.weight", "cls.predictions.decoder.weight"),
        tensor_row("head.logits.bias", "cls.predictions.bias" if config.tie_output else "cls.predictions.decoder.bias"),
    ]


def read(values: Values, source: Source) -> ModelConfig:
    return make_config({
        **read_body(values, "BERT"),
        "context": read_number(values, "max_position_embeddings", 512),
        **read_head(values, source, dense="cls.predictions.transform.dense", predictions="cls.predictions"),
        **CLASSIFIER.read(values, source),
    })  # fmt: skip


def read_head(values: Values, source: Source, *, dense: str, predictions: str) -> dict[str, Any]:
    """Config values of the masked-token head, if the file has one."""
    has_head, tied = f"{dense}.weight" in source.shapes, values.get("tie_word_embeddings", True)
    other = f"{predictions}.decoder.bias"
    bias = f"{predictions}.bias" if tied else other
    if has_head and bias not in source.shapes and other in source.shapes:
        raise UsageError(f"{source.path} stores the output bias only as {other}; {bias} is needed too.")
    return {
        "tie_output": tied if has_head else True,
        "output_bias": has_head and bias in source.shapes,
        "head": "masked" if has_head else "vector",
    }


def read_body(values: Values, title: str) -> dict[str, Any]:
    """Config values of the model without its head."""
    require(values, title, {
        "position_embedding_type": ("absolute",), "is_decoder": (False,), "add_cross_attention": (False, None),
    })  # fmt: skip
    dropout = read_number(values, "hidden_dropout_prob", 0.1)
    return {
        "kind": "encoder", "position": "learned", "norm": "layer", "placement": "post", "embedding_norm": True,
        "vocabulary": read_number(values, "vocab_size", 30522),
        "width": read_number(values, "hidden_size", 768),
        "layers": read_number(values, "num_hidden_layers", 12),
        "heads": read_number(values, "num_attention_heads", 12),
        "feedforward": our_name(values, "hidden_act", ACTIVATIONS, "gelu"),
        "feedforward_width": read_number(values, "intermediate_size", 3072),
        "norm_epsilon": read_number(values, "layer_norm_eps", 1e-12),
        "segments": read_number(values, "type_vocab_size", 2),
        "dropout": {
            "embedding": dropout, "sublayer": dropout,
            "attention": read_number(values, "attention_probs_dropout_prob", 0.1),
        },
    }  # fmt: skip


def write(config: ModelConfig, roles: Roles) -> dict[str, Any]:
    return {
        "model_type": "bert", "architectures": ["BertForMaskedLM" if config.head_kind == "masked" else "BertModel"],
        "max_position_embeddings": config.context,
        "pad_token_id": 0 if roles.pad is None else roles.pad,
        **write_body(config),
        **CLASSIFIER.write(config, "Bert"),
    }  # fmt: skip


def write_body(config: ModelConfig) -> dict[str, Any]:
    return {
        "vocab_size": config.vocabulary,
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "hidden_act": their_name(config.feedforward, ACTIVATIONS),
        "intermediate_size": config.hidden,
        "layer_norm_eps": config.norm_epsilon,
        "type_vocab_size": config.segments,
        "tie_word_embeddings": config.tie_output,
        "hidden_dropout_prob": config.dropout.sublayer,
        "attention_probs_dropout_prob": config.dropout.attention,
    }  # fmt: skip


def duplicates(config: ModelConfig) -> dict[str, str]:
    return DUPLICATES if config.tie_output else {}


SUPPORTED = {
    "kind": ("encoder",),
    "position": ("learned",),
    "norm": ("layer",),
    "placement": ("post",),
    "feedforward": tuple(dict.fromkeys(ACTIVATIONS.values())),
    "bias": (True,),
    "kv_heads": (None,),
    "experts": (0,),
    "scale_embedding": (False,),
    "embedding_norm": (True,),
    "segments": tuple(range(1, 1025)),
    "head": HEADS,
}
IGNORED = {
    r"bert\.pooler\.dense\.(weight|bias)": "for next-sentence prediction",
    r"cls\.seq_relationship\.(weight|bias)": "for next-sentence prediction",
    r"bert\.embeddings\.position_ids": "0, 1, 2 …",
    r"cls\.predictions\.(decoder\.weight|decoder\.bias|bias)": "a copy of the embedding or of the bias",
}
BERT = Family("bert", "BERT", "bert.", read, write, rows, SUPPORTED, IGNORED, duplicates)
