"""Model families of the transformers library: each is one two-way table in its own file."""

from __future__ import annotations

from chumoku.errors import UsageError
from chumoku.models.config import ModelConfig
from chumoku.weights.families.bart import BART, MBART
from chumoku.weights.families.bert import BERT
from chumoku.weights.families.distilbert import DISTILBERT
from chumoku.weights.families.family import Family
from chumoku.weights.families.gemma import GEMMA2, GEMMA3
from chumoku.weights.families.gpt2 import GPT2
from chumoku.weights.families.gpt_neox import GPT_NEOX
from chumoku.weights.families.llama import LLAMA
from chumoku.weights.families.m2m_100 import M2M_100
from chumoku.weights.families.marian import MARIAN
from chumoku.weights.families.mistral import MISTRAL, MIXTRAL
from chumoku.weights.families.modernbert import MODERNBERT
from chumoku.weights.families.olmo2 import OLMO2
from chumoku.weights.families.phi import PHI
from chumoku.weights.families.phi3 import PHI3
from chumoku.weights.families.qwen import QWEN2, QWEN2_MOE, QWEN3, QWEN3_MOE
from chumoku.weights.families.roberta import CAMEMBERT, ROBERTA, XLM_ROBERTA
from chumoku.weights.families.smollm3 import SMOLLM3
from chumoku.weights.families.t5 import MT5, T5
from chumoku.weights.families.table import Row

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        *(
            GPT2,
            LLAMA,
            MISTRAL,
            MIXTRAL,
            QWEN2,
            QWEN2_MOE,
            QWEN3,
            QWEN3_MOE,
            PHI,
            PHI3,
            OLMO2,
            SMOLLM3,
            GEMMA2,
            GEMMA3,
            GPT_NEOX,
        ),
        *(ROBERTA, XLM_ROBERTA, CAMEMBERT, BERT, DISTILBERT, MODERNBERT),  # with one segment, RoBERTa comes first
        *(MARIAN, BART, MBART, M2M_100, T5, MT5),
    )
}


def transformers_rows(config: ModelConfig) -> list[Row] | None:
    """Rows that map our tensor names to those of transformers, for adapters; None if it has no such model."""
    return next(iter(all_transformers_rows(config)), None)


def all_transformers_rows(config: ModelConfig) -> list[list[Row]]:
    """The rows of every family that has such a model; the first is the one that it is written as."""
    found = []
    for family in FAMILIES.values():
        if not family.find_unsupported(config):
            prefix = family.prefix if config.head_kind == "vector" else ""  # a model without a head has no prefix
            found.append([row._replace(theirs=row.theirs.removeprefix(prefix)) for row in family.rows(config)])
    return found


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
