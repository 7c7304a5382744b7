"""BERT: learned positions and segments, a norm behind them, norms after; and its head that guesses masked tokens."""

from __future__ import annotations

from typing import Any

from chumoku.errors import UsageError
from chumoku.models.config import ModelConfig
from chumoku.text.special_tokens import Roles
from chumoku.weights.families.family import Family, Values, chosen, named, number, only, settled
from chumoku.weights.families.table import Row, Source, each, matrix, norm, one

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
}
REPEATED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
GUESSING = "cls.predictions.transform.dense.weight"


def rows(config: ModelConfig) -> list[Row]:
    ours, theirs = "encoder.blocks.{}", "bert.encoder.layer.{}"
    return [
        one("encoder.embedding.table", "bert.embeddings.word_embeddings.weight"),
        one("encoder.position.table", "bert.embeddings.position_embeddings.weight"),
        one("encoder.segment.table", "bert.embeddings.token_type_embeddings.weight"),
        *norm("encoder.embedding_norm", "bert.embeddings.LayerNorm"),
        *each(
            config.layers,
            [
                *matrix(f"{ours}.attention.query", f"{theirs}.attention.self.query"),
                *matrix(f"{ours}.attention.key", f"{theirs}.attention.self.key"),
                *matrix(f"{ours}.attention.value", f"{theirs}.attention.self.value"),
                *matrix(f"{ours}.attention.output", f"{theirs}.attention.output.dense"),
                *norm(f"{ours}.attention_norm", f"{theirs}.attention.output.LayerNorm"),
                *matrix(f"{ours}.feedforward.up", f"{theirs}.intermediate.dense"),
                *matrix(f"{ours}.feedforward.down", f"{theirs}.output.dense"),
                *norm(f"{ours}.feedforward_norm", f"{theirs}.output.LayerNorm"),
            ],
        ),
        *matrix("head.transform", "cls.predictions.transform.dense"),
        *norm("head.norm", "cls.predictions.transform.LayerNorm"),
        one("head.logits.weight", "cls.predictions.decoder.weight"),
        one("head.logits.bias", "cls.predictions.bias" if config.tie_output else "cls.predictions.decoder.bias"),
    ]


def read(values: Values, source: Source) -> ModelConfig:
    only(values, "BERT", {
        "position_embedding_type": ("absolute",), "is_decoder": (False,), "add_cross_attention": (False, None),
    })  # fmt: skip
    guesses, tied = GUESSING in source.shapes, values.get("tie_word_embeddings", True)
    bias = "cls.predictions.bias" if tied else "cls.predictions.decoder.bias"
    if guesses and bias not in source.shapes and "cls.predictions.decoder.bias" in source.shapes:
        raise UsageError(
            f"{source.path} has its output's bias as cls.predictions.decoder.bias alone, and not as {bias}."
        )
    dropout = number(values, "hidden_dropout_prob", 0.1)
    return settled({
        "kind": "encoder", "position": "learned", "norm": "layer", "placement": "post", "embedding_norm": True,
        "vocabulary": number(values, "vocab_size", 30522),
        "context": number(values, "max_position_embeddings", 512),
        "width": number(values, "hidden_size", 768),
        "layers": number(values, "num_hidden_layers", 12),
        "heads": number(values, "num_attention_heads", 12),
        "feedforward": chosen(values, "hidden_act", ACTIVATIONS, "gelu"),
        "feedforward_width": number(values, "intermediate_size", 3072),
        "norm_epsilon": number(values, "layer_norm_eps", 1e-12),
        "segments": number(values, "type_vocab_size", 2),
        "tie_output": tied if guesses else True,
        "output_bias": guesses and bias in source.shapes,
        "head": "masked" if guesses else "vector",
        "dropout": {
            "embedding": dropout, "attention": number(values, "attention_probs_dropout_prob", 0.1), "sublayer": dropout,
        },
    })  # fmt: skip


def write(config: ModelConfig, roles: Roles) -> dict[str, Any]:
    guesses = config.head_kind == "masked"
    return {
        "model_type": "bert", "architectures": ["BertForMaskedLM" if guesses else "BertModel"],
        "vocab_size": config.vocabulary,
        "max_position_embeddings": config.context,
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "hidden_act": named(config.feedforward, ACTIVATIONS),
        "intermediate_size": config.hidden,
        "layer_norm_eps": config.norm_epsilon,
        "type_vocab_size": config.segments,
        "tie_word_embeddings": config.tie_output,
        "hidden_dropout_prob": config.dropout.sublayer,
        "attention_probs_dropout_prob": config.dropout.attention,
        "pad_token_id": 0 if roles.pad is None else roles.pad,
    }  # fmt: skip


BERT = Family(
    "bert",
    "BERT",
    "bert.",
    read,
    write,
    rows,
    demands={
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
    },
    dropped={
        r"bert\.pooler\.dense\.(weight|bias)": "made for telling whether one sentence follows another, as is the next",
        r"cls\.seq_relationship\.(weight|bias)": "whether one sentence follows another",
        r"bert\.embeddings\.position_ids": "0, 1, 2 …",
        r"cls\.predictions\.(decoder\.weight|decoder\.bias|bias)": "the embedding or the bias once more",
    },
    repeated=lambda config: REPEATED if config.tie_output else {},
)
