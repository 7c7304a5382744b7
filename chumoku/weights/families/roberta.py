"""RoBERTa and XLM-RoBERTa: BERT with one segment, other names for the head, and positions from padding_idx + 1.

The first padding_idx + 1 rows of its table of positions belong to no token: they are not read, and written as zeros. A
RoBERTa with several segments, or without GELU, is written as a BERT, which computes the same.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from chumoku.errors import UsageError
from chumoku.models.config import ModelConfig
from chumoku.text.special_tokens import Roles
from chumoku.weights.families import bert
from chumoku.weights.families.classifier import Classifier
from chumoku.weights.families.family import Family, Values, check_length, make_config, read_number, require
from chumoku.weights.families.table import Row, Source, linear_rows, norm_rows, tensor_row

CLASSIFIER = Classifier("classifier.out_proj", transform="classifier.dense", activation="tanh")
EMBEDDING, POSITIONS = "roberta.embeddings.word_embeddings.weight", "roberta.embeddings.position_embeddings.weight"


def rows(config: ModelConfig) -> list[Row]:
    if config.labels is not None:
        return [*bert.body_rows(config, "roberta", unused_rows=True), *CLASSIFIER.rows(config)]
    return [
        *bert.body_rows(config, "roberta", unused_rows=True),
        *linear_rows("head.transform", "lm_head.dense"),
        *norm_rows("head.norm", "lm_head.layer_norm"),
        tensor_row("head.logits.weight", "lm_head.decoder.weight"),
        tensor_row("head.logits.bias", "lm_head.bias" if config.tie_output else "lm_head.decoder.bias"),
    ]


def read(values: Values, source: Source) -> ModelConfig:
    head = bert.read_head(values, source, dense="lm_head.dense", predictions="lm_head")
    if head["head"] == "masked":
        require(values, "RoBERTa with a head", {"hidden_act": ("gelu",)})  # its head has GELU in any case
    length, padding = read_number(values, "max_position_embeddings", 512), read_number(values, "pad_token_id", 1)
    check_length(source, POSITIONS, length)
    return make_config({
        **bert.read_body(values, "RoBERTa"),
        "context": length - padding - 1,
        **head,
        **CLASSIFIER.read(values, source),
    })  # fmt: skip


def write(config: ModelConfig, roles: Roles) -> dict[str, Any]:
    has_head = config.head_kind == "masked"
    return {
        "model_type": "roberta", "architectures": ["RobertaForMaskedLM" if has_head else "RobertaModel"],
        "max_position_embeddings": config.context + unused_positions(roles),
        "pad_token_id": roles.pad, "bos_token_id": roles.begin, "eos_token_id": roles.end,
        **bert.write_body(config),
        **CLASSIFIER.write(config, "Roberta"),
    }  # fmt: skip


def unused_positions(roles: Roles) -> int:
    if roles.pad is None:
        raise UsageError(
            "RoBERTa's positions start after its padding token's id, but this tokenizer has no such token."
        )
    return roles.pad + 1


def duplicates(config: ModelConfig) -> dict[str, str]:
    return {"lm_head.decoder.weight": EMBEDDING, "lm_head.decoder.bias": "lm_head.bias"} if config.tie_output else {}


SUPPORTED = {**bert.SUPPORTED, "feedforward": ("gelu",), "segments": (1,)}
IGNORED = {
    r"roberta\.pooler\.dense\.(weight|bias)": "a classifier's vector, which is not trained",
    r"roberta\.embeddings\.position_ids": "0, 1, 2 …",
    r"lm_head\.(decoder\.weight|decoder\.bias|bias)": "a copy of the embedding or of the bias",
}
ROBERTA = Family(
    "roberta", "RoBERTa", "roberta.", read, write, rows, SUPPORTED, IGNORED, duplicates,
    unused_positions=unused_positions,
)  # fmt: skip
XLM_ROBERTA = replace(ROBERTA, name="xlm-roberta", title="XLM-RoBERTa")
CAMEMBERT = replace(ROBERTA, name="camembert", title="CamemBERT")
