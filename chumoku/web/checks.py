"""What a page compares itself with: inputs, and what Python computes for them with the page's own weights.

    probes          fixed and random tokens (`weights.certificate`) → outputs at a few positions: the highest numbers,
                    and those of fixed columns
    continuations   random tokens → the most likely next tokens, one by one
    texts           → tokens

    passed if  apart = √ mean (page − Python)² ≤ LIMIT · spread,  and all tokens are equal

spread is the root mean square of Python's numbers about their position's mean. in_page/certificate.js compares.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import chumoku
from chumoku.models.count import count
from chumoku.models.model import EncoderDecoderModel, EncoderModel, Model
from chumoku.weights.bundle import Tokenizers
from chumoku.weights.certificate import SEED, make_probes
from chumoku.weights.certificate_peers import Probe

MAX_PRODUCTS = 6_000_000_000  # tokens × parameters of a probe: plain JavaScript computes fewer than 1e9 in a second
LIMIT = 2e-3  # of the spread; rounding of the weights is the same on both sides
MOST_LIKELY = 8  # numbers of each position that are compared
COLUMNS = 24  # further ones, the same at all positions
NEW_TOKENS = 16  # of a continuation
NEAR_TIE = (
    2e-2  # of the spread: where the two most likely tokens are so close, rounding decides, and a continuation ends
)
TEXTS = (
    "Attention is all you need.",
    "明日は雨が降るでしょう。東京タワーの高さは333メートルです。",
    "  Two  spaces,\ttabs\nand lines\r\n; ½ ﬁ Ａ １２３ é e\u0301 — “quotes” 🗾👩‍💻",
    "x = [i**2 for i in range(10)]  # code, 3.14159 and https://example.org/?q=1",
    "Straße, naïve, İstanbul, Ελληνικά, русский, العربية, हिन्दी, 한국어, ไทย",
    "",
)


def make_checks(model: Model, tokenizers: Tokenizers) -> dict[str, Any]:
    """The checks of a page. model: with the page's own weights, from `prepare_model`."""
    random = torch.Generator().manual_seed(SEED)
    outputs = [(probe, answer(model, probe)) for probe in affordable_probes(model)]
    spread = math.sqrt(sum(_squares(each) for _, each in outputs) / sum(each.numel() for _, each in outputs))
    width = outputs[0][1].shape[-1]
    columns = torch.randperm(width, generator=random)[:COLUMNS].tolist()
    return {
        "versions": {"chumoku": chumoku.__version__, "torch": str(torch.__version__)},
        "compared": "vectors" if isinstance(model, EncoderModel) and model.head is None else "logits",
        "limit": LIMIT * spread,
        "probes": [describe_probe(probe, output, columns) for probe, output in outputs],
        "continuations": make_continuations(model, NEAR_TIE * spread),
        "texts": [describe_text(text, tokenizers) for text in TEXTS],
    }


def affordable_probes(model: Model) -> list[Probe]:
    """The probes that a page computes in seconds, and always the shortest ones."""
    most = max(7, MAX_PRODUCTS // count(model.config).parameters)
    return [probe for probe in make_probes(model) if max(len(probe.tokens), len(probe.source)) <= most]


@torch.inference_mode()
def answer(model: Model, probe: Probe) -> Tensor:
    """What the page's model returns: logits [T, V], of classes [C], of tags [T, C]; without logits the vector [D]."""
    tokens = torch.tensor([probe.tokens])
    source = [torch.tensor([probe.source])] if isinstance(model, EncoderDecoderModel) else []
    output = model(*source, tokens)
    found: Tensor = output.vector if output.logits is None else output.logits
    return found[0].float()


def describe_probe(probe: Probe, output: Tensor, columns: Sequence[int]) -> dict[str, Any]:
    """A probe with the numbers that are compared; `at` is null for one output of the whole text."""
    length = len(probe.tokens)
    places = [None] if output.ndim == 1 else sorted({0, length // 3, 2 * length // 3, length - 1})
    rows = [output if place is None else output[place] for place in places]
    return {
        **{"name": probe.name, "tokens": probe.tokens, "source": probe.source},
        "places": [describe_row(place, row, columns) for place, row in zip(places, rows, strict=True)],
    }


def describe_row(place: int | None, row: Tensor, columns: Sequence[int]) -> dict[str, Any]:
    """The highest numbers of a position, and those of the columns; the first column is the highest."""
    highest = row.topk(min(MOST_LIKELY, len(row))).indices.tolist()
    chosen = [*highest, *(column for column in columns if column not in highest)]
    return {"at": place, "columns": chosen, "values": [float(f"{row[column]:.7g}") for column in chosen]}


def make_continuations(model: Model, near_tie: float) -> list[dict[str, Any]]:
    """Most likely next tokens after the random probes; none of a model that does not generate."""
    if isinstance(model, EncoderModel) or model.config.labels is not None:
        return []
    probes = [probe for probe in affordable_probes(model) if "random" in probe.name and len(probe.tokens) <= 7]
    return [
        {"source": probe.source, "prompt": probe.tokens, "tokens": continue_tokens(model, probe, near_tie)}
        for probe in probes
    ]


def continue_tokens(model: Model, probe: Probe, near_tie: float) -> list[int]:
    """Most likely tokens, one by one, until two are equally likely."""
    new: list[int] = []
    while len(new) < NEW_TOKENS and len(probe.tokens) + len(new) < model.config.context:
        logits = answer(model, probe._replace(tokens=[*probe.tokens, *new]))[-1]
        (first, second), tokens = logits.topk(2)
        if float(first - second) < near_tie:
            break
        new.append(int(tokens[0]))
    return new


def describe_text(text: str, tokenizers: Tokenizers) -> dict[str, Any]:
    same = tokenizers.source is tokenizers.target
    source = None if same else tokenizers.source.encode(text)
    return {"text": text, "tokens": tokenizers.target.encode(text), "source_tokens": source}


def _squares(output: Tensor) -> float:
    return float((output - output.mean(-1, keepdim=True)).double().square().sum())
