"""/v1/embeddings: texts → vectors, in OpenAI's form."""

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
from chumoku.server.disconnect import done, unless_gone
from chumoku.server.errors import Refusal, from_error
from chumoku.server.models import Served, as_kind, found
from chumoku.server.openai import schemas
from chumoku.server.openai.routes import admitted
from chumoku.server.state import house_of
from chumoku.server.streaming import answer, encoded
from chumoku.server.worker import Job

BATCH = 2048  # tokens between two looks at whether anybody still waits


async def embeddings(request: Request) -> Response:
    house = house_of(request)
    asked = await house.asked(request, schemas.Embedding)
    served = found(house.models, asked.model)
    model, given = as_kind(served, EncoderModel, "gives no vectors"), schemas.each(asked.input)
    if len(given) > house.limits.texts:
        most = house.limits.texts
        raise Refusal(400, f"{len(given)} texts were given, and {most} can be at once. Give fewer.", param="input")
    if asked.dimensions not in (None, model.config.width):
        width = model.config.width
        raise Refusal(400, f"Vectors of this model have {width} numbers; leave 'dimensions' out.", param="dimensions")
    with admitted(served, len(given)):
        rows = await unless_gone(request, house.aside(_rows, served, model, given))
        job = Embedding(served, model, rows, as_text=asked.encoding_format == "base64")
        return answer(await done(request, served.worker, job))


def _rows(served: Served, model: EncoderModel, given: Sequence[str | list[int]]) -> list[list[int]]:
    """Texts as their tokens; tokens as they were given."""
    try:
        texts = [one for one in given if isinstance(one, str)]
        if texts:
            return embed.encode(model, texts, served.pipeline.tokenizer)
        return [checked(row, model) for row in given if isinstance(row, list)]
    except Exception as error:
        raise from_error(error, param="input") from error


def checked(row: list[int], model: EncoderModel) -> list[int]:
    if len(row) > model.config.context:
        raise LengthError(f"A text has {len(row):,} tokens, and this model reads up to {model.config.context:,}.")
    if max(row) >= model.config.vocabulary:
        raise UsageError(f"A text's tokens are numbers from 0 to {model.config.vocabulary - 1}.")
    return row


class Embedding(Job):
    """One request's vectors; those of several are computed together."""

    key = ("embedding",)

    def __init__(self, served: Served, model: EncoderModel, rows: list[list[int]], *, as_text: bool) -> None:
        super().__init__()
        self.served, self.model, self.rows, self.as_text = served, model, rows, as_text
        self.size = len(rows)

    def together(self, jobs: Sequence[Embedding], pass_on: Callable[[], None]) -> list[bytes]:
        owners = [job for job in jobs for _ in job.rows]
        rows = [row for job in jobs for row in job.rows]
        vectors = torch.zeros(len(rows), self.model.config.width)
        with inference_mode(self.model):
            for numbers in batches_by_length([len(row) for row in rows], most=BATCH):
                pass_on()
                if wanted := [number for number in numbers if not owners[number].gone]:
                    vectors[wanted] = embed.embed_batch(self.model, [rows[number] for number in wanted]).float().cpu()
        parts = torch.split(vectors, [len(job.rows) for job in jobs])
        return [encoded(job.said(part)) for job, part in zip(jobs, parts, strict=True)]

    def said(self, vectors: Tensor) -> dict[str, Any]:
        count = sum(map(len, self.rows))
        self.served.worker.tokens["prompt"] += count
        data = [
            {"object": "embedding", "index": number, "embedding": self._vector(vector)}
            for number, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": count, "total_tokens": count}
        return {"object": "list", "data": data, "model": self.served.name, "usage": usage}

    def _vector(self, vector: Tensor) -> str | list[float]:
        if self.as_text:
            return base64.b64encode(vector.numpy().astype("<f4").tobytes()).decode()
        return vector.tolist()
