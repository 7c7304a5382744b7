"""BERT: learned positions, segments, a norm after the embeddings, post-norm blocks and a masked-token head."""

from __future__ import annotations

from typing import Any

from chumoku.errors import UsageError
from chumoku.models.config import ModelConfig
from chumoku.text.special_tokens import Roles
from chumoku.weights.families.family import Family, Values, make_config, our_name, read_number, require, their_name
from chumoku.weights.families.table import Row, Source, layer_rows, linear_rows, norm_rows, tensor_row

ACTIVATIONS = {
    **{"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"},
    **{"relu": "relu", "silu": "silu"},
}
DUPLICATES = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
MASKED_HEAD = "cls.predictions.transform.dense.weight"


def rows(config: ModelConfig) -> list[Row]:
    ours, theirs = "encoder.blocks.{}", "bert.encoder.layer.{}"
    return [
        tensor_row("encoder.embedding.table", "bert.embeddings.word_embeddings.weight"),
        tensor_row("encoder.position.table", "bert.embeddings.position_embeddings.weight"),
        tensor_row("encoder.segment.table", "bert.embeddings.token_type_embeddings.weight"),
        *norm_rows("encoder.embedding_norm", "bert.embeddings.LayerNorm"),
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
        *linear_rows("head.transform", "cls.predictions.transform.dense"),
        *norm_rows("head.norm", "cls.predictions.transform.LayerNorm"),
        tensor_row("head.logits.weight", "cls.predictions.decoder.weight"),
        tensor_row("head.logits.bias", "cls.predictions.bias" if config.tie_output else "cls.predictions.decoder.bias"),
    ]


def read(values: Values, source: Source) -> ModelConfig:
    require(values, "BERT", {
        "position_embedding_type": ("absolute",), "is_decoder": (False,), "add_cross_attention": (False, None),
    })  # fmt: skip
    has_head, tied = MASKED_HEAD in source.shapes, values.get("tie_word_embeddings", True)
    bias = "cls.predictions.bias" if tied else "cls.predictions.decoder.bias"
    if has_head and bias not in source.shapes and "cls.predictions.decoder.bias" in source.shapes:
        raise UsageError(
            f"{source.path} stores the output bias only as cls.predictions.decoder.bias; {bias} is needed too."
        )
    dropout = read_number(values, "hidden_dropout_prob", 0.1)
    return make_config({
        "kind": "encoder", "position": "learned", "norm": "layer", "placement": "post", "embedding_norm": True,
        "vocabulary": read_number(values, "vocab_size", 30522),
        "context": read_number(values, "max_position_embeddings", 512),
        "width": read_number(values, "hidden_size", 768),
        "layers": read_number(values, "num_hidden_layers", 12),
        "heads": read_number(values, "num_attention_heads", 12),
        "feedforward": our_name(values, "hidden_act", ACTIVATIONS, "gelu"),
        "feedforward_width": read_number(values, "intermediate_size", 3072),
        "norm_epsilon": read_number(values, "layer_norm_eps", 1e-12),
        "segments": read_number(values, "type_vocab_size", 2),
        "tie_output": tied if has_head else True,
        "output_bias": has_head and bias in source.shapes,
        "head": "masked" if has_head else "vector",
        "dropout": {
            "embedding": dropout, "sublayer": dropout,
            "attention": read_number(values, "attention_probs_dropout_prob", 0.1),
        },
    })  # fmt: skip


def write(config: ModelConfig, roles: Roles) -> dict[str, Any]:
    has_head = config.head_kind == "masked"
    return {
        "model_type": "bert", "architectures": ["BertForMaskedLM" if has_head else "BertModel"],
        "vocab_size": config.vocabulary,
        "max_position_embeddings": config.context,
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
        "pad_token_id": 0 if roles.pad is None else roles.pad,
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
}
IGNORED = {
    r"bert\.pooler\.dense\.(weight|bias)": "for next-sentence prediction",
    r"cls\.seq_relationship\.(weight|bias)": "for next-sentence prediction",
    r"bert\.embeddings\.position_ids": "0, 1, 2 …",
    r"cls\.predictions\.(decoder\.weight|decoder\.bias|bias)": "a copy of the embedding or of the bias",
}
BERT = Family("bert", "BERT", "bert.", read, write, rows, SUPPORTED, IGNORED, duplicates)
