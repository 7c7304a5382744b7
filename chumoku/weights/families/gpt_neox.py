"""GPT-NeoX and Pythia: layer norms, rotary positions in a part of each head, parallel sublayers, one matrix for query,
key and value with the rows of each head together."""

from __future__ import annotations

from typing import Any

from chumoku.models.config import ModelConfig
from chumoku.text.special_tokens import Roles
from chumoku.weights.families.family import Family, Values, make_config, our_name, read_number, their_name, write_sizes
from chumoku.weights.families.gpt2 import ACTIVATIONS
from chumoku.weights.families.rotary import read_rotary, write_rotary
from chumoku.weights.families.table import Row, Source, layer_rows, linear_rows, norm_rows, tensor_row


def rows(config: ModelConfig) -> list[Row]:
    ours, theirs = "decoder.blocks.{}", "gpt_neox.layers.{}"
    joined = [
        Row(
            tuple(f"{ours}.attention.{part}.{end}" for part in ("query", "key", "value")),
            f"{theirs}.attention.query_key_value.{end}",
            heads=2 * config.heads,
            per_head=config.heads,
        )
        for end in ("weight", "bias")
    ]
    block = [
        *norm_rows(f"{ours}.attention_norm", f"{theirs}.input_layernorm"),
        *joined,
        *linear_rows(f"{ours}.attention.output", f"{theirs}.attention.dense"),
        *norm_rows(f"{ours}.feedforward_norm", f"{theirs}.post_attention_layernorm"),
        *linear_rows(f"{ours}.feedforward.up", f"{theirs}.mlp.dense_h_to_4h"),
        *linear_rows(f"{ours}.feedforward.down", f"{theirs}.mlp.dense_4h_to_h"),
    ]
    return [
        tensor_row("decoder.embedding.table", "gpt_neox.embed_in.weight"),
        *layer_rows(config.layers, block),
        *norm_rows("decoder.norm", "gpt_neox.final_layer_norm"),
        tensor_row("head.weight", "embed_out.weight"),
    ]


def read(values: Values, source: Source) -> ModelConfig:
    # Older files have rotary_emb_base and rotary_pct.
    rope = {"rope_theta": values.get("rotary_emb_base", 10000.0), **values}
    rotary = read_rotary({**rope, "partial_rotary_factor": values.get("rotary_pct", 0.25)})
    dropout = read_number(values, "hidden_dropout", 0.0)
    return make_config({
        "kind": "decoder", "position": "rotary", "pairing": "half", "norm": "layer", "placement": "pre",
        "vocabulary": read_number(values, "vocab_size", 50432),
        "context": read_number(values, "max_position_embeddings", 2048),
        "width": read_number(values, "hidden_size", 6144),
        "layers": read_number(values, "num_hidden_layers", 44),
        "heads": read_number(values, "num_attention_heads", 64),
        "feedforward": our_name(values, "hidden_act", ACTIVATIONS, "gelu"),
        "feedforward_width": read_number(values, "intermediate_size", 24576),
        "norm_epsilon": read_number(values, "layer_norm_eps", 1e-5),
        "parallel": values.get("use_parallel_residual", True),
        **({} if values.get("attention_bias", True) else {"attention_bias": "none"}),
        "rotary": rotary,
        "tie_output": values.get("tie_word_embeddings", False),
        "dropout": {
            "embedding": dropout, "sublayer": dropout, "attention": read_number(values, "attention_dropout", 0.0),
        },
    })  # fmt: skip


def write(config: ModelConfig, roles: Roles) -> dict[str, Any]:
    return {
        "model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"],
        **write_sizes(config),
        "hidden_act": their_name(config.feedforward, ACTIVATIONS),
        "layer_norm_eps": config.norm_epsilon,
        "use_parallel_residual": config.parallel,
        "attention_bias": config.biased_attention == "all",
        "tie_word_embeddings": config.tie_output,
        "hidden_dropout": config.dropout.sublayer, "attention_dropout": config.dropout.attention,
        "rotary_emb_base": config.rotary.base, "rotary_pct": config.rotary.share,
        "rope_parameters": {**write_rotary(config.rotary), "partial_rotary_factor": config.rotary.share},
        "bos_token_id": roles.begin, "eos_token_id": roles.end, "pad_token_id": roles.pad,
    }  # fmt: skip


def duplicates(config: ModelConfig) -> dict[str, str]:
    return {"embed_out.weight": "gpt_neox.embed_in.weight"} if config.tie_output else {}


SUPPORTED = {
    "kind": ("decoder",),
    "position": ("rotary",),
    "rotary.share": None,
    "rotary.scaling": ("none", "linear", "llama3", "yarn"),
    "norm": ("layer",),
    "placement": ("pre",),
    "parallel": (False, True),
    "feedforward": tuple(dict.fromkeys(ACTIVATIONS.values())),
    "bias": (True,),
    "attention_bias": (None, "none"),
    "kv_heads": (None,),
    "experts": (0,),
    "scale_embedding": (False,),
    "embedding_norm": (False,),
    "output_bias": (False,),
}
IGNORED = {
    r"gpt_neox\.layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)": "the mask and the frequencies, which "
    "we compute",
    r"embed_out\.weight": "a copy of the embedding, if tied",
}
GPT_NEOX = Family(
    "gpt_neox", "GPT-NeoX", "gpt_neox.", read, write, rows, SUPPORTED, IGNORED, duplicates, pairing="half"
)
