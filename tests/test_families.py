"""Full models compared with transformers and with torch.nn.Transformer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign import bert, llama, make_twins, randomize
from torch import nn

from chumoku.models.build import build
from chumoku.models.config import ModelConfig
from chumoku.models.model import Model


def copy_parameters(ours: nn.Module, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
    """Copy weight and bias into a linear layer, a norm or a table."""
    parameters = list(ours.parameters())
    with torch.no_grad():
        parameters[0].copy_(weight)
        if bias is not None:
            parameters[1].copy_(bias)


def copy_linear(ours: nn.Module, theirs: nn.Module) -> None:
    copy_parameters(ours, theirs.weight, getattr(theirs, "bias", None))


def assert_close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def rebuild(model: Model, **changes: Any) -> Model:
    """A model with the same weights and other settings."""
    other = build(replace(model.config, **changes))
    other.load_state_dict(model.state_dict())
    return other.eval()


@pytest.mark.parametrize("window", [1, 5, 37])
def test_mistral(window: int, tmp_path: Path) -> None:
    same, theirs = make_twins(llama(vocab_size=29), tmp_path)
    mistral = llama("Mistral", vocab_size=29, sliding_window=window).eval()
    mistral.load_state_dict(theirs.state_dict())
    ids = torch.randint(29, (2, 31))
    assert_close(rebuild(same, attention_window=window)(ids).logits, mistral(ids).logits)


def test_bert(tmp_path: Path) -> None:
    ours, theirs = make_twins(bert(vocab_size=29), tmp_path)
    ids, segments = torch.randint(29, (2, 11)), torch.randint(2, (2, 11))
    mask = torch.arange(11) < torch.tensor([[11], [7]])
    expected = theirs(ids, attention_mask=mask.long(), token_type_ids=segments, output_hidden_states=True)
    output = rebuild(ours, normalize=False)(ids, mask=mask, segments=segments)
    assert_close(output.logits[mask], expected.logits[mask])
    hidden = expected.hidden_states[-1]
    mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    assert_close(output.vector, mean)


def test_the_paper_model() -> None:
    """√D, sinusoidal positions, post-norm and shared tables around torch.nn.Transformer's layers."""
    sizes = {"vocabulary": 29, "width": 30, "layers": 2, "heads": 3, "feedforward_width": 41}
    paper = {"feedforward": "relu", "position": "sinusoidal", "placement": "post", "scale_embedding": True}
    ours = build(ModelConfig(kind="encoder-decoder", **sizes, **paper, share_embeddings=True))
    theirs = torch.nn.Transformer(30, 3, 2, 2, 41, batch_first=True, dropout=0.0)
    theirs.encoder.norm = theirs.decoder.norm = None
    randomize(theirs)
    for stack, layers in ((ours.encoder, theirs.encoder.layers), (ours.decoder, theirs.decoder.layers)):
        for block, layer in zip(stack.blocks, layers, strict=True):
            pairs = [(block.attention, layer.self_attn)]
            norms = [block.attention_norm, block.feedforward_norm]
            if block.cross_attention is not None:
                pairs.append((block.cross_attention, layer.multihead_attn))
                norms.insert(1, block.cross_attention_norm)
            for attention, other in pairs:
                for part, weight, bias in zip(
                    ("query", "key", "value"), other.in_proj_weight.chunk(3), other.in_proj_bias.chunk(3), strict=True
                ):
                    copy_parameters(getattr(attention, part), weight, bias)
                copy_linear(attention.output, other.out_proj)
            for number, norm in enumerate(norms, start=1):
                copy_linear(norm, getattr(layer, f"norm{number}"))
            copy_linear(block.feedforward.up, layer.linear1)
            copy_linear(block.feedforward.down, layer.linear2)

    def embed(ids: torch.Tensor) -> torch.Tensor:
        position = torch.arange(ids.shape[1])[:, None]
        even = torch.arange(0, 30, 2)
        encoding = torch.zeros(ids.shape[1], 30)
        encoding[:, 0::2] = torch.sin(position / 10000 ** (even / 30))
        encoding[:, 1::2] = torch.cos(position / 10000 ** (even / 30))
        return ours.decoder.embedding.table[ids] * 30**0.5 + encoding

    source, target = torch.randint(29, (2, 11)), torch.randint(29, (2, 7))
    causal = torch.nn.Transformer.generate_square_subsequent_mask(7)
    hidden = theirs(embed(source), embed(target), tgt_mask=causal)
    assert_close(ours(source, target).logits, hidden @ ours.decoder.embedding.table.T)
