"""Tiny transformers models with random weights, for every supported family and variant."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from bundles import byte_tokenizer
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from chumoku.models.model import EncoderDecoderModel, Model
from chumoku.weights.bundle import Tokenizers
from chumoku.weights.bundle_weights import tensors_of
from chumoku.weights.formats.transformers_folder import write_folder
from chumoku.weights.open_model import load

VOCABULARY, OTHER = 263, 269
ROPE: dict[str, Any] = {"rope_theta": 777.0, "rope_type": "default"}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALINGS: dict[str, dict[str, Any]] = {
    "none": {},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "llama3": {**LLAMA3, "original_max_position_embeddings": 16},
}


def llama(kind: str = "Llama", **changes: Any) -> nn.Module:
    """A Llama, or a Mistral: the same tensors, with sliding-window attention."""
    sizes: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 36, "intermediate_size": 41}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2}
    sizes |= {"max_position_embeddings": 67, "rms_norm_eps": 1e-2, "rope_parameters": ROPE}
    sizes |= {"tie_word_embeddings": False}
    config = getattr(transformers, f"{kind}Config")(**{**sizes, **changes})
    return getattr(transformers, f"{kind}ForCausalLM")(config)


def gpt2(**changes: Any) -> nn.Module:
    sizes = {"vocab_size": VOCABULARY, "n_positions": 67, "n_embd": 30, "n_layer": 2, "n_head": 3}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**{**sizes, "layer_norm_epsilon": 1e-2, **changes}))


def bert(kind: type[nn.Module] = transformers.BertForMaskedLM, **changes: Any) -> nn.Module:
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 30, "num_hidden_layers": 2, "num_attention_heads": 3}
    sizes |= {"intermediate_size": 41, "max_position_embeddings": 67, "layer_norm_eps": 1e-2}
    return kind(transformers.BertConfig(**{**sizes, **changes}))


def marian(**changes: Any) -> nn.Module:
    sizes: dict[str, Any] = {"vocab_size": VOCABULARY, "d_model": 30, "max_position_embeddings": 67}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_layers": 2, f"{side}_attention_heads": 3, f"{side}_ffn_dim": 41}
    sizes |= {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 1, "forced_eos_token_id": None}
    return transformers.MarianMTModel(transformers.MarianConfig(**{**sizes, "scale_embedding": True, **changes}))


def marian_with_odd_positions(**changes: Any) -> nn.Module:
    """A Marian with random position tables."""
    model = marian(**changes)
    for side in (model.model.encoder, model.model.decoder):
        side.embed_positions.weight.data.normal_(generator=torch.Generator().manual_seed(5))
    return model


VARIANTS: dict[str, Callable[[], nn.Module]] = {
    "gpt2": gpt2,
    "gpt2 untied": lambda: gpt2(tie_word_embeddings=False, activation_function="relu", n_inner=41),
    "bert": bert,
    "bert untied": lambda: bert(tie_word_embeddings=False, hidden_act="gelu_new"),
    "bert body": lambda: bert(transformers.BertModel, add_pooling_layer=False),
    "llama": llama,
    "llama tied": lambda: llama(tie_word_embeddings=True),
    "llama biases": lambda: llama(attention_bias=True, mlp_bias=True),
    "llama one head each": lambda: llama(num_key_value_heads=6),
    "llama linear": lambda: llama(rope_parameters={**ROPE, **SCALINGS["linear"]}),
    "llama 3": lambda: llama(rope_parameters={**ROPE, **SCALINGS["llama3"]}),
    "marian": marian,
    "marian two tables": lambda: marian(share_encoder_decoder_embeddings=False, decoder_vocab_size=OTHER),
    "marian untied": lambda: marian(tie_word_embeddings=False, activation_function="swish", encoder_layers=3),
    "marian odd positions": marian_with_odd_positions,
}


def randomize(theirs: nn.Module) -> nn.Module:
    """Randomize all weights, biases and norms, except position tables."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "embed_positions" not in name:
                parameter.normal_(0, 0.3, generator=generator)
        if hasattr(theirs, "final_logits_bias"):
            theirs.final_logits_bias.normal_(generator=generator)
    return theirs.eval()


def save_model(theirs: nn.Module, folder: Path, **options: Any) -> Path:
    """Save a model with transformers, together with a byte tokenizer."""
    theirs.save_pretrained(folder, **options)
    byte_tokenizer().save(folder / "tokenizer.json")
    return folder


def save_variant(name: str, folder: Path) -> nn.Module:
    model = VARIANTS[name]()
    theirs = randomize(model.base_model if name == "bert body" else model)
    save_model(theirs, folder)
    if "odd" in name:  # the library leaves positions out, which it thinks it can compute
        tables = {key: table for key, table in theirs.state_dict().items() if "embed_positions" in key}
        file = folder / "model.safetensors"
        save_file({**load_file(file), **tables}, file, {"format": "pt"})
    return theirs


def export(model: Model, folder: Path) -> Path:
    """Write a transformers folder with a byte tokenizer."""
    folder.mkdir()
    tokenizer = byte_tokenizer()
    write_folder(folder, model, Tokenizers(tokenizer, tokenizer))
    return folder


def edit_config(folder: Path, **values: Any) -> None:
    """Change values in the folder's config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def equal_models(first: Model, second: Model) -> bool:
    """Whether configs and tensors are the same, bit for bit."""
    ours, others = tensors_of(first), tensors_of(second)
    same = ours.keys() == others.keys() and all(torch.equal(ours[name], others[name]) for name in ours)
    return first.config == second.config and same


def make_twins(theirs: nn.Module, folder: Path) -> tuple[Model, nn.Module]:
    """Our model with the random weights of theirs, and theirs."""
    randomize(theirs).save_pretrained(folder)
    return load(folder).model, theirs


@torch.no_grad()
def outputs_of_both(ours: Model, theirs: nn.Module, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Our and their output for the same tokens: logits, or the last hidden states of a model without a head."""
    random = torch.Generator().manual_seed(seed)
    ids = torch.randint(VOCABULARY, (2, 31), generator=random)
    if isinstance(ours, EncoderDecoderModel):
        target = torch.randint(VOCABULARY, (2, 29), generator=random)
        expected = theirs(input_ids=ids, decoder_input_ids=target).logits
        return require(ours(ids, target).logits), expected
    expected = theirs(ids)
    if hasattr(expected, "logits"):
        return require(ours(ids).logits), expected.logits
    return ours(ids).hidden, expected.last_hidden_state


def require(logits: Tensor | None) -> Tensor:
    assert logits is not None
    return logits
