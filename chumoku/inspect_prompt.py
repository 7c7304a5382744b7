"""The tokens with which a model is inspected, made from a text.

    encoder           [before] text [after]                      predictions at the masks, or at every place
    decoder           text, then its continuation: generated, or given
    encoder-decoder   source: [language] text [end]; target: [begin], then its translation: generated, or given

Tokens are generated greedily. A text longer than can be shown is cut, with a notice in two languages.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from chumoku.errors import UsageError

if TYPE_CHECKING:
    from chumoku.models.model import DecoderModel, EncoderDecoderModel, Model
    from chumoku.probe.snapshot import LookInput
    from chumoku.text.tokenizer import Tokenizer
    from chumoku.weights.bundle import Bundle

MOST = 128  # tokens of a text that are inspected …
ROOM = 6_000_000  # … while all attention maps together have at most this many numbers
MANY_UNKNOWN = 0.3  # share of unknown tokens that gives a notice
NEW = 8  # tokens that a decoder generates by default
Notice = tuple[str, str]  # in English, in Japanese
PREFILL = 128  # tokens of a text that are prefilled in one step
Target = str | Sequence[int] | None  # the output: a text, its tokens, or None to generate it


def longest(pipeline: Bundle, *, most: int = MOST, room: int = ROOM, layers: int | None = None) -> int:
    """The most tokens that can be inspected: limited by `most`, the context, and the size of all attention maps."""
    config = pipeline.config
    encoder, decoder = config.encoder_depth, config.decoder_depth
    if layers is not None:
        encoder, decoder = min(encoder, layers), min(decoder, layers)
    maps = config.heads * (encoder + decoder * (2 if encoder else 1))
    return max(2, min(most, config.context, math.isqrt(room // max(1, maps))))


def question(
    pipeline: Bundle,
    text: str,
    to: Target,
    new: int | None,
    *,
    most: int | None = None,
    going: Callable[[], None] | None = None,
) -> tuple[LookInput, list[Notice]]:
    """The tokens to inspect, and notices for the user.

    to       the output: a text, its tokens, or None to generate it
    new      most tokens to generate
    most     most tokens of each text
    going    called for every generated token; it may raise to cancel
    """
    from chumoku.decoding.translate import begin_and_end, default_limit
    from chumoku.models.model import DecoderModel, EncoderDecoderModel
    from chumoku.probe.snapshot import LookInput

    notices: list[Notice] = []
    name, model = token_namer(pipeline.tokenizer), pipeline.model
    most = longest(pipeline) if most is None else most
    if isinstance(model, DecoderModel):
        new = (NEW if new is None else new) if model.config.predicts_tokens else 0
        return _continue(model, pipeline.tokenizer, text, to, new, most, notices, going), notices
    if not isinstance(model, EncoderDecoderModel):
        ids, guessed = _encoder_tokens(pipeline.tokenizer, text, most, notices)
        return LookInput(ids, name, len(ids), masked_positions=guessed), notices
    source = source_tokens(pipeline.source_tokenizer, text, most, notices)
    begin, end = begin_tokens(pipeline.tokenizer), begin_and_end(pipeline.tokenizer)[1]
    if to is None:
        limit = min(default_limit(source) if new is None else new, most - 1)
        output, ended = _translate(model, pipeline.tokenizer, source, begin, limit, going)
    else:
        output, ended = _given_tokens(model, pipeline.tokenizer, to, most - 1, notices)
        ended = ended or isinstance(to, str)
    own = token_namer(pipeline.source_tokenizer)
    return LookInput([*begin, *output], name, len(begin), end if ended else None, source, own), notices


def _continue(
    model: DecoderModel,
    tokenizer: Tokenizer,
    text: str,
    to: Target,
    new: int,
    most: int,
    notices: list[Notice],
    going: Callable[[], None] | None,
) -> LookInput:
    from chumoku.probe.snapshot import LookInput

    before, end = list(tokenizer.prefix_and_suffix[0]), tokenizer.roles.end
    follows, ended = (None, False) if to is None else _given_tokens(model, tokenizer, to, most // 2, notices)
    room = max(1, most - len(before) - (new if follows is None else len(follows)))
    prompt = [*before, *cut(tokenizer.encode(text), room, "text", notices, last=True)]
    if follows is None:
        follows = _generate(model, tokenizer, prompt, new, going) if new else []
        ended = len(follows) < new
    return LookInput([*prompt, *follows], token_namer(tokenizer), len(prompt), end if ended else None)


def _generate(
    model: DecoderModel, tokenizer: Tokenizer, prompt: list[int], new: int, going: Callable[[], None] | None
) -> list[int]:
    """The greedy continuation of a prompt."""
    from chumoku.decoding.generate import check_prompts, make_scheduler, next_tokens, request_for_tokens
    from chumoku.decoding.sampling import SamplingOptions

    check_prompts(model, [prompt], new)
    greedy = SamplingOptions(temperature=0)
    request = request_for_tokens(model, prompt, tokenizer=tokenizer, max_new_tokens=new, sampling=greedy)
    scheduler = make_scheduler(model, [request], None)
    scheduler.chunk = PREFILL  # a long text in parts, so that it can be cancelled in between
    follows: list[int] = []
    while not scheduler.idle:
        if going is not None:
            going()
        follows += [token for _, token in next_tokens(scheduler)]
    return follows


def _translate(
    model: EncoderDecoderModel,
    tokenizer: Tokenizer,
    source: list[int],
    begin: list[int],
    limit: int,
    going: Callable[[], None] | None,
) -> tuple[list[int], bool]:
    """The greedy translation of a source, and whether it ended before the limit."""
    from chumoku.decoding.translate import hypotheses

    if not limit:
        return [], False

    def still_wanted(rows: Sequence[int]) -> list[bool]:
        if going is not None:
            going()
        return [True] * len(rows)

    found = hypotheses(
        model, [source], tokenizer=tokenizer, begin=begin, beam=1, max_new_tokens=limit, still_wanted=still_wanted
    )
    return found[0][0].tokens, found[0][0].ended


def _given_tokens(
    model: Model, tokenizer: Tokenizer, to: str | Sequence[int], most: int, notices: list[Notice]
) -> tuple[list[int], bool]:
    """The tokens of a given output without the end token, and whether they ended with it."""
    if isinstance(to, str):
        return cut(tokenizer.encode(to), most, "target", notices), False
    wrong = next((token for token in to if not 0 <= token < model.config.vocabulary), None)
    if wrong is not None:
        raise UsageError(f"There is no token {wrong}: this model has {model.config.vocabulary:,}, numbered from 0.")
    ended = bool(to) and to[-1] == tokenizer.roles.end
    ids = list(to[:-1] if ended else to)
    return (cut(ids, most, "target", notices) if ids else []), ended


def begin_tokens(tokenizer: Tokenizer) -> list[int]:
    """The tokens that a translation begins with; without a default target language, only the begin token."""
    from chumoku.text.languages import default_target_language, target_prompt

    begin = [] if tokenizer.roles.begin is None else [tokenizer.roles.begin]
    return target_prompt(tokenizer) if default_target_language(tokenizer) else begin


def source_tokens(tokenizer: Tokenizer, text: str, most: int, notices: list[Notice]) -> list[int]:
    from chumoku.text.languages import source_frame

    before, end = source_frame(tokenizer)
    ids = tokenizer.encode(text)
    note_unknown(tokenizer, ids, notices)
    return [*before, *cut(ids, most - len(before) - len(end), "text", notices), *end]


def _encoder_tokens(tokenizer: Tokenizer, text: str, most: int, notices: list[Notice]) -> tuple[list[int], list[int]]:
    """The tokens in their frame, and the places to predict: the masks, or all places if there is no mask."""
    before, after = tokenizer.prefix_and_suffix
    if not before and not after and tokenizer.roles.end is not None:
        after = (tokenizer.roles.end,)
    mask = tokenizer.roles.mask
    parts = text.split(tokenizer.token(mask)) if mask is not None else [text]
    ids: list[int] = []
    for number, part in enumerate(parts):
        ids += [*([mask] if number and mask is not None else []), *(tokenizer.encode(part) if part.strip() else [])]
    ids = [*before, *cut(ids, most - len(before) - len(after), "text", notices), *after]
    masked = [place for place, token in enumerate(ids) if token == mask]
    return ids, masked or list(range(len(before), len(ids) - len(after)))


def note_unknown(tokenizer: Tokenizer, ids: Sequence[int], notices: list[Notice]) -> None:
    """Add a notice if many tokens are unknown, for example because the text is in another language."""
    lost = sum(token == tokenizer.roles.unknown for token in ids)
    if lost > len(ids) * MANY_UNKNOWN:
        notices.append(
            (
                f"{lost} of the text's {len(ids)} tokens are unknown to this model. Does it read this language?",
                f"入力文の {len(ids)} トークンのうち {lost} は、このモデルの知らないものです。言語は合っていますか。",
            )
        )


def cut(ids: list[int], most: int, what: str, notices: list[Notice], *, last: bool = False) -> list[int]:
    """At most `most` tokens: the first ones, or with `last` the last ones."""
    if not ids:
        raise UsageError(f"The {what} has no token that this model knows. Give another one.")
    if len(ids) <= most:
        return ids
    which, kept = ("last", "最後") if last else ("first", "最初")
    japanese = {"text": "入力文", "target": "出力文"}[what]
    notices.append(
        (
            f"The {what} has {len(ids):,} tokens; only the {which} {most} were given to the model and are shown.",
            f"{japanese}は {len(ids):,} トークンあり、{kept}の {most} トークンだけをモデルに与えて表示しています。",
        )
    )
    return ids[-most:] if last else ids[:most]


def token_namer(tokenizer: Tokenizer) -> functools._lru_cache_wrapper[str]:
    from chumoku.probe.token_labels import token_label

    return functools.cache(functools.partial(token_label, tokenizer))


def generated_text(tokenizer: Tokenizer, asked: LookInput) -> str:
    return tokenizer.decode([token for token in asked.tokens[asked.prompt_length :] if token < tokenizer.size])
