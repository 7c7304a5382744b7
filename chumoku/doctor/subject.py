"""The patient: everything that can be examined. What is None is not there, and checks that need it are skipped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from chumoku.data.batches import Batches
from chumoku.data.pairs import Pair
from chumoku.doctor.finding import Skip
from chumoku.models.model import Model
from chumoku.nn.norms import BatchNorm
from chumoku.text import Tokenizer
from chumoku.training.objectives import Objective
from chumoku.training.recipe import Recipe

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Patient:
    model: Model | None = None
    tokenizer: Tokenizer | None = None  # of what it writes
    source_tokenizer: Tokenizer | None = None  # of what it reads; None where there is one tokenizer
    train: Batches | None = None
    validation: Batches | None = None
    texts: Sequence[str] | None = None  # language models: the lines that are learned from …
    held_texts: Sequence[str] | None = None  # … and those that are not
    pairs: Sequence[Pair] | None = None  # translators: the pairs that are learned from …
    held_pairs: Sequence[Pair] | None = None  # … and those that are not
    originals: Mapping[str, Sequence[str]] = field(default_factory=dict)  # lines as files have them, by tokenizer
    dropped: Mapping[str, int] = field(default_factory=dict)  # lines that cleaning took out, by reason
    folder: Path | None = None  # a model's, or a run's
    damage: str | None = None  # why the folder could not be opened
    recipe: Recipe | None = None
    objective: Objective | None = None  # what training minimizes, where it is not the usual one

    def the_model(self) -> Model:
        if self.model is None:
            raise Skip("there is no model")
        return self.model

    def the_batches(self) -> Batches:
        batches = self.train if self.train is not None else self.validation
        if batches is None:
            raise Skip("there is no corpus")
        return batches

    def the_objective(self) -> Objective:
        model = self.the_model()
        if model.config.head_kind == "vector":
            raise Skip("this model gives vectors, and has no loss of its own")
        return self.objective if self.objective is not None else Objective(model)

    def tokenizers(self) -> dict[str, Tokenizer]:
        """By name: one, or the source's and the target's."""
        if self.tokenizer is None:
            raise Skip("there is no tokenizer")
        if self.source_tokenizer is None or self.source_tokenizer is self.tokenizer:
            return {"tokenizer": self.tokenizer}
        return {"source tokenizer": self.source_tokenizer, "target tokenizer": self.tokenizer}

    def lines(self, name: str) -> Sequence[str]:
        """The lines of the corpus that a tokenizer of that name reads."""
        found: list[str] = []
        for texts in (self.texts, self.held_texts):
            found += texts or ()
        for pairs in (self.pairs, self.held_pairs):
            for pair in pairs or ():
                found += [pair.source] if name.startswith("source") else [pair.target] if name != "tokenizer" else pair
        if not found:
            raise Skip("there is no corpus")
        return found

    def written(self, name: str) -> Sequence[str]:
        """The same as the files have them, if that is known: what a tokenizer loses is lost in `lines` too."""
        return self.originals.get(name) or self.lines(name)


def fresh(model: Model) -> bool:
    """Whether nothing has been learned yet: every gain of every norm is still exactly 1."""
    gains = [parameter for name, parameter in model.named_parameters() if name.endswith("gamma")]
    return bool(gains) and all(bool((gain == 1).all()) for gain in gains)


def batch_norms(model: Model) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, BatchNorm)]
