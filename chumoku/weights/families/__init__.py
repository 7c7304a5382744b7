"""Families of models that others train: each is one two-way table in a file of its own.

T5 is not among them. Its distances choose from one table of biases that all layers share, its scores are not divided by
√d_k, its logits are divided by √D where they are tied, and in its later versions the heads are wider together than the
model: four keys that nothing else here would use.
"""

from __future__ import annotations

from chumoku.errors import UsageError
from chumoku.models.config import ModelConfig
from chumoku.weights.families.bert import BERT
from chumoku.weights.families.family import Family
from chumoku.weights.families.gpt2 import GPT2
from chumoku.weights.families.llama import LLAMA
from chumoku.weights.families.marian import MARIAN
from chumoku.weights.families.table import Row

FAMILIES: dict[str, Family] = {family.name: family for family in (GPT2, BERT, LLAMA, MARIAN)}


def transformers_rows(config: ModelConfig) -> list[Row] | None:
    """The names of a model's tensors in transformers; None for a model that it does not have."""
    family = next((family for family in FAMILIES.values() if not family.find_unsupported(config)), None)
    if family is None:
        return None
    bare = family.prefix if config.head_kind == "vector" else ""  # a body without a head bears no prefix
    return [row._replace(theirs=row.theirs.removeprefix(bare)) for row in family.rows(config)]


def find_family(config: ModelConfig) -> Family:
    """The family that has words for this model; where none has, what stands in the way of the nearest."""
    obstacles = {family.name: family.find_unsupported(config) for family in FAMILIES.values()}
    nearest = min(
        obstacles, key=lambda name: (FAMILIES[name].supported["kind"] != (config.kind,), len(obstacles[name]))
    )
    if obstacles[nearest]:
        raise UsageError(
            f"The transformers library has no model like this. {FAMILIES[nearest].title} comes nearest, but for "
            f"{'; '.join(obstacles[nearest])}."
        )
    return FAMILIES[nearest]
