"""Write a decoder or an encoder-decoder for CTranslate2's Generator or Translator.

    model.bin · config.json · vocabulary.json, or shared_vocabulary.json, or source_ and target_vocabulary.json
    tokenizer.json and source_tokenizer.json, for users; CTranslate2 does not read them

    ours                              theirs
    attention.query, key, value       self_attention.linear[0]       concatenated
    attention.output                  self_attention.linear[1]
    cross_attention.query             attention.linear[0]
    cross_attention.key, value        attention.linear[1]            concatenated
    feedforward.gate, up              ffn.linear_0, linear_0_noact   without a gate: up in linear_0
    feedforward.down                  ffn.linear_1
    relative.table[c + i − j]         relative_position_keys[c + j − i]

Sinusoidal positions, and none, are written as tables of length `context`; scaled rotary positions as one factor per
frequency. CTranslate2 works with token strings: a vocabulary is the list of a tokenizer's pieces, ordered by id.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers as backends
import torch
from torch import Tensor, nn

from chumoku.errors import UsageError
from chumoku.models.config import ModelConfig
from chumoku.models.model import DecoderModel, EncoderDecoderModel, Model
from chumoku.models.stack import Stack
from chumoku.nn.attention import Attention
from chumoku.nn.block import Block
from chumoku.nn.feedforward import ACTIVATIONS, FeedForward
from chumoku.nn.norms import LayerNorm
from chumoku.nn.positions import RotaryPositions, frequencies
from chumoku.text import Tokenizer
from chumoku.weights.bundle import SOURCE_TOKENIZER, TOKENIZER, Tokenizers
from chumoku.weights.certificate_peers import import_optional
from chumoku.weights.dequantize import dequantize_model
from chumoku.weights.families.family import find_unsupported

KINDS = ("float32", "float16", "int8")
SUPPORTED = {
    **{"kind": ("decoder", "encoder-decoder"), "experts": (0,), "norm": ("layer", "rms"), "placement": ("pre", "post")},
    "position": ("sinusoidal", "learned", "relative", "rotary", "none"),
    **{"sinusoidal.endpoint": (False, True), "sinusoidal.start": tuple(range(1025))},
}
ACTIVATION_NAMES = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH"}
ACTIVATION_NAMES |= {"geglu": "GELU", "geglu_tanh": "GELUTanh", "swiglu": "SWISH"}


def write_ctranslate2(folder: Path, model: Model, tokenizers: Tokenizers, *, kind: str = "float32") -> None:
    """Write the files of a CTranslate2 model into an existing folder; `kind` is the number type."""
    if kind not in KINDS:
        raise UsageError(f"CTranslate2 models cannot be written as '{kind[:60]}'. Choose one of {', '.join(KINDS)}.")
    library = import_optional("ctranslate2")
    check_supported(model.config)
    model = dequantize_model(model)
    tokenizers.target.save(folder / TOKENIZER)
    target = read_vocabulary(folder / TOKENIZER, model.config.vocabulary)
    if isinstance(model, EncoderDecoderModel):
        source = target
        if tokenizers.source is not tokenizers.target:
            tokenizers.source.save(folder / SOURCE_TOKENIZER)
            source = read_vocabulary(folder / SOURCE_TOKENIZER, model.config.source_tokens)
        spec = _make_translator(library, model)
        spec.register_source_vocabulary(source)
        spec.register_target_vocabulary(target)
        spec.config.decoder_start_token = target[_token_id(tokenizers.target, "begin")]
    elif isinstance(model, DecoderModel):
        decoder = _make_decoder(library, model.config, model.decoder, model.head)
        spec = library.specs.TransformerDecoderModelSpec(decoder)
        spec.register_vocabulary(target)
    _set_special_tokens(spec.config, tokenizers.target, target)
    spec.config.layer_norm_epsilon = model.config.norm_epsilon
    spec.validate()
    spec.optimize(quantization=None if kind == "float32" else kind)
    spec.save(str(folder))


def check_supported(config: ModelConfig) -> None:
    """Refuse config values that CTranslate2 cannot express."""
    found = find_unsupported("CTranslate2", SUPPORTED, config)
    if found:
        raise UsageError(f"This model cannot be written for CTranslate2: {'; '.join(found)}.")


def read_vocabulary(path: Path, size: int) -> list[str]:
    """A tokenizer's pieces by id, `size` of them; ids that the tokenizer does not have get unique unused names."""
    ids = backends.Tokenizer.from_file(str(path)).get_vocab(with_added_tokens=True)
    tokens = max(ids.values(), default=-1) + 1
    if tokens > size:
        raise UsageError(
            f"The tokenizer has {tokens:,} tokens, but the model's embedding table only {size:,} rows. Use the "
            "tokenizer that this model was trained with."
        )
    pieces = {token: piece for piece, token in ids.items()}
    for token in range(size):
        name = f"<unused {token}>"
        while token not in pieces and name in ids:
            name += " "
        pieces.setdefault(token, name)
    return [pieces[token] for token in range(size)]


def _token_id(tokenizer: Tokenizer, role: str) -> int:
    token: int | None = getattr(tokenizer.roles, role)
    if token is None:
        raise UsageError(
            f"The tokenizer has no token for the role '{role}', which CTranslate2 needs. "
            f"Its special tokens are {', '.join(tokenizer.specials) or '(none)'}."
        )
    return token


def _set_special_tokens(settings: Any, tokenizer: Tokenizer, target: list[str]) -> None:
    """Use the end token for a missing begin or unknown token, like GPT-2; CTranslate2 would add a new one."""
    end = _token_id(tokenizer, "end")
    begin, unknown = tokenizer.roles.begin, tokenizer.roles.unknown
    settings.eos_token = target[end]
    settings.bos_token = target[end if begin is None else begin]
    settings.unk_token = target[end if unknown is None else unknown]


def _make_translator(library: Any, model: EncoderDecoderModel) -> Any:
    config = model.config
    encoder = library.specs.TransformerEncoderSpec(config.encoder_depth, config.heads, **_spec_options(library, config))
    _fill_stack(library, config, encoder, encoder.embeddings[0], model.encoder)
    return library.specs.TransformerSpec(encoder, _make_decoder(library, config, model.decoder, model.head))


def _make_decoder(library: Any, config: ModelConfig, stack: Stack, head: nn.Module) -> Any:
    spec = library.specs.TransformerDecoderSpec(
        config.decoder_depth,
        config.heads,
        with_encoder_attention=config.kind == "encoder-decoder",
        **_spec_options(library, config),
    )
    _fill_stack(library, config, spec, spec.embeddings, stack)
    weight, bias = head.weight, head.bias
    spec.projection.weight = _array(stack.embedding.table if weight is None else weight)  # type: ignore[arg-type]
    if bias is not None:
        spec.projection.bias = _array(bias)  # type: ignore[arg-type]
    return spec


def _spec_options(library: Any, config: ModelConfig) -> dict[str, Any]:
    """Arguments of CTranslate2's encoder and decoder specs."""
    return {
        "pre_norm": config.placement == "pre",
        "activation": library.specs.Activation[ACTIVATION_NAMES[config.feedforward]],
        "ffn_glu": ACTIVATIONS[config.feedforward].gated,
        "rms_norm": config.norm == "rms",
        "layernorm_embedding": config.embedding_norm,
        "relative_position": config.position == "relative",
        "num_heads_kv": None if config.key_heads == config.heads else config.key_heads,
    }


def _fill_stack(library: Any, config: ModelConfig, spec: Any, embedding: Any, stack: Stack) -> None:
    embedding.weight = _array(stack.embedding.table)
    spec.scale_embeddings = config.scale_embedding
    table = _position_table(config, stack)
    if table is not None:
        spec.position_encodings.encodings = _array(table)
    if stack.embedding_norm is not None:
        _fill_norm(spec.layernorm_embedding, stack.embedding_norm)
    if stack.norm is not None:
        _fill_norm(spec.layer_norm, stack.norm)
    for theirs, block in zip(spec.layer, stack.blocks, strict=True):
        if stack.rotary is not None:
            theirs.self_attention = _rotary_attention(library, config, stack.rotary)
        _fill_block(theirs, block)  # type: ignore[arg-type]


def _position_table(config: ModelConfig, stack: Stack) -> Tensor | None:
    """Position vectors added to the embeddings [context, D]; None for rotary and relative positions."""
    if config.position == "none":
        return torch.zeros(config.context, config.width)
    positions = torch.arange(config.context)
    return None if stack.position is None else stack.position(positions, config.context)


def _rotary_attention(library: Any, config: ModelConfig, rotary: RotaryPositions) -> Any:
    """CTranslate2's attention with rotary positions; scaling is a divisor of each frequency."""
    scaled = rotary.scaling is not None
    attention = library.specs.attention_spec.MultiHeadAttentionSpec(
        self_attention=True,
        rms_norm=config.norm == "rms",
        rotary_dim=config.key_width,
        rotary_interleave=config.pairing == "interleaved",
        rotary_base=config.rotary.base,
        rotary_scaling_type=library.specs.RotaryScalingType.Su if scaled else None,
        # Equal lengths, because unequal ones would also scale cos and sin.
        original_max_position_embeddings=config.context if scaled else 0,
        max_position_embeddings=config.context if scaled else 0,
        num_heads_kv=None if config.key_heads == config.heads else config.key_heads,
    )
    if rotary.scaling is not None:
        ours = frequencies(config.key_width, base=config.rotary.base)
        factors = _array(ours / rotary.scaling(ours, rotary.base))
        attention.rotary_scaling_long_factor = attention.rotary_scaling_short_factor = factors
    return attention


def _fill_block(spec: Any, block: Block) -> None:
    attention, cross, feed = block.attention, block.cross_attention, block.feedforward
    _fill_norm(spec.self_attention.layer_norm, block.attention_norm)
    _fill_linear(spec.self_attention.linear[0], attention.query, attention.key, attention.value)
    _fill_linear(spec.self_attention.linear[1], attention.output)
    _fill_relative(spec.self_attention, attention)
    if cross is not None and block.cross_attention_norm is not None:
        _fill_norm(spec.attention.layer_norm, block.cross_attention_norm)
        _fill_linear(spec.attention.linear[0], cross.query)
        _fill_linear(spec.attention.linear[1], cross.key, cross.value)
        _fill_linear(spec.attention.linear[2], cross.output)
    _fill_norm(spec.ffn.layer_norm, block.feedforward_norm or block.attention_norm)
    if isinstance(feed, FeedForward):
        _fill_linear(spec.ffn.linear_0, feed.up if feed.gate is None else feed.gate)
        if feed.gate is not None:
            _fill_linear(spec.ffn.linear_0_noact, feed.up)
        _fill_linear(spec.ffn.linear_1, feed.down)


def _fill_relative(spec: Any, attention: Attention) -> None:
    """CTranslate2 counts distances in the other direction, and has a table for values too, which is 0 for us."""
    if attention.relative is not None:
        spec.relative_position_keys = _array(attention.relative.table.flip(0))
        spec.relative_position_values = _array(torch.zeros_like(attention.relative.table))


def _fill_linear(spec: Any, *parts: nn.Linear) -> None:
    """Fill one CTranslate2 linear layer from one or more of ours, concatenated."""
    spec.weight = _array(torch.cat([part.weight for part in parts]))
    if parts[0].bias is not None:
        spec.bias = _array(torch.cat([part.bias for part in parts]))


def _fill_norm(spec: Any, norm: nn.Module) -> None:
    spec.gamma = _array(norm.gamma)  # type: ignore[arg-type]
    if isinstance(norm, LayerNorm):
        spec.beta = _array(norm.beta)


def _array(tensor: Tensor) -> Any:
    """A copy, because CTranslate2 quantizes in place."""
    return tensor.detach().clone(memory_format=torch.contiguous_format).numpy()
