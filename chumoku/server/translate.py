"""/v1/translate: texts → hypotheses, optionally with their alignment and the tree of the beam search.

    alignment[t][s] = mean over layers and heads of the cross-attention from token t to source token s         Σ_s = 1

The sentences of a text are translated one by one and joined: tokens in a row, the score summed, the alignment in blocks
along the diagonal, and the tree of a sentence starts at the end of the path chosen before. Requests with the same
search options are searched as one batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from starlette.requests import Request
from starlette.responses import Response

from chumoku.decoding import translate
from chumoku.decoding.batch import inference_mode
from chumoku.decoding.beam_rules import Hypothesis
from chumoku.decoding.beam_tree import Tree
from chumoku.models.model import EncoderDecoderModel
from chumoku.nn.tap import record
from chumoku.probe.token_labels import token_label
from chumoku.server.disconnect import cancel_on_disconnect, run_job
from chumoku.server.errors import RequestError, to_request_error
from chumoku.server.models import ServedModel, find_model, require_kind
from chumoku.server.openai import schemas
from chumoku.server.openai.responses import make_usage
from chumoku.server.openai.routes import admit_texts
from chumoku.server.state import state_of
from chumoku.server.streaming import encode_json, json_response
from chumoku.server.token_text import label_tokens
from chumoku.server.worker import Job
from chumoku.text.languages import target_prompt
from chumoku.text.tokenizer import Tokenizer

WIDEST_TREE = 8
LONGEST_ALIGNED = 512  # source tokens: the alignment has a cell for every pair of tokens
CANDIDATES = 5


async def translations(request: Request) -> Response:
    state = state_of(request)
    body = await state.read_body(request, schemas.Translation)
    served = find_model(state.models, body.model)
    texts = [body.text] if isinstance(body.text, str) else body.text
    check_limits(body, texts, max_texts=state.limits.texts, max_new_tokens=state.limits.new)
    model = require_kind(served, EncoderDecoderModel, "cannot translate")
    with admit_texts(served, len(texts)):
        encoding = state.run_in_reader(_encode, served, model, texts, body, most=state.limits.texts)
        split, begin = await cancel_on_disconnect(request, encoding)
        return json_response(await run_job(request, served.worker, TranslationJob(served, model, body, split, begin)))


def check_limits(body: schemas.Translation, texts: Sequence[str], *, max_texts: int, max_new_tokens: int) -> None:
    if len(texts) > max_texts:
        raise RequestError(400, f"{len(texts)} texts were given; the limit is {max_texts}.", param="text")
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            raise RequestError(400, f"Text {number} is empty.", param="text")
    if body.n > body.beam:
        raise RequestError(400, f"n is {body.n}, but it must be at most beam, which is {body.beam}.", param="n")
    if body.tree and (len(texts) > 1 or body.beam > WIDEST_TREE):
        raise RequestError(400, f"tree requires one text and a beam of at most {WIDEST_TREE}.", param="tree")
    if (body.max_tokens or 1) > max_new_tokens:
        raise RequestError(400, f"max_tokens must be at most {max_new_tokens:,} on this server.", param="max_tokens")


class SplitText(NamedTuple):
    """A text as sentences."""

    sources: list[list[int]]  # the tokens of each sentence; none if it has no text
    sentences: list[translate.SourceSentence]


def _encode(
    served: ServedModel, model: EncoderDecoderModel, texts: Sequence[str], body: schemas.Translation, *, most: int
) -> tuple[list[SplitText], list[int]]:
    """The sentences of each text as tokens, and the tokens that a translation begins with.

    Raises RequestError if there are too many sentences.
    """
    tokenizer = served.pipeline.source_tokenizer
    parts = translate.split_texts(texts, tokenizer, split=body.split)
    count = sum(bool(sentence.kept.text) for part in parts for sentence in part)
    if count > most:
        message = (
            f'The texts have {count:,} sentences; the limit is {most}. "split": false translates each text as a whole.'
        )
        raise RequestError(400, message, param="text")
    numbers = [number for number, part in enumerate(parts) for _ in part]
    sentences = [sentence.kept.text for part in parts for sentence in part]
    try:
        begin = target_prompt(served.pipeline.tokenizer, body.into)
    except Exception as error:
        raise to_request_error(error, param="into") from error
    try:
        encoded = translate.encode(
            model, sentences, tokenizer, into=body.into, source_language=body.source_language, numbers=numbers
        )
    except Exception as error:
        param = "source_language" if body.source_language else "into" if body.into else "text"
        raise to_request_error(error, param=param) from error
    sources = iter(encoded)
    split = [SplitText([next(sources) for _ in part], part) for part in parts]
    for number, text in enumerate(split, start=1):
        if not any(text.sources) and not any(sentence.kept.after for sentence in text.sentences):
            message = f"Text {number} has no token that this model knows. Use another text."
            raise RequestError(400, message, param="text")
        tokens = sum(map(len, text.sources))
        if body.alignment and len(text.sources) > 1 and tokens > LONGEST_ALIGNED:
            message = (
                f"Text {number} has {tokens:,} tokens; a text of several sentences is aligned up to {LONGEST_ALIGNED}."
            )
            raise RequestError(400, message, param="alignment")
    return split, begin


class TranslationJob(Job):
    """Translates the texts of one request."""

    def __init__(
        self,
        served: ServedModel,
        model: EncoderDecoderModel,
        body: schemas.Translation,
        texts: list[SplitText],
        begin: list[int],
    ) -> None:
        super().__init__()
        self.served, self.model, self.body, self.texts, self.begin = served, model, body, texts, begin
        self.sources = [source for text in texts for source in text.sources]
        self.size = len(self.sources)
        if not body.tree:
            self.key = (body.beam, body.n, body.length_penalty, body.max_tokens, *begin)

    def run_batch(self, jobs: Sequence[TranslationJob], yield_turn: Callable[[], None]) -> list[bytes]:
        owners = [job for job in jobs for _ in job.sources]

        def still_wanted(numbers: Sequence[int]) -> list[bool]:
            yield_turn()
            return [not owners[number].disconnected for number in numbers]

        search = functools.partial(
            translate.hypotheses,
            self.model,
            tokenizer=self.served.pipeline.tokenizer,
            begin=self.begin,
            beam=self.body.beam,
            best=self.body.n,
            length_penalty=self.body.length_penalty,
            max_new_tokens=self.body.max_tokens,
            still_wanted=still_wanted,
        )
        trees = [Tree() for _ in self.sources if self.body.tree]
        if trees:  # a job of its own, see `key`
            found = [search([source], tree=tree)[0] for source, tree in zip(self.sources, trees, strict=True)]
            return [encode_json(self.response(found, trees))]
        rows = iter(search([source for job in jobs for source in job.sources]))
        return [encode_json(job.response([next(rows) for _ in job.sources])) for job in jobs]

    def response(self, rows: Sequence[Sequence[Hypothesis]], trees: Sequence[Tree] = ()) -> dict[str, Any]:
        """The response body; incomplete if the client disconnected."""
        own, other = self.served.pipeline.tokenizer, self.served.pipeline.source_tokenizer
        translated, remaining = [], iter(rows)
        for text in self.texts:
            some = [next(remaining) for _ in text.sources]
            translated.append(
                {
                    "source": label_tokens([token for source in text.sources for token in source], other),
                    "stand_ins": [
                        {"name": name, "word": word}
                        for sentence in text.sentences
                        for name, word in sentence.kept.words
                    ],
                    "hypotheses": self._join(text, some),
                    "tree": describe_trees(trees, some, own) if trees else None,
                }
            )
        generated = sum(len(one.tokens) for row in rows for one in row)
        self.served.worker.tokens["prompt"] += sum(map(len, self.sources))
        self.served.worker.tokens["completion"] += generated
        return {
            "object": "translation",
            "model": self.served.name,
            "translations": translated,
            "usage": make_usage(sum(map(len, self.sources)), generated),
        }

    def _join(self, text: SplitText, rows: Sequence[Sequence[Hypothesis]]) -> list[dict[str, Any]]:
        """The hypotheses of a text: the first consists of the first of each sentence, and so on."""
        sentences = [
            [self._describe(source, one) for one in row] for source, row in zip(text.sources, rows, strict=True)
        ]
        return [
            join_hypotheses([row[min(place, len(row) - 1)] if row else None for row in sentences], text)
            for place in range(max(1, *map(len, sentences)))  # one also for a text of symbols only
        ]

    def _describe(self, source: Sequence[int], one: Hypothesis) -> dict[str, Any]:
        tokenizer = self.served.pipeline.tokenizer
        end = translate.begin_and_end(tokenizer)[1]
        end_token = [end] if one.ended else []
        tokens = [
            {**token, "logprob": logprob}
            for token, logprob in zip(label_tokens([*one.tokens, *end_token], tokenizer), one.logprobs, strict=True)
        ]
        hypothesis: dict[str, Any] = {"text": tokenizer.decode(one.tokens), "score": one.score, "tokens": tokens}
        if self.body.alignment and not self.disconnected:
            hypothesis |= align(self.model, source, one.tokens, self.begin, len(tokens), tokenizer)
        return hypothesis


def join_hypotheses(sentences: Sequence[dict[str, Any] | None], text: SplitText) -> dict[str, Any]:
    """One hypothesis for a text from those of its sentences; None for a sentence without text."""
    texts = ["" if one is None else str(one["text"]) for one in sentences]
    found = [one for one in sentences if one is not None]
    joined: dict[str, Any] = {
        "text": translate.join_translations(texts, text.sentences),
        "score": sum(one["score"] for one in found),
        "tokens": [token for one in found for token in one["tokens"]],
    }
    if all("alignment" in one for one in found):
        widths = [len(source) for source in text.sources]
        alignment, before = [], 0
        for one, width in zip(sentences, widths, strict=True):
            after = sum(widths) - before - width
            alignment += [[0.0] * before + row + [0.0] * after for row in (one or {"alignment": []})["alignment"]]
            before += width
        joined |= {"alignment": alignment, "candidates": [row for one in found for row in one["candidates"]]}
    return joined


def align(
    model: EncoderDecoderModel,
    source: Sequence[int],
    tokens: Sequence[int],
    begin: Sequence[int],
    count: int,
    tokenizer: Tokenizer,
) -> dict[str, Any]:
    """Cross-attention of each target token and the most likely tokens at its position, from one more forward pass."""
    with inference_mode(model), record(model, "decoder.blocks.*.cross_attention.weights") as tape:
        inputs = (torch.tensor([list(row)], device=model.device) for row in (source, [*begin, *tokens]))
        first = len(begin) - 1
        logits = model(*inputs).logits[0, first : first + count]
    attention = torch.stack([weights[0].float().mean(0) for weights in tape.values()]).mean(0)
    alignment = attention[first : first + count]
    probabilities, best = logits.float().softmax(-1).topk(min(CANDIDATES, logits.shape[-1]))
    candidates = [
        [
            {"id": token, "text": token_label(tokenizer, token), "probability": value}
            for token, value in zip(row, values, strict=True)
        ]
        for row, values in zip(best.tolist(), probabilities.tolist(), strict=True)
    ]
    return {"alignment": alignment.cpu().tolist(), "candidates": candidates}


def describe_trees(trees: Sequence[Tree], rows: Sequence[Sequence[Hypothesis]], tokenizer: Tokenizer) -> dict[str, Any]:
    """One tree from those of the sentences: each starts at the end of the path that was chosen before it."""
    end = translate.begin_and_end(tokenizer)[1]
    nodes: list[dict[str, Any]] = []
    last, steps, score = -1, 0, 0.0
    for tree, row in zip(trees, rows, strict=True):
        if not row:
            continue
        tree.finish(row[0].tokens, end)
        before = len(nodes)
        nodes += [
            {
                "parent": node.parent + before if node.parent >= 0 else last,
                "id": node.token,
                "text": token_label(tokenizer, node.token),
                "logprob": node.logprob,
                "score": node.score + score,
                "step": node.step + steps,
                "state": node.state,
            }
            for node in tree.nodes
        ]
        last = max((place for place, node in enumerate(nodes) if node["state"] == "chosen"), default=-1)
        if last >= 0:
            steps, score = nodes[last]["step"], nodes[last]["score"]
    return {"nodes": nodes}
