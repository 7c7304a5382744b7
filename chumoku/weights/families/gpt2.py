"""GPT-2: learned positions, pre-norm blocks, one matrix for query, key and value; matrices are [inputs, outputs]."""

from __future__ import annotations

from typing import Any

from chumoku.models.config import ModelConfig
from chumoku.text.special_tokens import Roles
from chumoku.weights.families.classifier import DECODER, DECODER_SUPPORTED
from chumoku.weights.families.family import Family, Values, make_config, our_name, read_number, require, their_name
from chumoku.weights.families.table import Row, Source, layer_rows, linear_rows, norm_rows, tensor_row

ACTIVATIONS = {
    **{"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"},
    **{"relu": "relu", "silu": "silu"},
}

CLASSIFIER = DECODER._replace(tags="classifier")


def rows(config: ModelConfig) -> list[Row]:
    ours, theirs = "decoder.blocks.{}", "transformer.h.{}"
    joined = [
        tuple(f"{ours}.attention.{part}.{end}" for part in ("query", "key", "value")) for end in ("weight", "bias")
    ]
    return [
        tensor_row("decoder.embedding.table", "transformer.wte.weight"),
        tensor_row("decoder.position.table", "transformer.wpe.weight"),
        *layer_rows(
            config.layers,
            [
                *norm_rows(f"{ours}.attention_norm", f"{theirs}.ln_1"),
                Row(joined[0], f"{theirs}.attn.c_attn.weight", transposed=True),
                Row(joined[1], f"{theirs}.attn.c_attn.bias"),
                *linear_rows(f"{ours}.attention.output", f"{theirs}.attn.c_proj", transposed=True),
                *norm_rows(f"{ours}.feedforward_norm", f"{theirs}.ln_2"),
                *linear_rows(f"{ours}.feedforward.up", f"{theirs}.mlp.c_fc", transposed=True),
                *linear_rows(f"{ours}.feedforward.down", f"{theirs}.mlp.c_proj", transposed=True),
            ],
        ),
        *norm_rows("decoder.norm", "transformer.ln_f"),
        tensor_row("head.weight", "lm_head.weight"),
        *CLASSIFIER.rows(config),
    ]


def read(values: Values, source: Source) -> ModelConfig:
    require(values, "GPT-2", {
        "scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False, None),
    })  # fmt: skip
    width = read_number(values, "n_embd", 768)
    return make_config({
        "kind": "decoder", "position": "learned", "norm": "layer", "placement": "pre",
        "vocabulary": read_number(values, "vocab_size", 50257),
        "context": read_number(values, "n_positions", 1024),
        "width": width,
        "layers": read_number(values, "n_layer", 12),
        "heads": read_number(values, "n_head", 12),
        "feedforward": our_name(values, "activation_function", ACTIVATIONS, "gelu_new"),
        "feedforward_width": 4 * width if values.get("n_inner") is None else read_number(values, "n_inner"),
        "norm_epsilon": read_number(values, "layer_norm_epsilon", 1e-5),
        "tie_output": values.get("tie_word_embeddings", True),
        "dropout": {
            "embedding": read_number(values, "embd_pdrop", 0.1),
            "attention": read_number(values, "attn_pdrop", 0.1),
            "sublayer": read_number(values, "resid_pdrop", 0.1),
        },
        **CLASSIFIER.read(values, source),
    })  # fmt: skip


def write(config: ModelConfig, roles: Roles) -> dict[str, Any]:
    return {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"],
        "vocab_size": config.vocabulary,
        "n_positions": config.context,
        "n_embd": config.width,
        "n_layer": config.layers,
        "n_head": config.heads,
        "n_inner": config.hidden,
        "activation_function": their_name(config.feedforward, ACTIVATIONS),
        "layer_norm_epsilon": config.norm_epsilon,
        "tie_word_embeddings": config.tie_output,
        "embd_pdrop": config.dropout.embedding,
        "attn_pdrop": config.dropout.attention,
        "resid_pdrop": config.dropout.sublayer,
        "bos_token_id": roles.begin, "eos_token_id": roles.end, "pad_token_id": roles.pad,
        **CLASSIFIER.write(config, "GPT2"),
    }  # fmt: skip


def duplicates(config: ModelConfig) -> dict[str, str]:
    return {"lm_head.weight": "transformer.wte.weight"} if config.tie_output else {}


SUPPORTED = {
    "kind": ("decoder",),
    "position": ("learned",),
    "norm": ("layer",),
    "placement": ("pre",),
    "feedforward": tuple(dict.fromkeys(ACTIVATIONS.values())),
    "bias": (True,),
    "kv_heads": (None,),
    "experts": (0,),
    "scale_embedding": (False,),
    "embedding_norm": (False,),
    "output_bias": (False,),
    **DECODER_SUPPORTED,
}
IGNORED = {
    r"transformer\.h\.\d+\.attn\.(bias|masked_bias)": "the causal mask, which we compute",
    r"lm_head\.weight": "a copy of the embedding, if tied",
}
GPT2 = Family("gpt2", "GPT-2", "transformer.", read, write, rows, SUPPORTED, IGNORED, duplicates)
