"""Search by meaning: an index of texts on disk, and the texts nearest to a query.

    index = chumoku.build_index(pipeline, texts, "out/index")
    for hit in index.search("animals that purr"):
        print(hit.score, hit.text)

The search is exact (`decoding.vector_index`). Documents and queries get the model's own prompts if it has them.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from chumoku.decoding.embed import Prompt
from chumoku.decoding.vector_index import VectorIndex, nearest, write_index
from chumoku.errors import UsageError
from chumoku.pipeline import Pipeline, load
from chumoku.text.progress import Progress, silent

CHUNK = 1 << 11  # texts embedded at once
SAME = 0.99  # cosine of a text's vector in the index and now; another model gives another vector


@dataclass(frozen=True)
class Hit:
    """A text that was found."""

    score: float  # cosine
    place: int  # number of the text in the index, from 0
    text: str


def build_index(
    model: Pipeline | Path | str,
    texts: Iterable[str],
    folder: Path | str,
    *,
    width: int | None = None,
    model_name: str | None = None,
    progress: Progress = silent,
    note: Callable[[str], object] = warnings.warn,
) -> SearchIndex:
    """Embed the texts and write an index into `folder`, which may be a new folder or an older index.

    model         a Pipeline, or the path of an encoder, which is stored, so that `open_index` can open it
    width         use the first elements of the vectors only, for models trained for it (contrastive.widths)
    model_name    the path to store if `model` is a Pipeline
    note          called with a sentence if texts were cut
    """
    pipeline = model if isinstance(model, Pipeline) else load(model)

    def parts() -> Iterator[tuple[list[str], Tensor]]:
        remaining, done = iter(texts), 0
        while some := list(itertools.islice(remaining, CHUNK)):
            yield some, pipeline.embed(some, prompt=choose_prompt(pipeline, "document"), width=width, note=note)
            done += len(some)
            progress("embedding", done, unit="texts")

    if not isinstance(model, Pipeline):
        model_name = str(model)
    if model_name and Path(model_name).exists():
        model_name = str(Path(model_name).absolute())
    write_index(folder, parts(), model=model_name or "", width=width)
    return SearchIndex(folder, pipeline)


def open_index(folder: Path | str, model: Pipeline | Path | str | None = None) -> SearchIndex:
    """Open an index; `model` is needed if it was made by a Pipeline, or if its model has moved."""
    return SearchIndex(folder, load(model) if isinstance(model, (Path, str)) else model)


class SearchIndex:
    """An index and the encoder of its texts, which is opened for the first query."""

    def __init__(self, folder: Path | str, pipeline: Pipeline | None = None) -> None:
        self.index, self._pipeline = VectorIndex(folder), pipeline
        self._checked = False

    def __len__(self) -> int:
        return len(self.index)

    @property
    def pipeline(self) -> Pipeline:
        if self._pipeline is None:
            name = str(self.index.about["model"])
            if not name:
                raise UsageError(f"{self.index.folder} does not say which model made it. Name it: model=….")
            self._pipeline = load(name)
        return self._pipeline

    def search(self, query: str, *, top: int = 5) -> list[Hit]:
        """The `top` texts nearest to the query, nearest first."""
        if top < 1:
            raise UsageError(f"top is {top}; it must be 1 or more.")
        if not self._checked:
            self._check_model()
        vector = self._embed(query, "query")
        scores, places = nearest(vector, self.index.vectors, top)
        found = zip(scores[0].tolist(), places[0].tolist(), strict=True)
        return [Hit(score, place, self.index.text(place)) for score, place in found]

    def _embed(self, text: str, prompt: Prompt) -> Tensor:
        width = self.index.about.get("width")
        return self.pipeline.embed([text], prompt=choose_prompt(self.pipeline, prompt), width=width)

    def _check_model(self) -> None:
        """Refuse another model than the one that made the index: it gives its first text another vector."""
        now, stored = self._embed(self.index.text(0), "document"), torch.tensor(self.index.vectors[:1])
        alike = float(torch.cosine_similarity(now, stored)[0]) if now.shape == stored.shape else 0.0
        if not alike > SAME:
            raise UsageError(
                f"{self.index.folder} was made with another model: its first text has another vector (cosine "
                f"{alike:.3f}). Name the model that made it, or make the index again."
            )
        self._checked = True


def choose_prompt(pipeline: Pipeline, name: Prompt) -> Prompt | None:
    """The prompt of this name if the model has one."""
    return name if getattr(pipeline.config.prompts, name) else None
