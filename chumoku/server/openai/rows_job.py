"""A job that computes one result for each row of tokens; several requests run as one batch of similar lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from chumoku.decoding.batch import inference_mode
from chumoku.decoding.translate import batches_by_length
from chumoku.errors import LengthError, UsageError
from chumoku.models.model import Model
from chumoku.server.models import ServedModel
from chumoku.server.streaming import encode_json
from chumoku.server.worker import Job

BATCH = 2048  # tokens per forward pass; disconnects are noticed between two passes


class RowsJob(Job):
    """The rows of one request; a subclass says what is computed of them, and what the response is."""

    def __init__(self, served: ServedModel, model: Model, rows: list[list[int]]) -> None:
        super().__init__()
        self.served, self.model, self.rows = served, model, rows
        self.size = len(rows)

    def compute(self, rows: list[list[int]]) -> Sequence[Tensor]:
        """The result of each row."""
        raise NotImplementedError

    def response(self, results: list[Tensor]) -> dict[str, Any]:
        """The body of the response for the results of this job's rows."""
        raise NotImplementedError

    def run_batch(self, jobs: Sequence[RowsJob], yield_turn: Callable[[], None]) -> list[bytes]:
        owners = [job for job in jobs for _ in job.rows]
        rows = [row for job in jobs for row in job.rows]
        results: list[Tensor] = [torch.empty(0)] * len(rows)
        with inference_mode(self.model):
            for numbers in batches_by_length([len(row) for row in rows], most=BATCH):
                yield_turn()
                if connected := [number for number in numbers if not owners[number].disconnected]:
                    for number, result in zip(connected, self.compute([rows[n] for n in connected]), strict=True):
                        results[number] = result
        remaining = iter(results)
        parts = [[next(remaining) for _ in job.rows] for job in jobs]
        return [self._encode_response(job, part) for job, part in zip(jobs, parts, strict=True)]

    @staticmethod
    def _encode_response(job: RowsJob, results: list[Tensor]) -> bytes:
        count = sum(map(len, job.rows))
        if not all(result.numel() for result in results):  # its client disconnected
            return b""
        job.served.worker.tokens["prompt"] += count
        usage = {"prompt_tokens": count, "total_tokens": count}
        return encode_json({"object": "list", **job.response(results), "model": job.served.name, "usage": usage})


def check_tokens(row: list[int], model: Model) -> list[int]:
    """The token ids of a text; refuse too many of them, and ids that the model does not have."""
    if len(row) > model.config.context:
        raise LengthError(f"A text has {len(row):,} tokens; this model reads at most {model.config.context:,}.")
    if max(row) >= model.config.vocabulary:
        raise UsageError(f"Token ids must be from 0 to {model.config.vocabulary - 1}.")
    return row
