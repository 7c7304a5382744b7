"""/v1/translate: texts → hypotheses, with where each word looked and the tree of the search when asked for.

    alignment[t][s] = mean over layers and heads of how much token t looked at source token s         Σ_s = 1

Requests that search by the same rules are searched together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from starlette.requests import Request
from starlette.responses import Response

from chumoku.decoding import translate
from chumoku.decoding.batch import answering
from chumoku.decoding.beam_rules import Hypothesis
from chumoku.decoding.beam_tree import Tree
from chumoku.models.model import EncoderDecoderModel
from chumoku.nn.tap import record
from chumoku.probe.token_labels import token_label
from chumoku.server.disconnect import done, unless_gone
from chumoku.server.errors import Refusal, from_error
from chumoku.server.models import Served, as_kind, found
from chumoku.server.openai import schemas
from chumoku.server.openai.responses import usage_of
from chumoku.server.openai.routes import admitted
from chumoku.server.state import house_of
from chumoku.server.streaming import answer, encoded
from chumoku.server.token_text import named
from chumoku.server.worker import Job
from chumoku.text.tokenizer import Tokenizer

WIDEST_TREE = 8
CANDIDATES = 5


async def translations(request: Request) -> Response:
    house = house_of(request)
    asked = await house.asked(request, schemas.Translation)
    served = found(house.models, asked.model)
    texts = [asked.text] if isinstance(asked.text, str) else asked.text
    check(asked, texts, most=house.limits.texts, new=house.limits.new)
    model = as_kind(served, EncoderDecoderModel, "does not translate")
    with admitted(served, len(texts)):
        sources = await unless_gone(request, house.aside(_sources, served, model, texts, asked.into))
        return answer(await done(request, served.worker, Translating(served, model, asked, sources)))


def check(asked: schemas.Translation, texts: Sequence[str], *, most: int, new: int) -> None:
    if len(texts) > most:
        raise Refusal(400, f"{len(texts)} texts were given, and {most} can be at once. Give fewer.", param="text")
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            raise Refusal(400, f"Text {number} is empty. Give a text with a word in it.", param="text")
    if asked.n > asked.beam:
        raise Refusal(400, f"The {asked.n} best of a beam of {asked.beam} cannot be; n is at most beam.", param="n")
    if asked.tree and (len(texts) > 1 or asked.beam > WIDEST_TREE):
        raise Refusal(400, f"A tree is drawn of one text, with a beam of {WIDEST_TREE} at most.", param="tree")
    if (asked.max_tokens or 1) > new:
        raise Refusal(400, f"max_tokens is {new:,} at most on this server.", param="max_tokens")


def _sources(served: Served, model: EncoderDecoderModel, texts: Sequence[str], into: str | None) -> list[list[int]]:
    tokenizer = served.speaker.source_tokenizer
    try:
        sources = translate.encode(model, texts, tokenizer, into=into, within=served.speaker.config.context)
    except Exception as error:
        raise from_error(error, param="text" if into is None else "into") from error
    for number, source in enumerate(sources, start=1):
        if not source:
            raise Refusal(400, f"Text {number} has no token that this model knows. Give another one.", param="text")
    return sources


class Translating(Job):
    """One request's texts."""

    def __init__(
        self, served: Served, model: EncoderDecoderModel, asked: schemas.Translation, sources: list[list[int]]
    ) -> None:
        super().__init__()
        self.served, self.model, self.asked, self.sources = served, model, asked, sources
        self.size = len(sources)
        if not asked.tree:
            self.key = (asked.beam, asked.n, asked.length_penalty, asked.max_tokens)

    def together(self, jobs: Sequence[Translating], pass_on: Callable[[], None]) -> list[bytes]:
        owners = [job for job in jobs for _ in job.sources]
        tree = Tree() if self.asked.tree else None
        tokenizer = self.served.speaker.tokenizer

        def going(numbers: Sequence[int]) -> list[bool]:
            pass_on()
            return [not owners[number].gone for number in numbers]

        found = translate.hypotheses(
            self.model,
            [source for job in jobs for source in job.sources],
            tokenizer=tokenizer,
            beam=self.asked.beam,
            best=self.asked.n,
            length_penalty=self.asked.length_penalty,
            limit=self.asked.max_tokens,
            going=going,
            tree=tree,
        )
        rows = iter(found)
        return [encoded(job.said([next(rows) for _ in job.sources], tree)) for job in jobs]

    def said(self, rows: Sequence[Sequence[Hypothesis]], tree: Tree | None) -> dict[str, Any]:
        """The body of the answer; of a request that is gone, whatever there is."""
        own, other = self.served.speaker.tokenizer, self.served.speaker.source_tokenizer
        translated = []
        for source, row in zip(self.sources, rows, strict=True):
            translated.append(
                {
                    "source": named(source, other),
                    "hypotheses": [self._told(source, one) for one in row],
                    "tree": None if tree is None or not row else drawn(tree, row[0], own),
                }
            )
        written = sum(len(one.tokens) for row in rows for one in row)
        self.served.worker.tokens["prompt"] += sum(map(len, self.sources))
        self.served.worker.tokens["completion"] += written
        return {
            "object": "translation",
            "model": self.served.name,
            "translations": translated,
            "usage": usage_of(sum(map(len, self.sources)), written),
        }

    def _told(self, source: Sequence[int], one: Hypothesis) -> dict[str, Any]:
        tokenizer = self.served.speaker.tokenizer
        begin, end = translate.edges(tokenizer)
        ended = [end] if len(one.logprobs) > len(one.tokens) else []
        tokens = [
            {**token, "logprob": logprob}
            for token, logprob in zip(named([*one.tokens, *ended], tokenizer), one.logprobs, strict=True)
        ]
        told: dict[str, Any] = {"text": tokenizer.decode(one.tokens), "score": one.score, "tokens": tokens}
        if self.asked.alignment and not self.gone:
            told |= aligned(self.model, source, one.tokens, begin, len(tokens), tokenizer)
        return told


def aligned(
    model: EncoderDecoderModel,
    source: Sequence[int],
    tokens: Sequence[int],
    begin: int,
    count: int,
    tokenizer: Tokenizer,
) -> dict[str, Any]:
    """Where each token looked when it was written, and the likeliest at that place: one more pass over them."""
    with answering(model), record(model, "decoder.blocks.*.cross_attention.weights") as tape:
        given = (torch.tensor([list(row)], device=model.device) for row in (source, [begin, *tokens]))
        logits = model(*given).logits[0, :count]
    looked = torch.stack([weights[0].float().mean(0) for weights in tape.values()]).mean(0)[:count]
    shares, places = logits.float().softmax(-1).topk(min(CANDIDATES, logits.shape[-1]))
    candidates = [
        [{**name, "probability": share} for name, share in zip(named(row, tokenizer), values, strict=True)]
        for row, values in zip(places.tolist(), shares.tolist(), strict=True)
    ]
    return {"alignment": looked.cpu().tolist(), "candidates": candidates}


def drawn(tree: Tree, best: Hypothesis, tokenizer: Tokenizer) -> dict[str, Any]:
    tree.judge(best.tokens, translate.edges(tokenizer)[1])
    nodes = [
        {
            "parent": node.parent,
            "id": node.token,
            "text": token_label(tokenizer, node.token),
            "logprob": node.logprob,
            "score": node.score,
            "step": node.step,
            "state": node.state,
        }
        for node in tree.nodes
    ]
    return {"nodes": nodes}
