"""chumoku look: what a model has inside while it reads a text and writes another, as pictures and as one page."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chumoku.cli.shared import KNOWN, Adapter, Device, Precision, as_line, written
from chumoku.errors import UsageError

if TYPE_CHECKING:
    from chumoku.probe.seen import Asked, Seen
    from chumoku.speaker import Speaker
    from chumoku.text.tokenizer import Tokenizer

MOST = 128  # tokens of a text that are looked at …
ROOM = 6_000_000  # … while all maps together have no more numbers than this
Notice = tuple[str, str]  # in English, in Japanese


def look(
    model: Annotated[str, typer.Argument(help=f"Any model: {KNOWN}.")],
    text: Annotated[str, typer.Argument(help="What it reads; for an encoder, its own mask token may stand in it.")],
    to: Annotated[str | None, typer.Option(help="Look at this translation or continuation, not at its own.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the page and the pictures.")] = Path("look"),
    layer: Annotated[int | None, typer.Option(min=0, help="Draw this layer large, not the mean over all.")] = None,
    head: Annotated[int | None, typer.Option(min=0, help="Draw this head large, not the mean over all.")] = None,
    new: Annotated[
        int | None, typer.Option(min=0, max=MOST, help="Most tokens to write; a decoder's default: 8.")
    ] = None,
    adapter: Adapter = None,
    precision: Precision = None,
    device: Device = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """Look inside a model: tokens, positions, every attention map, entropy, the residual stream, the logit lens, and
    for each word the best candidates and where it looked. Words are chosen greedily."""
    import chumoku
    from chumoku.probe.drawings import draw
    from chumoku.probe.page import write_page
    from chumoku.probe.seen import see

    read, target = written(text), None if to is None else written(to, "The target")
    speaker = chumoku.load(model, device=device, precision=precision, adapter=adapter)
    check(speaker, layer=layer, head=head, to=target)
    asked, notices = question(speaker, read, target, new)
    seen = see(speaker.model, asked)
    names = {"model": model, "text": read, "said": said(speaker.tokenizer, asked)}
    page = write_page(seen, out / "look.html", **names, notices=notices)
    pictures = draw(seen, out, layer=layer, head=head)
    if as_json:
        print(
            as_line(
                **names,
                notices=[one for one, _ in notices],
                **told(seen),
                page=str(page),
                pictures=list(map(str, pictures)),
            )
        )
        return
    show(seen, names["said"])
    for notice, _ in notices:
        print(f"\n{notice}")
    print(f"\nThe page is {page}; {len(pictures)} pictures lie beside it.")


def check(speaker: Speaker, *, layer: int | None, head: int | None, to: str | None) -> None:
    config = speaker.config
    least = min(depth for depth in (config.encoder_depth, config.decoder_depth) if depth)
    for name, asked, there in (("layer", layer, least), ("head", head, config.heads)):
        if asked is not None and asked >= there:
            raise UsageError(f"There is no {name} {asked}: this model has {there}, numbered from 0.")
    if to is not None and config.kind == "encoder":
        raise UsageError("An encoder writes nothing, so there is no target to look at. Leave --to out.")


def longest(speaker: Speaker) -> int:
    """So many tokens that all maps have room, and no more than the model reads."""
    config = speaker.config
    maps = config.heads * (config.encoder_depth + config.decoder_depth * (2 if config.encoder_depth else 1))
    return max(2, min(MOST, config.context, math.isqrt(ROOM // maps)))


def question(speaker: Speaker, text: str, to: str | None, new: int | None) -> tuple[Asked, list[Notice]]:
    """What to look at: the text, and what the model writes of it or is said to have written."""
    from chumoku.probe.seen import Asked

    notices: list[Notice] = []
    name, most, kind = namer(speaker.tokenizer), longest(speaker), speaker.config.kind
    if kind == "encoder":
        ids, guessed = _encoder_tokens(speaker, text, most, notices)
        return Asked(ids, name, len(ids), guessed=guessed), notices
    if kind == "decoder":
        return _continued(speaker, text, to, 8 if new is None else new, most, notices), notices
    source = _source_tokens(speaker, text, most, notices)
    begin, end = speaker.tokenizer.roles.begin, speaker.tokenizer.roles.end
    if begin is None or end is None:
        raise UsageError("A translation starts with a begin token and stops at an end token; this tokenizer has none.")
    if to is None:
        wrote, ended = _translated(speaker, source, begin, end, most - 1 if new is None else min(new, most - 1))
    else:
        wrote = cut(speaker.tokenizer.encode(to), most - 1, "target", notices)
        ended = True
    own = namer(speaker.source_tokenizer)
    return Asked([begin, *wrote], name, 1, end if ended else None, source, own), notices


def _continued(speaker: Speaker, text: str, to: str | None, new: int, most: int, notices: list[Notice]) -> Asked:
    from chumoku.decoding.choosers import Choice
    from chumoku.decoding.generate import generate, request
    from chumoku.models.model import DecoderModel
    from chumoku.probe.seen import Asked

    tokenizer, model = speaker.tokenizer, speaker._as(DecoderModel, "continue")
    before = list(tokenizer.frame[0])
    follows = None if to is None else cut(tokenizer.encode(to), most // 2, "target", notices)
    room = max(1, most - len(before) - (new if follows is None else len(follows)))
    prompt = [*before, *cut(tokenizer.encode(text), room, "text", notices, last=True)]
    then = None
    if follows is None:
        greedy = request(model, "a", tokenizer=tokenizer, new=new, least=0, choice=Choice(temperature=0)).choice
        end = tokenizer.roles.end
        follows = generate(model, [prompt], new=new, choice=greedy, end=end)[0] if new else []
        then = end if len(follows) < new else None
    return Asked([*prompt, *follows], namer(tokenizer), len(prompt), then)


def _translated(speaker: Speaker, source: list[int], begin: int, end: int, new: int) -> tuple[list[int], bool]:
    import torch

    from chumoku.decoding.beam import search
    from chumoku.models.model import EncoderDecoderModel

    if not new:
        return [], False
    model, tokenizer = speaker._as(EncoderDecoderModel, "translate"), speaker.tokenizer
    wordless = (tokenizer.roles.pad, begin, *range(tokenizer.size, model.config.vocabulary))
    forbidden = [token for token in wordless if token is not None and token != end]
    ids = torch.tensor([source], device=model.device)
    best = search(model, ids, begin=begin, end=end, limit=new, forbidden=forbidden)[0][0]
    return best.tokens, len(best.tokens) < new


def _source_tokens(speaker: Speaker, text: str, most: int, notices: list[Notice]) -> list[int]:
    tokenizer = speaker.source_tokenizer
    end = [] if tokenizer.roles.end is None else [tokenizer.roles.end]
    return [*cut(tokenizer.encode(text), most - len(end), "text", notices), *end]


def _encoder_tokens(speaker: Speaker, text: str, most: int, notices: list[Notice]) -> tuple[list[int], list[int]]:
    """The tokens in their frame, and the places of which guesses are wanted: masks, or all where none is typed."""
    tokenizer = speaker.tokenizer
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
    from chumoku.probe.names import name_of

    return functools.cache(functools.partial(name_of, tokenizer))


def said(tokenizer: Tokenizer, asked: Asked) -> str:
    return tokenizer.decode([token for token in asked.tokens[asked.first :] if token < tokenizer.size])


def columns_of(seen: Seen) -> Sequence[str]:
    return next((one for one in seen.maps if one.key == "cross"), seen.maps[0]).columns


def told(seen: Seen) -> dict[str, object]:
    """What --json prints of a look."""
    columns = columns_of(seen)
    return {
        "tokens": seen.tokens,
        "source": seen.source,
        "words": [
            {
                "word": word.name,
                "probability": word.probability,
                "rank": word.rank,
                "candidates": word.candidates,
                "looked": [(columns[column], round(weight, 4)) for column, weight in word.looked],
            }
            for word in seen.words
        ],
        "entropy": {
            key: [[round(bits, 4) for bits in row] for row in table.tolist()] for key, table in seen.entropy.items()
        },
    }


def show(seen: Seen, text: str) -> None:
    """The words, each with its candidates and what it looked at."""
    from rich.console import Console
    from rich.table import Table

    from chumoku.probe.pictures import share_of

    if text:
        print(text)
    columns = columns_of(seen)
    table = Table("at", "word", "five best", "looked at (mean over layers and heads)")
    for word in seen.words:
        best = "  ".join(f"{one.name} {share_of(one.probability)}" for one in word.candidates)
        looked = "  ".join(f"{columns[column]} {share_of(weight)}" for column, weight in word.looked)
        table.add_row(seen.tokens[word.place][1], word.name or "?", best, looked)
    if seen.words:
        Console(markup=False, highlight=False).print(table)
