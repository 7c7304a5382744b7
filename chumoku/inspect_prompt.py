"""Questions: a text becomes the tokens that a model is looked at with.

    encoder           [before] text [after]                      its masks, or every place, are guessed
    decoder           text, then what it writes or is said to have written
    encoder-decoder   source: text [end]; target: [begin], then what it writes or is said to have written

What it writes itself is chosen greedily. A text longer than what can be shown is cut, with a notice in two languages.
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

MOST = 128  # tokens of a text that are looked at …
ROOM = 6_000_000  # … while all maps together have no more numbers than this
STRANGE = 0.3  # of a text unknown is worth a word
NEW = 8  # tokens that a decoder writes when nobody says how many
Notice = tuple[str, str]  # in English, in Japanese
READ = 128  # tokens of a text that are read in one step
Target = str | Sequence[int] | None  # what was written: as text, as its tokens, or by the model itself


def longest(speaker: Bundle, *, most: int = MOST, room: int = ROOM, layers: int | None = None) -> int:
    """So many tokens that all maps (of so many layers) have room, and no more than the model reads."""
    config = speaker.config
    encoder, decoder = config.encoder_depth, config.decoder_depth
    if layers is not None:
        encoder, decoder = min(encoder, layers), min(decoder, layers)
    maps = config.heads * (encoder + decoder * (2 if encoder else 1))
    return max(2, min(most, config.context, math.isqrt(room // max(1, maps))))


def question(
    speaker: Bundle,
    text: str,
    to: Target,
    new: int | None,
    *,
    most: int | None = None,
    going: Callable[[], None] | None = None,
) -> tuple[LookInput, list[Notice]]:
    """What to look at: the text, and what the model writes of it or is said to have written.

    `going` is asked for every token that is written; what it raises ends the writing.
    """
    from chumoku.models.model import DecoderModel, EncoderDecoderModel
    from chumoku.probe.snapshot import LookInput

    notices: list[Notice] = []
    name, model = namer(speaker.tokenizer), speaker.model
    most = longest(speaker) if most is None else most
    if isinstance(model, DecoderModel):
        new = NEW if new is None else new
        return _continued(model, speaker.tokenizer, text, to, new, most, notices, going), notices
    if not isinstance(model, EncoderDecoderModel):
        ids, guessed = _encoder_tokens(speaker.tokenizer, text, most, notices)
        return LookInput(ids, name, len(ids), masked_positions=guessed), notices
    source = source_tokens(speaker.source_tokenizer, text, most, notices)
    begin, end = speaker.tokenizer.roles.begin, speaker.tokenizer.roles.end
    if begin is None or end is None:
        raise UsageError("A translation starts with a begin token and stops at an end token; this tokenizer has none.")
    if to is None:
        limit = most - 1 if new is None else min(new, most - 1)
        wrote, ended = _translated(model, speaker.tokenizer, source, begin, end, limit, going)
    else:
        wrote, ended = _said(model, speaker.tokenizer, to, most - 1, notices)
        ended = ended or isinstance(to, str)
    own = namer(speaker.source_tokenizer)
    return LookInput([begin, *wrote], name, 1, end if ended else None, source, own), notices


def _continued(
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

    before, end = list(tokenizer.frame[0]), tokenizer.roles.end
    follows, ended = (None, False) if to is None else _said(model, tokenizer, to, most // 2, notices)
    room = max(1, most - len(before) - (new if follows is None else len(follows)))
    prompt = [*before, *cut(tokenizer.encode(text), room, "text", notices, last=True)]
    if follows is None:
        follows = _written(model, tokenizer, prompt, new, going) if new else []
        ended = len(follows) < new
    return LookInput([*prompt, *follows], namer(tokenizer), len(prompt), end if ended else None)


def _written(
    model: DecoderModel, tokenizer: Tokenizer, prompt: list[int], new: int, going: Callable[[], None] | None
) -> list[int]:
    """What the model goes on with, the likeliest token each time."""
    from chumoku.decoding.generate import check, heard, start, wordless
    from chumoku.decoding.sampling import Choice
    from chumoku.decoding.scheduler import Request

    check(model, [prompt], new)
    greedy = Choice(temperature=0).without(wordless(model, tokenizer))
    ends = () if tokenizer.roles.end is None else (tokenizer.roles.end,)
    scheduler = start(model, [Request(prompt, new, greedy, ends)], None)
    scheduler.chunk = READ  # a long text in parts, so that somebody can be asked between them
    follows: list[int] = []
    while not scheduler.idle:
        if going is not None:
            going()
        follows += [token for _, token in heard(scheduler)]
    return follows


def _translated(
    model: EncoderDecoderModel,
    tokenizer: Tokenizer,
    source: list[int],
    begin: int,
    end: int,
    new: int,
    going: Callable[[], None] | None,
) -> tuple[list[int], bool]:
    import torch

    from chumoku.decoding.beam import search

    if not new:
        return [], False
    wordless = (tokenizer.roles.pad, begin, *range(tokenizer.size, model.config.vocabulary))
    forbidden = [token for token in wordless if token is not None and token != end]
    ids = torch.tensor([source], device=model.device)

    def asked(rows: Sequence[int]) -> list[bool]:
        if going is not None:
            going()
        return [True] * len(rows)

    best = search(model, ids, begin=begin, end=end, limit=new, forbidden=forbidden, going=asked)[0][0]
    return best.tokens, len(best.tokens) < new


def _said(
    model: Model, tokenizer: Tokenizer, to: str | Sequence[int], most: int, notices: list[Notice]
) -> tuple[list[int], bool]:
    """The tokens of what it is said to have written, and whether they end with the end token, which is not one."""
    if isinstance(to, str):
        return cut(tokenizer.encode(to), most, "target", notices), False
    wrong = next((token for token in to if not 0 <= token < model.config.vocabulary), None)
    if wrong is not None:
        raise UsageError(f"There is no token {wrong}: this model has {model.config.vocabulary:,}, numbered from 0.")
    ended = bool(to) and to[-1] == tokenizer.roles.end
    ids = list(to[:-1] if ended else to)
    return (cut(ids, most, "target", notices) if ids else []), ended


def source_tokens(tokenizer: Tokenizer, text: str, most: int, notices: list[Notice]) -> list[int]:
    end = [] if tokenizer.roles.end is None else [tokenizer.roles.end]
    ids = tokenizer.encode(text)
    told_unknown(tokenizer, ids, notices)
    return [*cut(ids, most - len(end), "text", notices), *end]


def _encoder_tokens(tokenizer: Tokenizer, text: str, most: int, notices: list[Notice]) -> tuple[list[int], list[int]]:
    """The tokens in their frame, and the places of which guesses are wanted: masks, or all where none is typed."""
    before, after = tokenizer.frame
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


def told_unknown(tokenizer: Tokenizer, ids: Sequence[int], notices: list[Notice]) -> None:
    """A notice where much of a text is nothing to the model, as when it reads another language."""
    lost = sum(token == tokenizer.roles.unknown for token in ids)
    if lost > len(ids) * STRANGE:
        notices.append(
            (
                f"{lost} of the text's {len(ids)} tokens are unknown to this model. Does it read this language?",
                f"入力文の {len(ids)} トークンのうち {lost} は、このモデルの知らないものです。言語は合っていますか。",
            )
        )


def cut(ids: list[int], most: int, what: str, notices: list[Notice], *, last: bool = False) -> list[int]:
    """No more tokens than are looked at; of a text that is gone on from, the last ones."""
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


def namer(tokenizer: Tokenizer) -> functools._lru_cache_wrapper[str]:
    from chumoku.probe.token_labels import token_label

    return functools.cache(functools.partial(token_label, tokenizer))


def said(tokenizer: Tokenizer, asked: LookInput) -> str:
    return tokenizer.decode([token for token in asked.tokens[asked.prompt_length :] if token < tokenizer.size])
