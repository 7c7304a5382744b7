"""Recipe → tokenizers, training batches and validation batches; each kind of data has a file.

The data is prepared once in the run's folder and only opened after that.
"""

from __future__ import annotations

from pathlib import Path

from chumoku.text.progress import Progress, silent
from chumoku.training.datasets.chat import prepare_chat_data
from chumoku.training.datasets.labels import prepare_labeled_data
from chumoku.training.datasets.pairs import prepare_pair_data
from chumoku.training.datasets.preferences import prepare_preference_data
from chumoku.training.datasets.prompts import prepare_prompt_data
from chumoku.training.datasets.sentences import prepare_sentence_data
from chumoku.training.datasets.text import prepare_text_data
from chumoku.training.datasets.training_data import TrainingData
from chumoku.training.recipe import Recipe
from chumoku.weights.bundle import Bundle

__all__ = ["TrainingData", "prepare"]

PREPARE = {  # by data.kind
    "text": prepare_text_data,
    "pairs": prepare_pair_data,
    "embedded": prepare_pair_data,
    "chat": prepare_chat_data,
    "sentences": prepare_sentence_data,
    "labels": prepare_labeled_data,
    "tags": prepare_labeled_data,
    "preferences": prepare_preference_data,
    "prompts": prepare_prompt_data,
}


def prepare(
    recipe: Recipe, init: Bundle | None = None, progress: Progress = silent, *, folder: Path | None = None
) -> TrainingData:
    """Read and tokenize the recipe's data, or open it if nothing has changed.

    init        the model to start from, whose tokenizers are used
    progress    called during long work
    folder      where tokenizer and tokens are stored; default: data/ in the run's folder
    """
    return PREPARE[recipe.data.kind](recipe, folder or Path(recipe.train.out) / "data", init, progress)
