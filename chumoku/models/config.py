"""The settings of a model: one key for every choice in the notes.

kind × position × attention window × norm × placement × feed-forward (or experts) × heads and key/value heads × …
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from chumoku.config import Rule, Settings
from chumoku.models import config_rules as rules

Size = Annotated[int, Field(ge=1, le=1 << 16)]
LargeSize = Annotated[int, Field(ge=1, le=1 << 24)]
Rate = Annotated[float, Field(ge=0.0, lt=1.0)]
Positive = Annotated[float, Field(gt=0.0, le=1e12)]
HeadKind = Literal["next", "masked", "vector", "classes", "tags"]
ListToTuple = BeforeValidator(lambda values: tuple(values) if type(values) is list else values)
LabelName = Annotated[str, Field(min_length=1, max_length=1024)]
LabelNames = Annotated[tuple[LabelName, ...], ListToTuple]
Factor = Annotated[float, Field(gt=0.0, le=1e6)]
Factors = Annotated[tuple[Factor, ...], ListToTuple, Field(min_length=1, max_length=1 << 15)]

MAX_PARAMETERS = 10**13
ROLLBACK = 256  # tokens by which a cache of layers with an attention window can go back
SCORE_POSITIONS = ("relative", "relative_bias", "alibi")  # positions that are added to the attention scores


class Dropout(Settings):
    """Dropout rates at three places."""

    embedding: Rate = 0.0  # on the sum of token and position embedding
    attention: Rate = 0.0  # on the attention weights
    sublayer: Rate = 0.0  # on the output of each sublayer, before the residual addition


class Prompts(Settings):
    """Texts that a sentence encoder was trained to read before another, such as "query: "."""

    query: Annotated[str, Field(max_length=4096)] = ""  # before a query
    document: Annotated[str, Field(max_length=4096)] = ""  # before a document
    default: Annotated[str, Field(max_length=4096)] = ""  # before a text that is neither, or if neither is chosen


class SinusoidalSettings(Settings):
    """Sinusoidal positions: the variant of fairseq."""

    endpoint: bool = False  # the lowest frequency is exactly 1 / 10000
    start: Annotated[int, Field(ge=0, le=1024)] = 0  # the number of the first position


class RotarySettings(Settings):
    """Rotary positions: base frequency and scaling for long texts."""

    base: Positive = 10000.0  # θ: the longest wavelength is about 2π · base
    local_base: Positive | None = None  # of layers with an attention window, without scaling; default: as all layers
    share: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0  # how much of each head's width is rotated, its first elements
    scaling: Literal["none", "linear", "llama3", "yarn", "longrope"] = "none"  # the rule that stretches the frequencies
    # for texts longer than in training
    factor: Annotated[float, Field(ge=1.0, le=1e6)] = 1.0  # the longest text, as a multiple of the trained length
    low: Positive = 1.0  # llama3 and yarn: wavelengths above original / low are scaled
    high: Positive = 4.0  # llama3 and yarn (usually 32): wavelengths below original / high are not
    original: LargeSize = 8192  # llama3, yarn and longrope: the context before scaling
    attention_factor: Positive | None = None  # yarn and longrope: cos and sin are multiplied by it; default: by factor
    short_factors: Factors | None = None  # longrope: divisors of the frequencies if the context is at most `original`
    long_factors: Factors | None = None  # longrope: those of a longer context

    TUPLES: ClassVar[tuple[str, ...]] = ("short_factors", "long_factors")
    RULES = (
        Rule(("low", "high"), lambda c: _check_low_below_high(c)),
        Rule(("factor", "scaling"), lambda c: _check_scaling(c)),
        Rule(("base", "scaling"), rules.check_yarn_base),
        Rule(("attention_factor", "scaling"), rules.check_attention_factor),
        Rule(("short_factors", "long_factors", "scaling", "original"), rules.check_longrope),
    )


def _check_low_below_high(c: Any) -> str | None:
    return f"low = {c.low} must be below high = {c.high}." if c.low >= c.high else None


def _check_scaling(c: Any) -> str | None:
    if (c.scaling == "none") == (c.factor == 1.0) or c.scaling == "longrope":
        return None
    if c.scaling == "none":
        return f"a factor of {c.factor} has no effect without scaling; choose scaling = 'linear' or 'llama3'."
    return f"scaling = '{c.scaling}' has no effect with a factor of 1; set the factor."


def _check_heads(c: Any) -> str | None:
    if c.head_width is not None or c.width % c.heads == 0:
        return None
    near = sorted((n for n in range(1, min(c.width, 4096) + 1) if c.width % n == 0), key=lambda n: abs(n - c.heads))
    return f"{c.heads} heads do not divide width = {c.width}; {' or '.join(map(str, sorted(near[:2])))} would."


def _check_kv_heads(c: Any) -> str | None:
    if c.kv_heads is None or c.heads % c.kv_heads == 0:
        return None
    return f"{c.kv_heads} key/value heads cannot be shared evenly by heads = {c.heads}; use a divisor of it."


def _only_for_encoder_decoder(key: str, default: Any) -> Rule:
    def check(c: Any) -> str | None:
        if c.kind == "encoder-decoder" or getattr(c, key) == default:
            return None
        return f"this key is only for kind = 'encoder-decoder'; this model is of kind '{c.kind}'."

    return Rule((key, "kind"), check)


def _check_shared_vocabulary(c: Any) -> str | None:
    if not c.share_embeddings or c.source_vocabulary in (None, c.vocabulary):
        return None
    return f"one table cannot serve vocabulary = {c.vocabulary} and source_vocabulary = {c.source_vocabulary}."


def _check_buckets(c: Any) -> str | None:
    if 2 * c.relative_max_distance > c.relative_buckets:
        return None
    return f"half of relative_buckets = {c.relative_buckets} have one distance each; choose a larger distance."


def _check_experts_per_token(c: Any) -> str | None:
    if c.experts in (0, 1) or c.experts_per_token <= c.experts:
        return None
    return f"a token cannot use {c.experts_per_token} of experts = {c.experts}; choose {c.experts} or fewer."


def _check_experts(c: Any) -> str | None:
    return "one expert is a plain feed-forward; set experts = 0, or 2 and more." if c.experts == 1 else None


def _check_segments(c: Any) -> str | None:
    if c.segments == 0 or c.kind == "encoder":
        return None
    return f"segments are only for kind = 'encoder', not '{c.kind}'; set segments = 0."


def _check_max_seq_length(c: Any) -> str | None:
    if c.max_seq_length is None:
        return None
    if c.kind != "encoder" and c.labels is None:
        return f"max_seq_length is for encoders and models with labels, not for kind = '{c.kind}'; remove it."
    if c.max_seq_length > c.context:
        return f"{c.max_seq_length} tokens are more than context = {c.context}; choose {c.context} or fewer."
    return None


def _check_parameters(c: Any) -> str | None:
    hidden = 4 * c.width if c.feedforward_width is None else c.feedforward_width
    depth = c.layers + (c.encoder_layers or c.layers) * (c.kind == "encoder-decoder")
    tables = 2 * c.vocabulary + (c.source_vocabulary or 0) + c.context * (c.position == "learned")
    heads = c.width if c.head_width is None else c.heads * c.head_width
    rough = depth * c.width * (8 * heads + 3 * hidden * max(1, c.experts)) + tables * c.width
    if rough <= MAX_PARAMETERS:
        return None
    return f"these sizes give about {rough:.1e} parameters, more than any machine can hold; choose smaller ones."


_SIZE_KEYS = (
    *("width", "layers", "encoder_layers", "kind", "vocabulary", "source_vocabulary"),
    *("feedforward_width", "experts", "position", "context", "heads", "head_width"),
)


class ModelConfig(Settings):
    """The settings of one model. The defaults are a small modern decoder."""

    kind: Literal["encoder", "decoder", "encoder-decoder"] = "decoder"  # what the model is made of
    vocabulary: LargeSize  # number of tokens; in a recipe, default: the size of the tokenizer
    source_vocabulary: LargeSize | None = None  # number of the encoder's tokens; default: `vocabulary`
    context: LargeSize = 1024  # the longest sequence it is trained for; learned positions end here

    width: Size = 256  # D: length of the vector of each token
    layers: Annotated[int, Field(ge=1, le=1024)] = 4  # number of blocks; in an encoder-decoder, of the decoder
    encoder_layers: Annotated[int, Field(ge=1, le=1024)] | None = None  # number of encoder blocks; default: `layers`
    heads: Annotated[int, Field(ge=1, le=1024)] = 4  # number of attention heads
    kv_heads: Annotated[int, Field(ge=1, le=1024)] | None = None  # number of key/value heads (grouped-query attention);
    # default: `heads`
    head_width: Size | None = None  # length of each head's queries and keys; default: width / heads

    feedforward: Literal["relu", "gelu", "gelu_tanh", "silu", "geglu", "geglu_tanh", "swiglu"] = "gelu"  # activation of
    # the feed-forward; the last three have a gate
    feedforward_width: Annotated[int, Field(ge=1, le=1 << 20)] | None = None  # inner width of the feed-forward;
    # default: 4 × width
    experts: Annotated[int, Field(ge=0, le=1024)] = 0  # number of feed-forwards to choose from; 0: one for all tokens
    experts_per_token: Annotated[int, Field(ge=1, le=1024)] = 2  # how many experts compute each token
    normalize_experts: bool = True  # the weights of the chosen experts are scaled to sum to 1
    shared_expert_width: Annotated[int, Field(ge=1, le=1 << 20)] | None = None  # inner width of one more expert that
    # all tokens use

    position: Literal["sinusoidal", "learned", "relative", "relative_bias", "alibi", "rotary", "none"] = "rotary"  #
    # how the model knows the order of tokens
    pairing: Literal["interleaved", "half"] = "interleaved"  # sinusoidal and rotary: which elements form a pair
    relative_clip: Annotated[int, Field(ge=1, le=1 << 16)] = 16  # relative: larger distances count as this one
    relative_buckets: Annotated[int, Field(ge=4, le=1 << 16)] = 32  # relative_bias: number of learned biases per head
    relative_max_distance: LargeSize = 128  # relative_bias: from here on, distances share one bias
    sinusoidal: SinusoidalSettings = SinusoidalSettings()
    rotary: RotarySettings = RotarySettings()
    no_position_every: Annotated[int, Field(ge=2, le=1024)] | None = None  # every n-th layer rotates nothing
    attention_window: LargeSize | None = None  # self-attention sees only tokens less than this many positions away
    full_attention_every: Annotated[int, Field(ge=2, le=1024)] | None = None  # every n-th layer has no window
    full_attention_first: bool = False  # the first of every n layers has no window, not the last

    attention_bias: Literal["none", "qkv", "all"] | None = None  # linear layers of attention with a bias; "qkv": not
    # the output; default: as in `bias`
    query_key_norm: Literal["none", "head", "all"] = "none"  # RMS norm of queries and keys, of each head or all heads
    attention_scale: Positive | None = None  # multiplies q·k; default: 1 / √head_width
    score_cap: Positive | None = None  # soft-capping of attention scores: c · tanh(score / c)

    norm: Literal["layer", "rms", "batch"] = "layer"  # the formula of every norm
    norm_epsilon: Annotated[float, Field(gt=0.0, le=0.1)] = 1e-5  # ε, added to the variance
    norm_bias: bool = True  # β in layer norms
    first_norm: bool = True  # false: no norm before the first attention, because embedding_norm is enough
    norm_unit_offset: bool = False  # RMS norms multiply by 1 + γ instead of γ, as in Gemma
    placement: Literal["pre", "post", "output", "sandwich"] = "pre"  # where the norms are: before or after each
    # sublayer, on its output alone, or on both sides
    parallel: bool = False  # attention and feed-forward both read the block's input, as in GPT-NeoX
    shared_norm: bool = False  # parallel attention and feed-forward have one norm, as in Phi
    bias: bool = True  # biases in every linear layer

    scale_embedding: bool = False  # √D · embedding, as in note 000
    embedding_norm: bool = False  # a norm after embedding and position, as in BERT
    segments: Annotated[int, Field(ge=0, le=1024)] = 0  # number of token types, as in BERT
    share_embeddings: bool = False  # one table for encoder and decoder
    tie_output: bool = True  # the output matrix is the embedding table
    output_bias: bool = False  # a bias of each logit
    scale_logits: bool = False  # logits / √D, as in T5
    logit_cap: Positive | None = None  # soft-capping of the logits

    head: HeadKind | None = None  # what is computed from the last block's vectors; default: "next", for encoders
    # "masked"
    labels: LabelNames | None = None  # the classes of head = "classes", the tags of head = "tags", in their order
    classifier_activation: Literal["tanh", "relu", "gelu", "gelu_tanh", "silu"] | None = None  # labels: a hidden layer
    # with this activation before the logits
    classifier_bias: bool = True  # labels: a bias in the hidden layer
    classifier_norm: bool = False  # labels: a norm after the hidden layer, as in ModernBERT
    label_bias: bool = True  # labels: a bias of each logit; false for decoders that transformers can open
    pooling: Literal["mean", "first", "last"] = "mean"  # vector, classes: which tokens make the vector of a text: all,
    # the first or the last
    normalize: bool = True  # scale pooled vectors to length 1
    prompts: Prompts = Prompts()
    max_seq_length: LargeSize | None = None  # encoders, labels: longer texts are truncated to this many tokens

    dropout: Dropout = Dropout()
    initialization: Literal["gpt2", "xavier"] = "gpt2"  # how new weights are drawn

    TUPLES: ClassVar[tuple[str, ...]] = ("labels",)
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
        **dict.fromkeys(("sliding_window", "window", "window_size", "local_window_size"), "attention_window"),
        **dict.fromkeys(("head_dim", "head_size", "d_kv"), "head_width"),
        "qk_norm": "query_key_norm",
        "attn_logit_softcapping": "score_cap",
        "final_logit_softcapping": "logit_cap",
        "use_parallel_residual": "parallel",
        "partial_rotary_factor": "rotary.share",
        "num_experts": "experts",
        "type_vocab_size": "segments",
    }
    RULES = (
        Rule(("heads", "width", "head_width"), _check_heads),
        Rule(("kv_heads", "heads"), _check_kv_heads),
        Rule(("position", "width", "heads", "head_width"), rules.check_rotary_width),
        Rule(("head_width", "position"), rules.check_rotary_head_width),
        Rule(("rotary", "width", "heads", "head_width"), rules.check_rotary_share),
        Rule(("rotary", "position", "attention_window"), rules.check_rotary_keys),
        Rule(("rotary", "width", "heads", "head_width"), rules.check_longrope_width),
        Rule(("full_attention_every", "attention_window"), rules.check_full_attention),
        Rule(("full_attention_first", "full_attention_every"), rules.check_full_attention_first),
        Rule(("first_norm", "embedding_norm", "placement"), rules.check_first_norm),
        Rule(("norm_bias", "norm"), rules.check_norm_bias),
        Rule(("no_position_every", "position"), rules.check_no_position),
        Rule(("norm_unit_offset", "norm"), rules.check_unit_offset),
        Rule(("parallel", "placement", "kind"), rules.check_parallel),
        Rule(("shared_norm", "parallel", "placement", "first_norm"), rules.check_shared_norm),
        Rule(("normalize_experts", "experts"), rules.only_with_experts("normalize_experts", default=True)),
        Rule(("shared_expert_width", "experts"), rules.only_with_experts("shared_expert_width", default=None)),
        _only_for_encoder_decoder("encoder_layers", None),
        _only_for_encoder_decoder("source_vocabulary", None),
        _only_for_encoder_decoder("share_embeddings", False),
        Rule(("share_embeddings", "vocabulary", "source_vocabulary"), _check_shared_vocabulary),
        Rule(("relative_max_distance", "relative_buckets"), _check_buckets),
        Rule(("experts",), _check_experts),
        Rule(("experts_per_token", "experts"), _check_experts_per_token),
        Rule(("head", "kind"), rules.check_head),
        Rule(("labels", "head"), rules.check_labels),
        Rule(("classifier_activation", "head"), rules.check_classifier_activation),
        Rule(("classifier_norm", "classifier_bias", "classifier_activation"), rules.check_classifier_layer),
        Rule(("label_bias", "head"), rules.check_label_bias),
        Rule(("segments", "kind"), _check_segments),
        Rule(("max_seq_length", "kind", "context", "labels"), _check_max_seq_length),
        Rule(_SIZE_KEYS, _check_parameters),
    )

    @property
    def key_width(self) -> int:
        """The width of each head's queries, keys and values."""
        return self.width // self.heads if self.head_width is None else self.head_width

    @property
    def biased_attention(self) -> Literal["none", "qkv", "all"]:
        """The linear layers of attention that have a bias."""
        if self.attention_bias is not None:
            return self.attention_bias
        return "all" if self.bias else "none"

    @property
    def rotated_width(self) -> int:
        """How many elements of each head rotary positions rotate."""
        return round(self.key_width * self.rotary.share)

    def is_local(self, layer: int) -> bool:
        """Return True if this layer, numbered from 0, has the attention window."""
        every = self.full_attention_every
        place = layer if self.full_attention_first else layer + 1
        return self.attention_window is not None and (every is None or place % every != 0)

    @property
    def rotary_divisors(self) -> tuple[float, ...]:
        """The divisors of the rotary frequencies with longrope: the context decides which, so they are always the same.

        (transformers decides for every text anew, by its length. Keys in a cache would have to be rotated again.)
        """
        factors = self.rotary.long_factors if self.context > self.rotary.original else self.rotary.short_factors
        return factors or ()

    def rolling_size(self, capacity: int) -> int | None:
        """How many positions layers with the window keep in a cache for `capacity` tokens; None if they keep all."""
        size = None if self.attention_window is None else self.attention_window - 1 + ROLLBACK
        return size if size is not None and size < capacity else None

    def is_rotated(self, layer: int) -> bool:
        """Return True if this layer, numbered from 0, has rotary positions."""
        every = self.no_position_every
        return self.position == "rotary" and (every is None or (layer + 1) % every != 0)

    @property
    def key_heads(self) -> int:
        """The number of key/value heads."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def hidden(self) -> int:
        """The inner width of the feed-forward."""
        return 4 * self.width if self.feedforward_width is None else self.feedforward_width

    @property
    def head_kind(self) -> HeadKind:
        if self.head is not None:
            return self.head
        return "masked" if self.kind == "encoder" else "next"

    @property
    def predicts_tokens(self) -> bool:
        """Whether the logits are over the vocabulary."""
        return self.head_kind in ("next", "masked")

    @property
    def label_count(self) -> int:
        """The number of classes or tags; 0 if the model has none."""
        return len(self.labels or ())

    @property
    def encoder_depth(self) -> int:
        """The number of encoder blocks."""
        if self.kind == "decoder":
            return 0
        return self.layers if self.encoder_layers is None else self.encoder_layers

    @property
    def decoder_depth(self) -> int:
        return 0 if self.kind == "encoder" else self.layers

    @property
    def source_tokens(self) -> int:
        """The size of the encoder's vocabulary."""
        return self.vocabulary if self.source_vocabulary is None else self.source_vocabulary
