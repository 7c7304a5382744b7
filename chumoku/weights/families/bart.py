"""BART and mBART: encoder-decoders with learned positions, a norm after the embedding and one shared table.

BART     post-norm
mBART    pre-norm

The first two rows of their tables of positions belong to no token: they are not read, and written as zeros.
"""

from __future__ import annotations

from typing import Any

from chumoku.models.config import ModelConfig
from chumoku.text.special_tokens import Roles
from chumoku.weights.families import marian
from chumoku.weights.families.family import Family, Values, check_length, make_config, read_number, require
from chumoku.weights.families.table import Row, Source, layer_rows, norm_rows, tensor_row

SIDES, UNUSED = ("encoder", "decoder"), 2


def rows(config: ModelConfig) -> list[Row]:
    return [
        *shared_rows(config),
        *(tensor_row(f"{side}.position.table", marian.POSITIONS.format(side), unused_rows=True) for side in SIDES),
        *(row for side in SIDES for row in norm_rows(f"{side}.embedding_norm", f"model.{side}.layernorm_embedding")),
        tensor_row("head.bias", "final_logits_bias", unsqueezed=True),
    ]


def shared_rows(config: ModelConfig) -> list[Row]:
    """Rows of the shared table, the blocks and, with pre-norm, the last norms."""
    return [
        tensor_row("encoder.embedding.table", "model.shared.weight"),
        *layer_rows(config.encoder_depth, marian.block_rows("encoder")),
        *layer_rows(config.decoder_depth, marian.block_rows("decoder")),
        *(row for side in SIDES for row in norm_rows(f"{side}.norm", f"model.{side}.layer_norm")),
    ]


def read_bart(values: Values, source: Source) -> ModelConfig:
    require(values, "BART", {"normalize_before": (False,), "normalize_embedding": (True,)})
    return make_config({**_read(values, source, "BART"), "placement": "post"})


def read_mbart(values: Values, source: Source) -> ModelConfig:
    require(values, "mBART", {"normalize_before": (True,), "normalize_embedding": (True,)})
    return make_config({**_read(values, source, "mBART"), "placement": "pre"})


def _read(values: Values, source: Source, title: str) -> dict[str, Any]:
    require(values, title, {
        "tie_word_embeddings": (True,), "static_position_embeddings": (False,), "extra_pos_embeddings": (UNUSED,),
    })  # fmt: skip
    body = marian.read_body(values, title)
    for side in SIDES:
        check_length(source, marian.POSITIONS.format(side), body["context"] + UNUSED)
    return {
        **body,
        "position": "learned", "embedding_norm": True, "share_embeddings": True,
        "vocabulary": read_number(values, "vocab_size", 50265),
        "output_bias": "final_logits_bias" in source.shapes,
    }  # fmt: skip


def write_bart(config: ModelConfig, roles: Roles) -> dict[str, Any]:
    head = {"model_type": "bart", "architectures": ["BartForConditionalGeneration"]}
    return {**head, **marian.write_body(config, roles), "bos_token_id": roles.begin}


def write_mbart(config: ModelConfig, roles: Roles) -> dict[str, Any]:
    head = {"model_type": "mbart", "architectures": ["MBartForConditionalGeneration"]}
    return {**head, **marian.write_body(config, roles), "bos_token_id": roles.begin}


SUPPORTED = {
    **marian.SUPPORTED,
    "position": ("learned",),
    "embedding_norm": (True,),
    "share_embeddings": (True,),
    "tie_output": (True,),
}
IGNORED = {
    r"model\.(encoder|decoder)\.embed_tokens\.weight": "a copy of the shared table",
    r"lm_head\.weight": "a copy of the shared table",
}
BART = Family(
    "bart", "BART", "model.", read_bart, write_bart, rows, SUPPORTED, IGNORED, marian.duplicates,
    unused_positions=lambda roles: UNUSED,
)  # fmt: skip
MBART = Family(
    "mbart", "mBART", "model.", read_mbart, write_mbart, rows, {**SUPPORTED, "placement": ("pre",)}, IGNORED,
    marian.duplicates, unused_positions=lambda roles: UNUSED,
)  # fmt: skip
