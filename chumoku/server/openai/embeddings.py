"""/v1/embeddings: texts → vectors, in the format of the OpenAI API."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any

import torch
from starlette.requests import Request
from starlette.responses import Response
from torch import Tensor

from chumoku.decoding import embed
from chumoku.decoding.batch import inference_mode
from chumoku.decoding.translate import batches_by_length
from chumoku.errors import LengthError, UsageError
from chumoku.models.model import EncoderModel
from chumoku.server.disconnect import cancel_on_disconnect, run_job
from chumoku.server.errors import RequestError, to_request_error
from chumoku.server.models import ServedModel, find_model, require_kind
from chumoku.server.openai import schemas
from chumoku.server.openai.routes import admit_texts
from chumoku.server.state import state_of
from chumoku.server.streaming import encode_json, json_response
from chumoku.server.worker import Job

BATCH = 2048  # tokens per forward pass; disconnects are noticed between two passes


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


def check_tokens(row: list[int], model: EncoderModel) -> list[int]:
    if len(row) > model.config.context:
        raise LengthError(f"A text has {len(row):,} tokens; this model reads at most {model.config.context:,}.")
    if max(row) >= model.config.vocabulary:
        raise UsageError(f"Token ids must be from 0 to {model.config.vocabulary - 1}.")
    return row


class EmbeddingJob(Job):
    """Computes the vectors of one request; several requests run as one batch."""

    key = ("embedding",)

    def __init__(self, served: ServedModel, model: EncoderModel, rows: list[list[int]], *, as_text: bool) -> None:
        super().__init__()
        self.served, self.model, self.rows, self.as_text = served, model, rows, as_text
        self.size = len(rows)

    def run_batch(self, jobs: Sequence[EmbeddingJob], yield_turn: Callable[[], None]) -> list[bytes]:
        owners = [job for job in jobs for _ in job.rows]
        rows = [row for job in jobs for row in job.rows]
        vectors = torch.zeros(len(rows), self.model.config.width)
        with inference_mode(self.model):
            for numbers in batches_by_length([len(row) for row in rows], most=BATCH):
                yield_turn()
                if connected := [number for number in numbers if not owners[number].disconnected]:
                    vectors[connected] = (
                        embed.embed_batch(self.model, [rows[number] for number in connected]).float().cpu()
                    )
        parts = torch.split(vectors, [len(job.rows) for job in jobs])
        return [encode_json(job.response(part)) for job, part in zip(jobs, parts, strict=True)]

    def response(self, vectors: Tensor) -> dict[str, Any]:
        count = sum(map(len, self.rows))
        self.served.worker.tokens["prompt"] += count
        data = [
            {"object": "embedding", "index": number, "embedding": self._encode(vector)}
            for number, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": count, "total_tokens": count}
        return {"object": "list", "data": data, "model": self.served.name, "usage": usage}

    def _encode(self, vector: Tensor) -> str | list[float]:
        if self.as_text:
            return base64.b64encode(vector.numpy().astype("<f4").tobytes()).decode()
        return vector.tolist()
