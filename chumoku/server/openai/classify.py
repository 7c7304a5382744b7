"""/v1/classify: texts → classes with probabilities, or tags of their words; requests and classes as in vLLM and SGLang.

classes   {"index", "label", "probs", "num_classes"}, probs in the order of the field "labels" of the response
tags      {"index", "words": [{"word", "label", "probability"} …]}, for text that is split at spaces
"""

from __future__ import annotations

import time
import uuid
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from torch import Tensor

from chumoku.decoding.classify import encode_words, label_probabilities, name_tags
from chumoku.decoding.embed import encode
from chumoku.errors import UsageError
from chumoku.server.disconnect import cancel_on_disconnect, run_job
from chumoku.server.errors import RequestError, to_request_error
from chumoku.server.models import ServedModel, find_model, route_of
from chumoku.server.openai import schemas
from chumoku.server.openai.routes import admit_texts
from chumoku.server.openai.rows_job import BATCH, RowsJob, check_tokens
from chumoku.server.state import state_of
from chumoku.server.streaming import json_response


class Encoded(NamedTuple):
    """The rows of a request, with tags also the words of each and their first tokens; and notices about the texts."""

    rows: list[list[int]]
    words: list[list[str]]
    firsts: list[list[int]]
    notices: list[str]


async def classify(request: Request) -> Response:
    state = state_of(request)
    body = await state.read_body(request, schemas.Classification)
    served, inputs = find_model(state.models, body.model), schemas.as_list(body.input)
    if served.pipeline.config.labels is None:
        message = f"{served.name} has no labels and cannot classify. Use {route_of(served)} for it."
        raise RequestError(400, message, param="model")
    if len(inputs) > state.limits.texts:
        message = f"{len(inputs)} texts were given; the limit is {state.limits.texts}."
        raise RequestError(400, message, param="input")
    with admit_texts(served, len(inputs)):
        encoded = await cancel_on_disconnect(request, state.run_in_reader(_encode, served, body))
        return json_response(await run_job(request, served.worker, ClassifyJob(served, encoded)))


def _encode(served: ServedModel, body: schemas.Classification) -> Encoded:
    model, tokenizer = served.pipeline.model, served.pipeline.tokenizer
    inputs, notices = schemas.as_list(body.input), list[str]()
    texts = [one for one in inputs if isinstance(one, str)]
    try:
        if model.config.head == "tags":
            if not texts:
                raise UsageError("This model gives tags to words: send text, not token ids.")
            words = [text.split() for text in texts]
            return Encoded(*encode_words(model, words, tokenizer), notices)
        if texts:
            return Encoded(encode(model, texts, tokenizer, note=notices.append), [], [], notices)
        return Encoded([check_tokens(row, model) for row in inputs if isinstance(row, list)], [], [], [])
    except Exception as error:
        raise to_request_error(error, param="input") from error


class ClassifyJob(RowsJob):
    """Computes the labels of one request."""

    key = ("classify",)

    def __init__(self, served: ServedModel, encoded: Encoded) -> None:
        super().__init__(served, served.pipeline.model, encoded.rows)
        self.encoded, self.names = encoded, list(served.pipeline.config.labels or ())

    def compute(self, rows: list[list[int]]) -> list[Tensor]:
        return label_probabilities(self.model, rows, batch_tokens=BATCH)

    def response(self, results: list[Tensor]) -> dict[str, Any]:
        tagged = self.model.config.head == "tags"
        data = [self._tags(index, one) if tagged else self._classes(index, one) for index, one in enumerate(results)]
        names = {"id": f"classify-{uuid.uuid4().hex}", "created": int(time.time()), "labels": self.names}
        return {**names, "data": data, **({"notices": self.encoded.notices} if self.encoded.notices else {})}

    def _classes(self, index: int, values: Tensor) -> dict[str, Any]:
        label = self.names[int(values.argmax())]
        return {"index": index, "label": label, "probs": values.tolist(), "num_classes": len(self.names)}

    def _tags(self, index: int, values: Tensor) -> dict[str, Any]:
        found = name_tags(self.encoded.words[index], self.encoded.firsts[index], values, self.names)
        words = [{"word": one.word, "label": one.tag, "probability": one.probability} for one in found]
        return {"index": index, "words": words}
