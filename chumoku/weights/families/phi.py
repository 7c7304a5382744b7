"""Phi-1, Phi-1.5 and Phi-2: GPT-NeoX with separate query, key and value, and one norm for both parallel sublayers."""

from __future__ import annotations

from typing import Any

from chumoku.models.config import ModelConfig
from chumoku.text.special_tokens import Roles
from chumoku.weights.families.family import (
    Family,
    Values,
    make_config,
    our_name,
    read_number,
    require,
    their_name,
    write_sizes,
)
from chumoku.weights.families.gpt2 import ACTIVATIONS
from chumoku.weights.families.llama import duplicates
from chumoku.weights.families.rotary import read_rotary, write_rotary
from chumoku.weights.families.table import Row, Source, layer_rows, linear_rows, norm_rows, tensor_row

SHARE = 0.5  # of each head that is rotated, if the config does not say


def rows(config: ModelConfig) -> list[Row]:
    ours, theirs = "decoder.blocks.{}", "model.layers.{}"
    block = [
        *norm_rows(f"{ours}.attention_norm", f"{theirs}.input_layernorm"),
        *linear_rows(f"{ours}.attention.query", f"{theirs}.self_attn.q_proj", heads=config.heads),
        *linear_rows(f"{ours}.attention.key", f"{theirs}.self_attn.k_proj", heads=config.key_heads),
        *linear_rows(f"{ours}.attention.value", f"{theirs}.self_attn.v_proj"),
        *linear_rows(f"{ours}.attention.output", f"{theirs}.self_attn.dense"),
        *linear_rows(f"{ours}.feedforward.up", f"{theirs}.mlp.fc1"),
        *linear_rows(f"{ours}.feedforward.down", f"{theirs}.mlp.fc2"),
    ]
    return [
        tensor_row("decoder.embedding.table", "model.embed_tokens.weight"),
        *layer_rows(config.layers, block),
        *norm_rows("decoder.norm", "model.final_layernorm"),
        tensor_row("head.weight", "lm_head.weight"),
        tensor_row("head.bias", "lm_head.bias"),
    ]


def read(values: Values, source: Source) -> ModelConfig:
    require(values, "Phi", {"qk_layernorm": (False,)})
    heads = read_number(values, "num_attention_heads", 32)
    kv_heads = heads if values.get("num_key_value_heads") is None else read_number(values, "num_key_value_heads")
    return make_config({
        "kind": "decoder", "position": "rotary", "pairing": "half", "norm": "layer", "placement": "pre",
        "parallel": True, "shared_norm": True, "output_bias": True,
        "vocabulary": read_number(values, "vocab_size", 51200),
        "context": read_number(values, "max_position_embeddings", 2048),
        "width": read_number(values, "hidden_size", 2048),
        "layers": read_number(values, "num_hidden_layers", 24),
        "heads": heads,
        **({} if kv_heads == heads else {"kv_heads": kv_heads}),
        "feedforward": our_name(values, "hidden_act", ACTIVATIONS, "gelu_new"),
        "feedforward_width": read_number(values, "intermediate_size", 8192),
        "norm_epsilon": read_number(values, "layer_norm_eps", 1e-5),
        "rotary": read_rotary({"partial_rotary_factor": SHARE, **values}),
        "tie_output": values.get("tie_word_embeddings", False),
        "dropout": {
            "embedding": read_number(values, "embd_pdrop", 0.0), "sublayer": read_number(values, "resid_pdrop", 0.0),
            "attention": read_number(values, "attention_dropout", 0.0),
        },
    })  # fmt: skip


def write(config: ModelConfig, roles: Roles) -> dict[str, Any]:
    return {
        "model_type": "phi", "architectures": ["PhiForCausalLM"],
        **write_sizes(config),
        "num_key_value_heads": config.key_heads,
        "hidden_act": their_name(config.feedforward, ACTIVATIONS),
        "layer_norm_eps": config.norm_epsilon,
        "tie_word_embeddings": config.tie_output,
        "embd_pdrop": config.dropout.embedding, "resid_pdrop": config.dropout.sublayer,
        "attention_dropout": config.dropout.attention,
        "rope_theta": config.rotary.base, "partial_rotary_factor": config.rotary.share,
        "rope_parameters": {**write_rotary(config.rotary), "partial_rotary_factor": config.rotary.share},
        "bos_token_id": roles.begin, "eos_token_id": roles.end, "pad_token_id": roles.pad,
    }  # fmt: skip


SUPPORTED = {
    "kind": ("decoder",),
    "position": ("rotary",),
    "rotary.share": None,
    "rotary.scaling": ("none", "linear", "llama3", "yarn"),
    "norm": ("layer",),
    "placement": ("pre",),
    "parallel": (True,),
    "shared_norm": (True,),
    "feedforward": tuple(dict.fromkeys(ACTIVATIONS.values())),
    "bias": (True,),
    "experts": (0,),
    "scale_embedding": (False,),
    "embedding_norm": (False,),
    "output_bias": (True,),
}
IGNORED = {
    r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq": "the frequencies, which we compute",
    r"lm_head\.weight": "a copy of the embedding, if tied",
}
PHI = Family("phi", "Phi", "model.", read, write, rows, SUPPORTED, IGNORED, duplicates, pairing="half")
