"""The subject of an examination: model, tokenizers and corpus. Checks that need a missing part (None) are skipped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from chumoku.data.batches import Batches
from chumoku.data.pairs import Pair
from chumoku.data.prompt_batches import PromptBatches
from chumoku.doctor.finding import Skip
from chumoku.models.model import Model
from chumoku.nn.norms import BatchNorm
from chumoku.text import Tokenizer
from chumoku.training.objectives import ContrastiveObjective, Objective, default_objective
from chumoku.training.recipe import Recipe
from chumoku.training.settings import GrpoSettings

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Subject:
    model: Model | None = None
    tokenizer: Tokenizer | None = None  # of the output
    source_tokenizer: Tokenizer | None = None  # of the input; None when there is only one tokenizer
    train: Batches | None = None
    validation: Batches | None = None
    texts: Sequence[str] | None = None  # language models: training lines
    validation_texts: Sequence[str] | None = None
    pairs: Sequence[Pair] | None = None  # translation models and sentence encoders: training pairs
    validation_pairs: Sequence[Pair] | None = None
    originals: Mapping[str, Sequence[str]] = field(default_factory=dict)  # lines read from the files, by tokenizer
    dropped: Mapping[str, int] = field(default_factory=dict)  # number of lines removed by cleaning, by reason
    folder: Path | None = None  # of the model or the run
    damage: str | None = None  # why the folder could not be opened
    recipe: Recipe | None = None
    objective: Objective | None = None  # the training objective, if it is not the default
    prompts: PromptBatches | None = None  # with answers that can be checked
    grpo: GrpoSettings | None = None  # how they are learned
    chat: bool = False  # whether the corpus is conversations, of which only answers have labels

    def require_model(self) -> Model:
        if self.model is None:
            raise Skip("there is no model")
        return self.model

    def require_batches(self) -> Batches:
        batches = self.train if self.train is not None else self.validation
        if batches is None:
            raise Skip("there is no corpus")
        return batches

    def require_objective(self) -> Objective:
        return self.default_objective() if self.objective is None else self.objective

    def default_objective(self) -> Objective:
        """The objective that fits the model and its batches."""
        model = self.require_model()
        if self.has_sentences():
            return ContrastiveObjective(model)
        if model.config.head_kind == "vector":
            raise Skip("this model outputs vectors and has no loss")
        return default_objective(model)

    def has_sentences(self) -> bool:
        """Whether the batches are those of a sentence encoder."""
        batches = self.train if self.train is not None else self.validation
        return batches is not None and "anchor" in batches.batch(0, 0)

    def tokenizers(self) -> dict[str, Tokenizer]:
        """The tokenizers by name: one, or source and target."""
        if self.tokenizer is None:
            raise Skip("there is no tokenizer")
        if self.source_tokenizer is None or self.source_tokenizer is self.tokenizer:
            return {"tokenizer": self.tokenizer}
        return {"source tokenizer": self.source_tokenizer, "target tokenizer": self.tokenizer}

    def lines(self, name: str) -> Sequence[str]:
        """The corpus lines that the tokenizer of this name encodes."""
        found: list[str] = []
        for texts in (self.texts, self.validation_texts):
            found += texts or ()
        for pairs in (self.pairs, self.validation_pairs):
            for pair in pairs or ():
                found += [pair.source] if name.startswith("source") else [pair.target] if name != "tokenizer" else pair
        if not found:
            raise Skip("there is no corpus")
        return found

    def original_lines(self, name: str) -> Sequence[str]:
        """The lines as read from the files, if known; `lines` are decoded tokens and lack what a tokenizer drops."""
        return self.originals.get(name) or self.lines(name)


def is_untrained(model: Model) -> bool:
    """Whether the model is freshly initialized: every norm's gain is still exactly 1."""
    gains = [parameter for name, parameter in model.named_parameters() if name.endswith("gamma")]
    return bool(gains) and all(bool((gain == 1).all()) for gain in gains)


def batch_norms(model: Model) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, BatchNorm)]
