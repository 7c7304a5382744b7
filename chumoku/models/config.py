"""The settings of a model: every choice in the notes is one key.

kind × position × norm × placement × feed-forward (or experts) × heads and key/value heads
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from chumoku.config import Rule, Settings

Size = Annotated[int, Field(ge=1, le=1 << 16)]
Many = Annotated[int, Field(ge=1, le=1 << 24)]
Rate = Annotated[float, Field(ge=0.0, lt=1.0)]
Positive = Annotated[float, Field(gt=0.0, le=1e12)]

MOST_PARAMETERS = 10**13


class Dropout(Settings):
    """The three places of dropout, each with its own rate."""

    embedding: Rate = 0.0  # after token and position are added
    attention: Rate = 0.0  # on the attention weights
    sublayer: Rate = 0.0  # on what each sub-layer adds to the stream


class RotarySettings(Settings):
    """How rotary positions turn."""

    base: Positive = 10000.0
    scaling: Literal["none", "linear", "llama3"] = "none"
    factor: Annotated[float, Field(ge=1.0, le=1e6)] = 1.0  # how many times longer than trained
    low: Positive = 1.0  # llama3: waves longer than original / low are stretched
    high: Positive = 4.0  # llama3: waves shorter than original / high are kept
    original: Many = 8192  # llama3: the context before stretching

    RULES = (Rule(("low", "high"), lambda c: _low_below_high(c)), Rule(("factor", "scaling"), lambda c: _scaled(c)))


def _low_below_high(c: Any) -> str | None:
    return f"low = {c.low} must lie below high = {c.high}." if c.low >= c.high else None


def _scaled(c: Any) -> str | None:
    if (c.scaling == "none") == (c.factor == 1.0):
        return None
    if c.scaling == "none":
        return f"a factor of {c.factor} does nothing without a scaling; choose scaling = 'linear' or 'llama3'."
    return f"scaling = '{c.scaling}' does nothing with a factor of 1; give the factor."


def _divides(c: Any) -> str | None:
    if c.width % c.heads == 0:
        return None
    near = sorted((n for n in range(1, min(c.width, 4096) + 1) if c.width % n == 0), key=lambda n: abs(n - c.heads))
    return f"{c.heads} heads do not divide width = {c.width}; {' or '.join(map(str, sorted(near[:2])))} would."


def _shares(c: Any) -> str | None:
    if c.kv_heads is None or c.heads % c.kv_heads == 0:
        return None
    return f"{c.kv_heads} key/value heads cannot be shared evenly by heads = {c.heads}; use a divisor of it."


def _even_heads(c: Any) -> str | None:
    if c.position != "rotary" or c.width % c.heads or (c.width // c.heads) % 2 == 0:
        return None
    return (
        f"rotary positions turn pairs of numbers, and width / heads = {c.width // c.heads} is odd; "
        "change heads or width, or choose another position."
    )


def _needs_encoder_decoder(key: str, default: Any) -> Rule:
    def broken(c: Any) -> str | None:
        if c.kind == "encoder-decoder" or getattr(c, key) == default:
            return None
        return f"this belongs to kind = 'encoder-decoder'; a model of kind '{c.kind}' has no second stack to look at."

    return Rule((key, "kind"), broken)


def _one_vocabulary(c: Any) -> str | None:
    if not c.share_embeddings or c.source_vocabulary in (None, c.vocabulary):
        return None
    return f"one table cannot serve vocabulary = {c.vocabulary} and source_vocabulary = {c.source_vocabulary}."


def _expert_choice(c: Any) -> str | None:
    if c.experts in (0, 1) or c.experts_per_token <= c.experts:
        return None
    return f"a token cannot use {c.experts_per_token} of experts = {c.experts}; choose {c.experts} or fewer."


def _more_than_one_expert(c: Any) -> str | None:
    return "one expert is a plain feed-forward; set experts = 0, or 2 and more." if c.experts == 1 else None


def _head_fits(c: Any) -> str | None:
    if c.head is None or (c.head == "next") == (c.kind != "encoder"):
        return None
    possible = "'masked' or 'vector'" if c.kind == "encoder" else "'next'"
    return f"a model of kind '{c.kind}' cannot have the head '{c.head}'; choose {possible}."


def _segments_fit(c: Any) -> str | None:
    if c.segments == 0 or c.kind == "encoder":
        return None
    return f"segments belong to kind = 'encoder', not to '{c.kind}'; set segments = 0."


def _max_seq_length_fits(c: Any) -> str | None:
    if c.max_seq_length is None:
        return None
    if c.kind != "encoder":
        return f"texts are cut for kind = 'encoder' alone, not for '{c.kind}'; leave max_seq_length out."
    if c.max_seq_length > c.context:
        return f"{c.max_seq_length} tokens are more than context = {c.context}; choose {c.context} or fewer."
    return None


def _imaginable(c: Any) -> str | None:
    hidden = 4 * c.width if c.feedforward_width is None else c.feedforward_width
    depth = c.layers + (c.encoder_layers or c.layers) * (c.kind == "encoder-decoder")
    tables = 2 * c.vocabulary + (c.source_vocabulary or 0) + c.context * (c.position == "learned")
    rough = depth * c.width * (8 * c.width + 3 * hidden * max(1, c.experts)) + tables * c.width
    if rough <= MOST_PARAMETERS:
        return None
    return f"these sizes make about {rough:.1e} parameters, more than any machine holds; choose smaller ones."


_SIZES = (
    *("width", "layers", "encoder_layers", "kind", "vocabulary", "source_vocabulary"),
    *("feedforward_width", "experts", "position", "context"),
)


class ModelConfig(Settings):
    """One model. Defaults make a small decoder of today's kind."""

    kind: Literal["encoder", "decoder", "encoder-decoder"] = "decoder"
    vocabulary: Many
    source_vocabulary: Many | None = None  # the encoder's, where it differs
    context: Many = 1024  # the longest sequence it is meant for; learned positions end here

    width: Size = 256
    layers: Annotated[int, Field(ge=1, le=1024)] = 4
    encoder_layers: Annotated[int, Field(ge=1, le=1024)] | None = None  # where they differ from `layers`
    heads: Annotated[int, Field(ge=1, le=1024)] = 4
    kv_heads: Annotated[int, Field(ge=1, le=1024)] | None = None  # as many as heads when not given

    feedforward: Literal["relu", "gelu", "gelu_tanh", "silu", "geglu", "swiglu"] = "gelu"
    feedforward_width: Annotated[int, Field(ge=1, le=1 << 20)] | None = None  # 4 × width when not given
    experts: Annotated[int, Field(ge=0, le=1024)] = 0  # 0: one feed-forward for all tokens
    experts_per_token: Annotated[int, Field(ge=1, le=1024)] = 2

    position: Literal["sinusoidal", "learned", "relative", "rotary", "none"] = "rotary"
    pairing: Literal["interleaved", "half"] = "interleaved"  # sinusoidal and rotary: which numbers form a pair
    relative_clip: Annotated[int, Field(ge=1, le=1 << 16)] = 16
    rotary: RotarySettings = RotarySettings()

    norm: Literal["layer", "rms", "batch"] = "layer"
    norm_epsilon: Annotated[float, Field(gt=0.0, le=0.1)] = 1e-5
    placement: Literal["pre", "post"] = "pre"
    bias: bool = True  # in every projection

    scale_embedding: bool = False  # √D · embedding, as in note 000
    embedding_norm: bool = False  # a norm after embedding and position, as in BERT
    segments: Annotated[int, Field(ge=0, le=1024)] = 0  # BERT's token types
    share_embeddings: bool = False  # one table for encoder and decoder
    tie_output: bool = True  # the output matrix is the embedding table
    output_bias: bool = False

    head: Literal["next", "masked", "vector"] | None = None  # "next", or "masked" for encoders, when not given
    pooling: Literal["mean", "first"] = "mean"
    normalize: bool = True  # pooled vectors of length 1
    max_seq_length: Many | None = None  # encoders: longer texts are cut to so many tokens before they are embedded

    dropout: Dropout = Dropout()
    initialization: Literal["gpt2", "xavier"] = "gpt2"

    FORMER_NAMES: ClassVar[Mapping[str, str]] = {"initialisation": "initialization", "normalise": "normalize"}
    ALIASES: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("d_model", "hidden_size", "n_embd", "dim", "embedding_dim"), "width"),
        **dict.fromkeys(("n_layer", "n_layers", "num_layers", "num_hidden_layers", "depth"), "layers"),
        **dict.fromkeys(("n_head", "n_heads", "num_heads", "num_attention_heads", "nhead"), "heads"),
        **dict.fromkeys(("num_key_value_heads", "n_kv_heads", "num_kv_heads"), "kv_heads"),
        **dict.fromkeys(("d_ff", "ffn_dim", "intermediate_size", "dim_feedforward", "hidden"), "feedforward_width"),
        **dict.fromkeys(("vocab_size", "n_vocab", "vocab"), "vocabulary"),
        **dict.fromkeys(("max_position_embeddings", "block_size", "n_positions", "max_len"), "context"),
        **dict.fromkeys(("rope", "rope_theta", "theta"), "rotary.base"),
        **dict.fromkeys(("eps", "layer_norm_eps", "rms_norm_eps", "layer_norm_epsilon"), "norm_epsilon"),
        **dict.fromkeys(("activation", "hidden_act", "activation_function"), "feedforward"),
        **dict.fromkeys(("norm_first", "prenorm", "pre_norm"), "placement"),
        **dict.fromkeys(("tie_word_embeddings", "tie_weights"), "tie_output"),
        **dict.fromkeys(("cross_attention", "is_encoder_decoder", "add_cross_attention"), "kind (encoder-decoder)"),
        "num_experts": "experts",
        "type_vocab_size": "segments",
    }
    RULES = (
        Rule(("heads", "width"), _divides),
        Rule(("kv_heads", "heads"), _shares),
        Rule(("position", "width", "heads"), _even_heads),
        _needs_encoder_decoder("encoder_layers", None),
        _needs_encoder_decoder("source_vocabulary", None),
        _needs_encoder_decoder("share_embeddings", False),
        Rule(("share_embeddings", "vocabulary", "source_vocabulary"), _one_vocabulary),
        Rule(("experts",), _more_than_one_expert),
        Rule(("experts_per_token", "experts"), _expert_choice),
        Rule(("head", "kind"), _head_fits),
        Rule(("segments", "kind"), _segments_fit),
        Rule(("max_seq_length", "kind", "context"), _max_seq_length_fits),
        Rule(_SIZES, _imaginable),
    )

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def key_heads(self) -> int:
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def hidden(self) -> int:
        return 4 * self.width if self.feedforward_width is None else self.feedforward_width

    @property
    def head_kind(self) -> Literal["next", "masked", "vector"]:
        if self.head is not None:
            return self.head
        return "masked" if self.kind == "encoder" else "next"

    @property
    def encoder_depth(self) -> int:
        """How many encoder blocks there are."""
        if self.kind == "decoder":
            return 0
        return self.layers if self.encoder_layers is None else self.encoder_layers

    @property
    def decoder_depth(self) -> int:
        return 0 if self.kind == "encoder" else self.layers

    @property
    def source_tokens(self) -> int:
        return self.vocabulary if self.source_vocabulary is None else self.source_vocabulary
