"""Model families of the transformers library: each is one two-way table in its own file.

T5 is not supported. It has a table of position biases shared by all layers, scores that are not divided by √d_k, tied
logits divided by √D, and in later versions heads that are together wider than the model: four config keys that no other
family would use.
"""

from __future__ import annotations

from chumoku.errors import UsageError
from chumoku.models.config import ModelConfig
from chumoku.weights.families.bart import BART, MBART
from chumoku.weights.families.bert import BERT
from chumoku.weights.families.distilbert import DISTILBERT
from chumoku.weights.families.family import Family
from chumoku.weights.families.gpt2 import GPT2
from chumoku.weights.families.llama import LLAMA
from chumoku.weights.families.m2m_100 import M2M_100
from chumoku.weights.families.marian import MARIAN
from chumoku.weights.families.roberta import CAMEMBERT, ROBERTA, XLM_ROBERTA
from chumoku.weights.families.table import Row

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        *(GPT2, LLAMA),
        *(ROBERTA, XLM_ROBERTA, CAMEMBERT, BERT, DISTILBERT),  # with one segment, RoBERTa comes first
        *(MARIAN, BART, MBART, M2M_100),
    )
}


def transformers_rows(config: ModelConfig) -> list[Row] | None:
    """Rows that map our tensor names to those of transformers; None if it has no such model."""
    family = next((family for family in FAMILIES.values() if not family.find_unsupported(config)), None)
    if family is None:
        return None
    prefix = family.prefix if config.head_kind == "vector" else ""  # names have no prefix in a model without a head
    return [row._replace(theirs=row.theirs.removeprefix(prefix)) for row in family.rows(config)]


def find_family(config: ModelConfig) -> Family:
    """The family that can express this model; if none can, an error says what the nearest one does not support."""
    problems = {family.name: family.find_unsupported(config) for family in FAMILIES.values()}
    nearest = min(problems, key=lambda name: (FAMILIES[name].supported["kind"] != (config.kind,), len(problems[name])))
    if problems[nearest]:
        raise UsageError(
            f"The transformers library has no model like this. {FAMILIES[nearest].title} is the nearest, except for "
            f"{'; '.join(problems[nearest])}."
        )
    return FAMILIES[nearest]
