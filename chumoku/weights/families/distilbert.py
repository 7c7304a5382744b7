"""DistilBERT: BERT without segments, and with other names. A table of sines is stored, and read, like a learned one."""

from __future__ import annotations

from typing import Any

from chumoku.models.config import ModelConfig
from chumoku.text.special_tokens import Roles
from chumoku.weights.families import bert
from chumoku.weights.families.classifier import Classifier
from chumoku.weights.families.family import Family, Values, make_config, our_name, read_number, their_name
from chumoku.weights.families.table import Row, Source, layer_rows, linear_rows, norm_rows, tensor_row

CLASSIFIER = Classifier("classifier", transform="pre_classifier", activation="relu")
EMBEDDING, PROJECTION = "distilbert.embeddings.word_embeddings.weight", "vocab_projector.weight"


def rows(config: ModelConfig) -> list[Row]:
    ours, theirs = "encoder.blocks.{}", "distilbert.transformer.layer.{}"
    return [
        *head_rows(config),
        tensor_row("encoder.embedding.table", EMBEDDING),
        tensor_row("encoder.position.table", "distilbert.embeddings.position_embeddings.weight"),
        *norm_rows("encoder.embedding_norm", "distilbert.embeddings.LayerNorm"),
        *layer_rows(
            config.layers,
            [
                *linear_rows(f"{ours}.attention.query", f"{theirs}.attention.q_lin"),
                *linear_rows(f"{ours}.attention.key", f"{theirs}.attention.k_lin"),
                *linear_rows(f"{ours}.attention.value", f"{theirs}.attention.v_lin"),
                *linear_rows(f"{ours}.attention.output", f"{theirs}.attention.out_lin"),
                *norm_rows(f"{ours}.attention_norm", f"{theirs}.sa_layer_norm"),
                *linear_rows(f"{ours}.feedforward.up", f"{theirs}.ffn.lin1"),
                *linear_rows(f"{ours}.feedforward.down", f"{theirs}.ffn.lin2"),
                *norm_rows(f"{ours}.feedforward_norm", f"{theirs}.output_layer_norm"),
            ],
        ),
    ]


def head_rows(config: ModelConfig) -> list[Row]:
    if config.labels is not None:
        return CLASSIFIER.rows(config)
    return [
        *linear_rows("head.transform", "vocab_transform"),
        *norm_rows("head.norm", "vocab_layer_norm"),
        tensor_row("head.logits.weight", PROJECTION),
        tensor_row("head.logits.bias", "vocab_projector.bias"),
    ]


def read(values: Values, source: Source) -> ModelConfig:
    has_head, dropout = "vocab_transform.weight" in source.shapes, read_number(values, "dropout", 0.1)
    return make_config({
        "kind": "encoder", "position": "learned", "norm": "layer", "placement": "post", "embedding_norm": True,
        "norm_epsilon": 1e-12,
        "vocabulary": read_number(values, "vocab_size", 30522),
        "context": read_number(values, "max_position_embeddings", 512),
        "width": read_number(values, "dim", 768),
        "layers": read_number(values, "n_layers", 6),
        "heads": read_number(values, "n_heads", 12),
        "feedforward": our_name(values, "activation", bert.ACTIVATIONS, "gelu"),
        "feedforward_width": read_number(values, "hidden_dim", 3072),
        "tie_output": values.get("tie_word_embeddings", True) if has_head else True,
        "output_bias": has_head and "vocab_projector.bias" in source.shapes,
        "head": "masked" if has_head else "vector",
        "dropout": {
            "embedding": dropout, "sublayer": dropout, "attention": read_number(values, "attention_dropout", 0.1),
        },
        **CLASSIFIER.read(values, source),
    })  # fmt: skip


def write(config: ModelConfig, roles: Roles) -> dict[str, Any]:
    has_head = config.head_kind == "masked"
    return {
        "model_type": "distilbert", "architectures": ["DistilBertForMaskedLM" if has_head else "DistilBertModel"],
        "vocab_size": config.vocabulary,
        "max_position_embeddings": config.context,
        "dim": config.width,
        "n_layers": config.layers,
        "n_heads": config.heads,
        "activation": their_name(config.feedforward, bert.ACTIVATIONS),
        "hidden_dim": config.hidden,
        "tie_word_embeddings": config.tie_output,
        "dropout": config.dropout.sublayer, "attention_dropout": config.dropout.attention,
        "pad_token_id": 0 if roles.pad is None else roles.pad,
        **CLASSIFIER.write(config, "DistilBert"),
    }  # fmt: skip


def duplicates(config: ModelConfig) -> dict[str, str]:
    return {PROJECTION: EMBEDDING} if config.tie_output else {}


SUPPORTED = {**bert.SUPPORTED, "norm_epsilon": (1e-12,), "segments": (0,)}
IGNORED = {
    r"distilbert\.embeddings\.position_ids": "0, 1, 2 …",
    r"vocab_projector\.weight": "a copy of the embedding, if tied",
}
DISTILBERT = Family("distilbert", "DistilBERT", "distilbert.", read, write, rows, SUPPORTED, IGNORED, duplicates)
