"""/v1/embeddings: texts → vectors, in the format of the OpenAI API."""

from __future__ import annotations

import base64
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from torch import Tensor

from chumoku.decoding import embed
from chumoku.models.model import EncoderModel
from chumoku.server.disconnect import cancel_on_disconnect, run_job
from chumoku.server.errors import RequestError, to_request_error
from chumoku.server.models import ServedModel, find_model, require_kind
from chumoku.server.openai import schemas
from chumoku.server.openai.routes import admit_texts
from chumoku.server.openai.rows_job import RowsJob, check_tokens
from chumoku.server.state import state_of
from chumoku.server.streaming import json_response


async def embeddings(request: Request) -> Response:
    state = state_of(request)
    body = await state.read_body(request, schemas.Embedding)
    served = find_model(state.models, body.model)
    model, inputs = require_kind(served, EncoderModel, "cannot compute embeddings"), schemas.as_list(body.input)
    limit, width = state.limits.texts, model.config.width
    if len(inputs) > limit:
        raise RequestError(400, f"{len(inputs)} texts were given; the limit is {limit}.", param="input")
    if body.dimensions not in (None, width):
        message = f"The vectors of this model have {width} dimensions; leave 'dimensions' out."
        raise RequestError(400, message, param="dimensions")
    with admit_texts(served, len(inputs)):
        rows = await cancel_on_disconnect(request, state.run_in_reader(_tokenize, served, model, body))
        job = EmbeddingJob(served, model, rows, as_text=body.encoding_format == "base64")
        return json_response(await run_job(request, served.worker, job))


def _tokenize(served: ServedModel, model: EncoderModel, body: schemas.Embedding) -> list[list[int]]:
    inputs = schemas.as_list(body.input)
    try:
        texts = [one for one in inputs if isinstance(one, str)]
        if texts:
            return embed.encode(model, texts, served.pipeline.tokenizer, prompt=body.prompt)
        return [check_tokens(row, model) for row in inputs if isinstance(row, list)]
    except Exception as error:
        raise to_request_error(error, param="input") from error


class EmbeddingJob(RowsJob):
    """Computes the vectors of one request."""

    key = ("embedding",)

    def __init__(self, served: ServedModel, model: EncoderModel, rows: list[list[int]], *, as_text: bool) -> None:
        super().__init__(served, model, rows)
        self.encoder, self.as_text = model, as_text

    def compute(self, rows: list[list[int]]) -> list[Tensor]:
        return list(embed.embed_batch(self.encoder, rows).float().cpu())

    def response(self, results: list[Tensor]) -> dict[str, Any]:
        data = [
            {"object": "embedding", "index": number, "embedding": self._encode(vector)}
            for number, vector in enumerate(results)
        ]
        return {"data": data}

    def _encode(self, vector: Tensor) -> str | list[float]:
        if self.as_text:
            return base64.b64encode(vector.numpy().astype("<f4").tobytes()).decode()
        return vector.tolist()
