"""Exact search among vectors: for each query q the k documents d with the largest cosine q · d / (‖q‖ ‖d‖).

An index is a folder: the documents' directions d / ‖d‖ in one file of float32, which is memory-mapped, their texts, and
a manifest, written last. Nothing is approximated; a search reads every vector once, BLOCK rows at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from chumoku.data.manifest import read_manifest, replace_folder, write_manifest
from chumoku.data.ragged_array import RaggedArray, RaggedArrayWriter
from chumoku.errors import CorpusError, UsageError

VECTORS, TEXTS = "vectors.f32", "texts"
BLOCK = 1 << 16  # rows
QUERIES = 1 << 10  # compared with a block at once
MAX_WIDTH = 1 << 16


def nearest(queries: Tensor, documents: Any, top: int) -> tuple[Tensor, Tensor]:
    """The cosines [Q, k] and the places [Q, k] of the k = `top` nearest documents of each query, nearest first.

    queries      [Q, D]
    documents    directions [N, D]: a tensor, or a memory-mapped array
    """
    if len(queries) > QUERIES:
        found = [nearest(some, documents, top) for some in torch.split(queries, QUERIES)]
        return torch.cat([scores for scores, _ in found]), torch.cat([places for _, places in found])
    queries = F.normalize(queries, dim=-1)
    scores, places = torch.empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.int64)
    for start in range(0, len(documents), BLOCK):
        part = documents[start : start + BLOCK]
        block = part if isinstance(part, Tensor) else torch.from_numpy(np.array(part))
        numbers = torch.arange(start, start + len(block)).expand(len(queries), -1)
        scores, places = torch.cat([scores, queries @ block.T], 1), torch.cat([places, numbers], 1)
        scores, best = scores.topk(min(top, scores.shape[1]), dim=1)
        places = places.gather(1, best)
    return scores, places


def write_index(folder: Path | str, parts: Iterable[tuple[list[str], Tensor]], **about: Any) -> Path:
    """Write an index of texts and their vectors [n, D], part by part; `about` is stored in its manifest."""
    folder, count, width = Path(folder), 0, 0
    with replace_folder(folder) as working:
        with (working / VECTORS).open("wb") as file, RaggedArrayWriter(working / TEXTS, np.dtype("u1")) as writer:
            for texts, vectors in parts:
                count, width = count + len(texts), vectors.shape[1]
                file.write(F.normalize(vectors.float(), dim=-1).numpy().astype("<f4").tobytes())
                for text in texts:
                    writer.add(np.frombuffer(text.encode("utf-8"), np.uint8))
            entry = writer.close()
        if not count:
            raise UsageError("There are no texts to index. Give one or more.")
        write_manifest(working, about, texts=entry, vectors={"count": count, "width": width})
    return folder


class VectorIndex:
    """An index on disk: `vectors` [N, D] (memory-mapped), the `text` of each, and `about`, what it was made of."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        how = "Make one with: chumoku embed MODEL --file … --index …"
        try:
            manifest = read_manifest(self.folder)
        except CorpusError as error:
            raise CorpusError(f"{self.folder} is not an index, or its manifest is damaged. {how}") from error
        shape, self.about = manifest.get("vectors"), manifest["made_of"]
        known = isinstance(shape, dict) and isinstance(manifest.get("texts"), dict) and isinstance(self.about, dict)
        if not isinstance(shape, dict) or not known or not isinstance(self.about.get("model"), str):
            raise CorpusError(f"{self.folder} is not an index. {how}")
        count, width = (shape.get(key) for key in ("count", "width"))
        if not isinstance(count, int) or not isinstance(width, int) or count < 1 or not 1 <= width <= MAX_WIDTH:
            raise CorpusError(f"The manifest of {self.folder} is damaged. Make the index again.")
        path = self.folder / VECTORS
        size = path.stat().st_size if path.is_file() else 0
        if size != 4 * count * width:
            raise CorpusError(f"{path} has {size:,} bytes instead of {4 * count * width:,}. Make the index again.")
        self.vectors = np.memmap(path, dtype="<f4", mode="r", shape=(count, width))
        self._texts = RaggedArray(self.folder, manifest["texts"])
        if len(self._texts) != count:
            raise CorpusError(f"{self.folder} has {len(self._texts):,} texts for {count:,} vectors. Make it again.")

    def __len__(self) -> int:
        return len(self.vectors)

    def text(self, place: int) -> str:
        return np.asarray(self._texts[place]).tobytes().decode("utf-8", "replace")
