"""Marian: the original encoder-decoder with post-norm blocks and a bias on the logits.

Its position table has all sines, then all cosines. A file may contain another table: interleaved, or learned.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from chumoku.errors import UsageError
from chumoku.models.config import ModelConfig
from chumoku.nn.positions import Pairing, sinusoidal
from chumoku.text.special_tokens import Roles
from chumoku.weights.families.family import Family, Values, make_config, our_name, read_number, require, their_name
from chumoku.weights.families.table import Row, Source, layer_rows, linear_rows, norm_rows, tensor_row

ACTIVATIONS = {
    **{"swish": "silu", "silu": "silu", "relu": "relu", "gelu": "gelu"},
    **{"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"},
}
POSITIONS = "model.{}.embed_positions.weight"
PAIRINGS: tuple[Pairing, ...] = ("half", "interleaved")


def rows(config: ModelConfig) -> list[Row]:
    tables = [tensor_row("encoder.embedding.table", "model.shared.weight")]
    if not shares_all_embeddings(config):
        target = "encoder" if config.share_embeddings else "decoder"
        tables = [
            tensor_row("encoder.embedding.table", "model.encoder.embed_tokens.weight"),
            tensor_row(f"{target}.embedding.table", "model.decoder.embed_tokens.weight"),
        ]
    learned = [tensor_row(f"{side}.position.table", POSITIONS.format(side)) for side in ("encoder", "decoder")]
    return [
        *tables,
        *learned,
        *layer_rows(config.encoder_depth, block_rows("encoder")),
        *layer_rows(config.decoder_depth, block_rows("decoder")),
        tensor_row("head.weight", "lm_head.weight"),
        tensor_row("head.bias", "final_logits_bias", unsqueezed=True),
    ]


def shares_all_embeddings(config: ModelConfig) -> bool:
    """Whether encoder, decoder and output share one table; otherwise Marian stores one for each."""
    return config.share_embeddings and config.tie_output


def duplicates(config: ModelConfig) -> dict[str, str]:
    if not shares_all_embeddings(config):
        return {"lm_head.weight": "model.decoder.embed_tokens.weight"} if config.tie_output else {}
    tables = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
    return dict.fromkeys(tables, "model.shared.weight")


def block_rows(side: str) -> list[Row]:
    ours, theirs = f"{side}.blocks.{{}}", f"model.{side}.layers.{{}}"
    return [
        *attention_rows(f"{ours}.attention", f"{theirs}.self_attn"),
        *norm_rows(f"{ours}.attention_norm", f"{theirs}.self_attn_layer_norm"),
        *attention_rows(f"{ours}.cross_attention", f"{theirs}.encoder_attn"),
        *norm_rows(f"{ours}.cross_attention_norm", f"{theirs}.encoder_attn_layer_norm"),
        *linear_rows(f"{ours}.feedforward.up", f"{theirs}.fc1"),
        *linear_rows(f"{ours}.feedforward.down", f"{theirs}.fc2"),
        *norm_rows(f"{ours}.feedforward_norm", f"{theirs}.final_layer_norm"),
    ]


def attention_rows(ours: str, theirs: str) -> list[Row]:
    return [
        *linear_rows(f"{ours}.query", f"{theirs}.q_proj"),
        *linear_rows(f"{ours}.key", f"{theirs}.k_proj"),
        *linear_rows(f"{ours}.value", f"{theirs}.v_proj"),
        *linear_rows(f"{ours}.output", f"{theirs}.out_proj"),
    ]


def read(values: Values, source: Source) -> ModelConfig:
    require(values, "Marian", {
        "normalize_before": (False,), "normalize_embedding": (False,), "add_final_layer_norm": (False,),
        "static_position_embeddings": (True,),
    })  # fmt: skip
    vocabulary, tied = read_number(values, "vocab_size", 58101), values.get("tie_word_embeddings", True)
    target = vocabulary if values.get("decoder_vocab_size") is None else read_number(values, "decoder_vocab_size")
    body = read_body(values, "Marian")
    return make_config({
        **body,
        "placement": "post",
        "vocabulary": target,
        **({} if target == vocabulary else {"source_vocabulary": vocabulary}),
        "share_embeddings": tied and values.get("share_encoder_decoder_embeddings", True),
        "tie_output": tied,
        "output_bias": "final_logits_bias" in source.shapes,
        **read_positions(source, body["context"], body["width"]),
    })  # fmt: skip


def read_body(values: Values, title: str) -> dict[str, Any]:
    """Config values that all models of this kind have: sizes, activation, scale of the embedding, and dropout."""
    require(values, title, {"is_decoder": (False,)})
    for key in ("attention_heads", "ffn_dim"):
        if values.get(f"encoder_{key}") != values.get(f"decoder_{key}"):
            raise UsageError(f"This {title}'s encoder and decoder have different {key}; only equal ones are supported.")
    depth, dropout = read_number(values, "decoder_layers", 12), read_number(values, "dropout", 0.1)
    encoder_depth = read_number(values, "encoder_layers", 12)
    return {
        "kind": "encoder-decoder", "norm": "layer", "norm_epsilon": 1e-5,
        "context": read_number(values, "max_position_embeddings", 1024),
        "width": read_number(values, "d_model", 1024),
        "layers": depth,
        **({} if depth == encoder_depth else {"encoder_layers": encoder_depth}),
        "heads": read_number(values, "decoder_attention_heads", 16),
        "feedforward": our_name(values, "activation_function", ACTIVATIONS, "gelu"),
        "feedforward_width": read_number(values, "decoder_ffn_dim", 4096),
        "scale_embedding": values.get("scale_embedding", False),
        "dropout": {
            "embedding": dropout, "sublayer": dropout, "attention": read_number(values, "attention_dropout", 0.0),
        },
    }  # fmt: skip


def read_positions(source: Source, length: int, width: int) -> dict[str, str]:
    """Config values for a file's positions: sinusoidal if its tables match the formula, else learned."""
    names = [name for side in ("encoder", "decoder") if (name := POSITIONS.format(side)) in source.shapes]
    for name in names:
        if source.shapes[name] != (length, width):
            raise UsageError(
                f"{source.path}: {name} has shape {list(source.shapes[name])}; its config needs [{length}, {width}]."
            )
    tables = [source.read(name) for name in names]
    found = next((pairing for pairing in PAIRINGS if all(_matches_formula(table, pairing) for table in tables)), None)
    return {"position": "learned"} if found is None else {"position": "sinusoidal", "pairing": found}


def _matches_formula(table: Tensor, pairing: Pairing) -> bool:
    formula = sinusoidal(torch.arange(len(table)), table.shape[1], pairing=pairing, dtype=torch.float64)
    return torch.allclose(table.double(), formula, atol=1e-4 if table.dtype == torch.float32 else 1e-2)


def extra_tensors(config: ModelConfig) -> dict[str, Tensor]:
    """Position tables to write into the file if they differ from those that Marian computes."""
    if config.position != "sinusoidal" or config.pairing == "half":
        return {}
    table = sinusoidal(torch.arange(config.context), config.width, pairing=config.pairing, dtype=torch.float64).float()
    return {POSITIONS.format(side): table.clone() for side in ("encoder", "decoder")}


def write(config: ModelConfig, roles: Roles) -> dict[str, Any]:
    return {
        "model_type": "marian", "architectures": ["MarianMTModel"],
        **write_body(config, roles),
        "vocab_size": config.source_tokens, "decoder_vocab_size": config.vocabulary,
        "share_encoder_decoder_embeddings": shares_all_embeddings(config),
        "tie_word_embeddings": config.tie_output,
        "bos_token_id": None,
    }  # fmt: skip


def write_body(config: ModelConfig, roles: Roles) -> dict[str, Any]:
    sizes = {
        f"{side}_{key}": value
        for side, depth in (("encoder", config.encoder_depth), ("decoder", config.decoder_depth))
        for key, value in (("layers", depth), ("attention_heads", config.heads), ("ffn_dim", config.hidden))
    }
    return {
        "is_encoder_decoder": True,
        "vocab_size": config.vocabulary,
        "max_position_embeddings": config.context,
        "d_model": config.width,
        **sizes,
        "activation_function": their_name(config.feedforward, ACTIVATIONS),
        "scale_embedding": config.scale_embedding,
        "dropout": config.dropout.sublayer, "attention_dropout": config.dropout.attention,
        "pad_token_id": roles.pad, "eos_token_id": roles.end,
        "decoder_start_token_id": roles.begin, "forced_eos_token_id": None,
    }  # fmt: skip


SUPPORTED = {
    "kind": ("encoder-decoder",),
    "position": ("sinusoidal", "learned"),
    "norm": ("layer",),
    "norm_epsilon": (1e-5,),
    "placement": ("post",),
    "feedforward": tuple(dict.fromkeys(ACTIVATIONS.values())),
    "bias": (True,),
    "kv_heads": (None,),
    "experts": (0,),
    "embedding_norm": (False,),
}
IGNORED = {
    r"model\.(encoder|decoder)\.embed_tokens\.weight": "a copy of the shared table",
    r"model\.(encoder|decoder)\.embed_positions\.weight": "sines and cosines, which we compute",
    r"model\.shared\.weight": "a copy of one of the tables, if each side has its own",
    r"lm_head\.weight": "a copy of the embedding, if tied",
}
MARIAN = Family("marian", "Marian", "model.", read, write, rows, SUPPORTED, IGNORED, duplicates)
