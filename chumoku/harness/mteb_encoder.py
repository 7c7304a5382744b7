"""An encoder for MTEB, the benchmark of sentence vectors.

    import mteb
    encoder = MtebEncoder("runs/sentence-encoder")
    mteb.evaluate(encoder, mteb.get_tasks(tasks=["STS12"]))

The vectors are those of `Pipeline.embed`. Queries and documents get the model's own prompts if it has them; the
similarity is the cosine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from chumoku.errors import MissingExtraError, UsageError
from chumoku.pipeline import Pipeline, load
from chumoku.search import choose_prompt

SAMPLE = "A cat sits on the mat. こたつで猫が眠る。"  # its vector tells models of the same name apart


class MtebEncoder:
    """What `mteb.evaluate` takes as a model.

    model    a Pipeline, or the path of an encoder
    name     under which MTEB stores results, as chumoku/NAME; by default the last part of the path
    """

    def __init__(self, model: Pipeline | Path | str, *, name: str | None = None) -> None:
        self.pipeline = model if isinstance(model, Pipeline) else load(model)
        if self.pipeline.config.kind != "encoder" or self.pipeline.config.labels is not None:
            raise UsageError("MTEB needs an encoder of sentence vectors: a model of kind 'encoder' without labels.")
        self.pipeline.require_tokenizer()
        self.name = name or ("model" if isinstance(model, Pipeline) else Path(model).resolve().name)

    def encode(
        self, inputs: Iterable[Mapping[str, Sequence[str]]], *, prompt_type: Any = None, **kwargs: Any
    ) -> np.ndarray:
        """The vectors of all texts of the batches [n, D].

        inputs         batches with a list `text`
        prompt_type    "query" or "document", if the task has both
        kwargs         task and batch size, which MTEB also gives; they change nothing
        """
        texts = [text for batch in inputs for text in batch["text"]]
        prompt = None if prompt_type is None else choose_prompt(self.pipeline, str(prompt_type))  # type: ignore[arg-type]
        return self.pipeline.embed(texts, prompt=prompt).numpy()

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """The cosine of each vector of the first and each of the second."""
        return _directions(embeddings1) @ _directions(embeddings2).T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """The cosine of each vector of the first and the same one of the second."""
        return (_directions(embeddings1) * _directions(embeddings2)).sum(-1)

    @property
    def mteb_model_meta(self) -> Any:
        """The name under which MTEB stores results, with a revision that changes with the weights."""
        try:
            from mteb.models.model_meta import ModelMeta
        except ModuleNotFoundError:
            raise MissingExtraError("mteb is not installed. Install it with: pip install 'chumoku[mteb]'.") from None
        revision = hashlib.sha256(self.pipeline.embed(SAMPLE).numpy().tobytes()).hexdigest()[:16]
        return ModelMeta.create_empty({"name": f"chumoku/{self.name}", "revision": revision})


def _directions(vectors: Any) -> Tensor:
    """Vectors [n, D], or one [D], as n of length 1."""
    table = torch.as_tensor(vectors).float()
    return F.normalize(table.reshape(-1, table.shape[-1]), dim=-1)
