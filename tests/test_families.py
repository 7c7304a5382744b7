"""Full models compared with transformers, with weights copied by hand."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch import nn

from chumoku.models.build import build
from chumoku.models.config import ModelConfig, RotarySettings
from chumoku.models.model import Model


def randomize(theirs: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(0, 0.3, generator=generator)
    return theirs.eval()


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


def gpt2() -> tuple[Model, nn.Module]:
    theirs = randomize(
        transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=29, n_positions=23, n_embd=30, n_layer=2, n_head=3, layer_norm_epsilon=1e-2
            )
        )
    )
    config = ModelConfig(
        vocabulary=29,
        context=23,
        width=30,
        layers=2,
        heads=3,
        position="learned",
        feedforward="gelu_tanh",
        norm_epsilon=1e-2,
    )
    ours = build(config)
    body = theirs.transformer
    copy_parameters(ours.decoder.embedding, body.wte.weight)
    copy_parameters(ours.decoder.position, body.wpe.weight)
    copy_linear(ours.decoder.norm, body.ln_f)
    for block, layer in zip(ours.decoder.blocks, body.h, strict=True):
        copy_linear(block.attention_norm, layer.ln_1)
        copy_linear(block.feedforward_norm, layer.ln_2)
        weights, biases = layer.attn.c_attn.weight.T.chunk(3), layer.attn.c_attn.bias.chunk(3)
        for part, weight, bias in zip(("query", "key", "value"), weights, biases, strict=True):
            copy_parameters(getattr(block.attention, part), weight, bias)
        copy_parameters(block.attention.output, layer.attn.c_proj.weight.T, layer.attn.c_proj.bias)
        copy_parameters(block.feedforward.up, layer.mlp.c_fc.weight.T, layer.mlp.c_fc.bias)
        copy_parameters(block.feedforward.down, layer.mlp.c_proj.weight.T, layer.mlp.c_proj.bias)
    return ours, theirs


def test_gpt2() -> None:
    ours, theirs = gpt2()
    ids = torch.randint(29, (2, 11))
    assert_close(ours(ids).logits, theirs(ids).logits)


def llama(scaling: str, tied: bool, window: int | None = None) -> tuple[Model, nn.Module]:
    """A Llama, or with a window a Mistral: the same tensors, with sliding-window attention."""
    rope: dict[str, object] = {"rope_type": "default", "rope_theta": 777.0}
    rotary = RotarySettings(base=777.0)
    if scaling == "linear":
        rope |= {"rope_type": "linear", "factor": 3.0}
        rotary = RotarySettings(base=777.0, scaling="linear", factor=3.0)
    elif scaling == "llama3":
        rope |= {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        rope["original_max_position_embeddings"] = 16
        rotary = RotarySettings(base=777.0, scaling="llama3", factor=8.0, original=16)
    model_class, config_class, more = transformers.LlamaForCausalLM, transformers.LlamaConfig, {}
    if window is not None:
        model_class, config_class = transformers.MistralForCausalLM, transformers.MistralConfig
        more = {"sliding_window": window}
    theirs = randomize(
        model_class(
            config_class(
                vocab_size=29,
                hidden_size=36,
                intermediate_size=41,
                num_hidden_layers=2,
                num_attention_heads=6,
                num_key_value_heads=2,
                max_position_embeddings=64,
                rms_norm_eps=1e-2,
                rope_parameters=rope,
                tie_word_embeddings=tied,
                **more,
            )
        )
    )
    ours = build(
        ModelConfig(
            vocabulary=29,
            width=36,
            layers=2,
            heads=6,
            kv_heads=2,
            feedforward="swiglu",
            feedforward_width=41,
            norm="rms",
            norm_epsilon=1e-2,
            bias=False,
            pairing="half",
            rotary=rotary,
            attention_window=window,
            tie_output=tied,
        )
    )
    copy_parameters(ours.decoder.embedding, theirs.model.embed_tokens.weight)
    copy_linear(ours.decoder.norm, theirs.model.norm)
    if not tied:
        copy_parameters(ours.head, theirs.lm_head.weight)
    for block, layer in zip(ours.decoder.blocks, theirs.model.layers, strict=True):
        copy_linear(block.attention_norm, layer.input_layernorm)
        copy_linear(block.feedforward_norm, layer.post_attention_layernorm)
        for part, name in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"), ("output", "o_proj")):
            copy_linear(getattr(block.attention, part), getattr(layer.self_attn, name))
        for part in ("up", "gate", "down"):
            copy_linear(getattr(block.feedforward, part), getattr(layer.mlp, f"{part}_proj"))
    return ours, theirs


@pytest.mark.parametrize("scaling", ["none", "linear", "llama3"])
@pytest.mark.parametrize("tied", [True, False])
def test_llama(scaling: str, tied: bool) -> None:
    ours, theirs = llama(scaling, tied)
    ids = torch.randint(29, (2, 31))
    assert_close(ours(ids).logits, theirs(ids).logits)


@pytest.mark.parametrize("window", [1, 5, 37])
def test_mistral(window: int) -> None:
    ours, theirs = llama("none", False, window)
    ids = torch.randint(29, (2, 31))
    assert_close(ours(ids).logits, theirs(ids).logits)


@pytest.fixture(scope="module")
def bert() -> tuple[Model, nn.Module]:
    theirs = randomize(
        transformers.BertForMaskedLM(
            transformers.BertConfig(
                vocab_size=29,
                hidden_size=30,
                num_hidden_layers=2,
                num_attention_heads=3,
                intermediate_size=41,
                max_position_embeddings=23,
                layer_norm_eps=1e-2,
            )
        )
    )
    config = ModelConfig(
        kind="encoder",
        vocabulary=29,
        context=23,
        width=30,
        layers=2,
        heads=3,
        feedforward="gelu",
        feedforward_width=41,
        position="learned",
        norm_epsilon=1e-2,
        placement="post",
        embedding_norm=True,
        segments=2,
        output_bias=True,
        normalize=False,
    )
    ours = build(config)
    embeddings = theirs.bert.embeddings
    copy_parameters(ours.encoder.embedding, embeddings.word_embeddings.weight)
    copy_parameters(ours.encoder.position, embeddings.position_embeddings.weight)
    copy_parameters(ours.encoder.segment, embeddings.token_type_embeddings.weight)
    copy_linear(ours.encoder.embedding_norm, embeddings.LayerNorm)
    for block, layer in zip(ours.encoder.blocks, theirs.bert.encoder.layer, strict=True):
        for part in ("query", "key", "value"):
            copy_linear(getattr(block.attention, part), getattr(layer.attention.self, part))
        copy_linear(block.attention.output, layer.attention.output.dense)
        copy_linear(block.attention_norm, layer.attention.output.LayerNorm)
        copy_linear(block.feedforward.up, layer.intermediate.dense)
        copy_linear(block.feedforward.down, layer.output.dense)
        copy_linear(block.feedforward_norm, layer.output.LayerNorm)
    prediction = theirs.cls.predictions
    copy_linear(ours.head.transform, prediction.transform.dense)
    copy_linear(ours.head.norm, prediction.transform.LayerNorm)
    copy_parameters(ours.head.logits, prediction.bias)
    return ours, theirs


def test_bert(bert: tuple[Model, nn.Module]) -> None:
    ours, theirs = bert
    ids, segments = torch.randint(29, (2, 11)), torch.randint(2, (2, 11))
    mask = torch.arange(11) < torch.tensor([[11], [7]])
    expected = theirs(ids, attention_mask=mask.long(), token_type_ids=segments, output_hidden_states=True)
    output = ours(ids, mask=mask, segments=segments)
    assert_close(output.logits[mask], expected.logits[mask])
    hidden = expected.hidden_states[-1]
    mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    assert_close(output.vector, mean)


def test_the_paper_model() -> None:
    """√D, sinusoidal positions, post-norm and shared tables around torch.nn.Transformer's layers."""
    config = ModelConfig(
        kind="encoder-decoder",
        vocabulary=29,
        width=30,
        layers=2,
        heads=3,
        feedforward="relu",
        feedforward_width=41,
        position="sinusoidal",
        placement="post",
        scale_embedding=True,
        share_embeddings=True,
    )
    ours = build(config)
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
