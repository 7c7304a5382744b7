"""Log-probabilities of a reference model for preferences, computed once and stored beside the prepared data.

They depend on the pairs, the weights and the precision, and are computed again if one of these has changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from chumoku.data.manifest import is_up_to_date, read_manifest, replace_folder, write_manifest
from chumoku.data.preference_batches import PreferenceBatches
from chumoku.data.ragged_array import RaggedArray, RaggedArrayWriter
from chumoku.models.model import Model
from chumoku.text.progress import Progress
from chumoku.training.distributed import choose_device
from chumoku.training.objectives.preference import answer_logprobs
from chumoku.training.outputs import hash_weights, prepare_init_model
from chumoku.training.precision import DTYPES, Cast
from chumoku.training.settings import TrainSettings
from chumoku.weights.bundle_weights import tensors_of

FLOATS = np.dtype("<f4")


class AnswerLogprobs(nn.Module):
    """`answer_logprobs` of a model as a module, which can be cast."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return answer_logprobs(self.model, batch)


def prepare_reference(
    model: Model,
    batches: Mapping[str, PreferenceBatches],
    folder: Path,
    *,
    pairs: Any,
    settings: TrainSettings,
    progress: Progress,
) -> dict[str, NDArray[np.float32]]:
    """The log-probabilities [pairs, 2] of each part under a model. `pairs` identifies the pairs in the manifest."""
    inputs = {"pairs": pairs, "weights": hash_weights(tensors_of(model)), "precision": settings.precision}
    if not is_up_to_date(folder, inputs):
        device = choose_device(settings.device)
        module: nn.Module = AnswerLogprobs(prepare_init_model(model, model.config, device)).eval()
        if settings.precision != "float32":
            module = Cast(module, DTYPES[settings.precision])
        with replace_folder(folder) as working:
            parts = {
                name: _write(module, part, working / f"{name}-reference", device, settings.batch_size, progress)
                for name, part in batches.items()
            }
            write_manifest(working, inputs, parts=parts)
    entries = read_manifest(folder)["parts"]
    return {name: np.asarray(RaggedArray(folder, entries[name]).tokens).reshape(-1, 2) for name in batches}


@torch.no_grad()
def _write(
    module: nn.Module, batches: PreferenceBatches, path: Path, device: torch.device, rows: int, progress: Progress
) -> dict[str, Any]:
    with RaggedArrayWriter(path, FLOATS) as writer:
        for start in range(0, len(batches.pairs), rows):
            progress("computing the reference", start, len(batches.pairs), "pairs")
            samples = np.arange(start, min(start + rows, len(batches.pairs)))
            found = module({name: table.to(device) for name, table in batches.tables(samples).items()})
            for row in found.cpu().tolist():
                writer.add(row)
        return writer.close()
