"""A certificate: that what was written is the same model, as the library it was written for sees it.

    apart  = √ mean (theirs − ours)²                   over every number of every probe
    spread = √ mean (ours − its position's mean)²
    held   = apart ≤ LIMITS[kind] · spread

The largest single difference is reported beside them and decides nothing: where numbers are rounded, it says more about
how steep a model is than about whether it is the same. Probes are fixed (the first token, the last, a rising run) and
random (seeded, of several lengths). A certificate also names versions and the SHA-256 sums of the files and of the
config. Without the library, it says that nothing was checked and what would allow it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

import chumoku
from chumoku.config import write
from chumoku.errors import ChumokuError, DamagedError, MissingExtraError
from chumoku.models.model import Model
from chumoku.weights.certificate_peers import OPENERS, Peer, Probe, our_answer
from chumoku.weights.checksums import MANIFEST
from chumoku.weights.dequantize import dequantize_model
from chumoku.weights.families.family import without_defaults

T = TypeVar("T")
CERTIFICATE_FILE = "certificate.json"
MAX_PROBE_TOKENS = 256  # tokens of a probe
SEED = 0
# What rounding to a kind of number may change, as a share of the spread: 3 to 20 times what it does to models of random
# weights, which are steeper than trained ones. Models that have nothing in common are 1.4 spreads apart. In f32, too,
# llama.cpp takes GELU from a table of 16-bit numbers.
LIMITS = {"float32": 1e-4, "f32": 1e-3, "f16": 2e-2, "float16": 2e-2, "bf16": 1e-1, "q8_0": 3e-1, "int8": 3e-1}


@dataclass(frozen=True)
class Comparison:
    """What a comparison came to."""

    compared: str  # logits, log-probabilities or vectors
    difference: float  # the largest
    place: str  # where it is: which probe, which position
    scale: float  # the largest number of ours
    apart: float  # the differences' root mean square
    limit: float  # the most of it that rounding explains
    agreeing: int | None  # positions whose likeliest token is the same; None where no logits were compared
    positions: int
    probes: list[str]

    @property
    def within_limit(self) -> bool:
        return self.apart <= self.limit  # false for NaN, too


@dataclass(frozen=True)
class Certificate:
    source: str
    model: str  # its kind: encoder, decoder or encoder-decoder
    target: str
    kind: str
    checked: bool
    sentence: str
    found: Comparison | None
    versions: dict[str, str]
    config: str  # SHA-256 of the model's config
    files: dict[str, dict[str, Any]]  # bytes and SHA-256 of each

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self.as_dict(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def certify(model: Model, target: str, path: Path, *, source: str, kind: str) -> Certificate:
    """Open `path` with the target's own library and compare; refuse what differs by more than rounding."""
    versions = {"chumoku": chumoku.__version__, "torch": str(torch.__version__)}
    found = None
    try:
        peer = call_peer(target, lambda: OPENERS[target](path, model, MAX_PROBE_TOKENS))
    except MissingExtraError as error:
        sentence = f"Not checked. {error}"
    else:
        versions[peer.library] = peer.version
        found = call_peer(target, lambda: compare(dequantize_model(model), peer, kind))
        sentence = summarize(found, f"{peer.library} {peer.version}", kind)
        if kind == "int8":
            sentence += " It computed in float32; in int8 it rounds what flows, too."
        if not found.within_limit:
            raise DamagedError(f"{sentence} The root mean square is more than rounding explains, so nothing was kept.")
    return Certificate(
        source=source,
        model=model.config.kind,
        target=target,
        kind=kind,
        checked=found is not None,
        sentence=sentence,
        found=found,
        versions=versions,
        config=hashlib.sha256(json.dumps(write(without_defaults(model.config)), sort_keys=True).encode()).hexdigest(),
        files=hash_files(path),
    )


def call_peer(target: str, work: Callable[[], T]) -> T:
    """What another library does with the result; where it fails, that is said in our words."""
    try:
        return work()
    except ChumokuError:
        raise
    except Exception as error:
        raise DamagedError(
            f"{target} could not use what was written, so nothing was kept: {str(error)[:300]}"
        ) from error


def compare(model: Model, peer: Peer, kind: str) -> Comparison:
    """How far a peer is from a model, over every probe."""
    largest, place, scale, squares, spread, numbers, agreeing, positions = -1.0, "", 0.0, 0.0, 0.0, 0, 0, 0
    asked = make_probes(model)
    for probe in asked:
        mine, theirs = our_answer(model, probe, peer), peer.answer(probe).float()
        if mine.shape != theirs.shape:
            raise DamagedError(
                f"{peer.library} answers with numbers of shape {list(theirs.shape)} where the model gives "
                f"{list(mine.shape)}: it is another model, and nothing was kept."
            )
        apart = (theirs - mine).abs()
        worst = apart if apart.ndim == 1 else apart.amax(1)
        at = int(worst.argmax())
        if not (math.isnan(largest) or float(worst[at]) <= largest):  # what is no number stays the largest
            largest, place = float(worst[at]), f"{probe.name}, position {at}"
        scale = max(scale, float(mine.abs().amax()))
        squares += float(apart.double().square().sum())
        spread += float((mine - mine.mean(-1, keepdim=True)).double().square().sum())
        numbers += mine.numel()
        agreeing += int((theirs.argmax(-1) == mine.argmax(-1)).sum())
        positions += len(mine)
    return Comparison(
        compared=peer.compared,
        difference=largest,
        place=place,
        scale=scale,
        apart=math.sqrt(squares / numbers),
        limit=LIMITS[kind] * math.sqrt(spread / numbers),
        agreeing=agreeing if peer.compared == "logits" else None,
        positions=positions,
        probes=[probe.name for probe in asked],
    )


def make_probes(model: Model) -> list[Probe]:
    """What both are asked: the first token, the last, a rising run; and random ones of several lengths."""
    config, random = model.config, torch.Generator().manual_seed(SEED)
    reach = max(1, min(config.context, MAX_PROBE_TOKENS) - 1)  # a translator's begin token needs a place, too

    def fixed(size: int) -> dict[str, list[int]]:
        return {
            "the first token": [0],
            "the last token": [size - 1],
            "a rising run": [number % size for number in range(min(reach, 67))],
        }

    lengths = sorted({min(reach, length) for length in (2, 7, 31, reach // 2 + 1, reach)})
    named = fixed(config.vocabulary)
    for length in lengths:
        named[f"{length} random tokens"] = torch.randint(config.vocabulary, (length,), generator=random).tolist()
    if config.kind != "encoder-decoder":
        return [Probe(name, tokens, []) for name, tokens in named.items()]
    # Sources run from long to short while targets grow, so that each meets another length.
    sources = list(fixed(config.source_tokens).values())
    for length in lengths:
        sources.append(torch.randint(config.source_tokens, (length,), generator=random).tolist())
    return [
        Probe(name, tokens, source) for (name, tokens), source in zip(named.items(), reversed(sources), strict=True)
    ]


def summarize(found: Comparison, library: str, kind: str) -> str:
    """The sentence of a certificate: first the two numbers that are compared, then what else was seen."""
    agree = "" if found.agreeing is None else f" The likeliest token agrees at {found.agreeing} of {found.positions}."
    return (
        f"Checked with {library}: {found.compared} differ by {found.apart:.2g} (root mean square), and {kind} allows "
        f"{found.limit:.2g}. The largest single difference, which has no limit, is {found.difference:.2g} "
        f"({found.place}), where {found.compared} reach {found.scale:.3g}.{agree}"
    )


def hash_files(path: Path) -> dict[str, dict[str, Any]]:
    """Bytes and SHA-256 of a file, or of every file of a folder but what is written after."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    found = {}
    for file in files:
        name = file.name if path.is_file() else file.relative_to(path).as_posix()
        if name not in (CERTIFICATE_FILE, MANIFEST):
            with file.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            found[name] = {"bytes": file.stat().st_size, "sha256": digest}
    return found
