"""Certificates: check that a converted model computes the same in the library it was written for.

    apart  = √ mean (theirs − ours)²                   over every number of every probe
    spread = √ mean (ours − its position's mean)²
    passed if apart ≤ LIMITS[kind] · spread

The largest single difference is reported but has no limit: with rounded weights it says more about the model than about
the conversion. Probes are fixed (first token, last token, consecutive tokens) and random (seeded, several lengths). A
certificate also records versions and the SHA-256 sums of the files and the config. If the library is not installed, the
certificate says that nothing was checked and how to install it.
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
from chumoku.config import settings_to_dict
from chumoku.errors import ChumokuError, DamagedError, MissingExtraError
from chumoku.models.limit_context import use_short_factors
from chumoku.models.model import Model
from chumoku.weights.certificate_peers import OPENERS, Peer, Probe, our_answer
from chumoku.weights.checksums import MANIFEST
from chumoku.weights.dequantize import dequantize_model
from chumoku.weights.families.family import without_defaults

T = TypeVar("T")
CERTIFICATE_FILE = "certificate.json"
MAX_PROBE_TOKENS = 256  # tokens of a probe
SEED = 0
# Allowed difference by number type, relative to the spread: 3 to 20 times what rounding does to models with random
# weights, which are more sensitive than trained ones. Unrelated models are 1.4 spreads apart. llama.cpp computes GELU
# from a 16-bit table even in f32.
LIMITS = {"float32": 1e-4, "f32": 1e-3, "f16": 2e-2, "float16": 2e-2, "bf16": 1e-1, "q8_0": 3e-1}
LIMITS |= {"int8": 3e-1, "int4": 1.0}


@dataclass(frozen=True)
class Comparison:
    """The result of comparing a model with its conversion over all probes."""

    compared: str  # logits, log-probabilities or vectors
    difference: float  # the largest absolute difference
    place: str  # probe and position of the largest difference
    scale: float  # the largest absolute value of our output
    apart: float  # root mean square difference
    limit: float  # the largest `apart` that rounding explains
    agreeing: int | None  # positions with the same most likely token; None unless logits were compared
    positions: int
    probes: list[str]

    @property
    def within_limit(self) -> bool:
        return self.apart <= self.limit  # false for NaN, too


@dataclass(frozen=True)
class Certificate:
    """What was converted, how it was checked, and the checksums of the result."""

    source: str
    model: str  # encoder, decoder or encoder-decoder
    target: str
    kind: str  # number type
    checked: bool
    sentence: str
    found: Comparison | None
    versions: dict[str, str]
    config: str  # SHA-256 of the model's config
    files: dict[str, dict[str, Any]]  # size in bytes and SHA-256 of each

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self.as_dict(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def certify(model: Model, target: str, path: Path, *, source: str, kind: str) -> Certificate:
    """Open `path` with the target's own library and compare outputs; DamagedError if they differ by too much.

    source  what the certificate calls the original model
    kind    the number type that was written; it decides the allowed difference
    """
    versions = {"chumoku": chumoku.__version__, "torch": str(torch.__version__)}
    found = None
    try:
        peer = call_peer(target, lambda: OPENERS[target](path, model, MAX_PROBE_TOKENS))
    except MissingExtraError as error:
        sentence = f"Not checked. {error}"
    else:
        versions[peer.library] = peer.version
        compared = dequantize_model(model)
        use_short_factors(compared)
        found = call_peer(target, lambda: compare(compared, peer, kind))
        sentence = summarize(found, f"{peer.library} {peer.version}", kind)
        if kind in ("int8", "int4"):
            sentence = f"{sentence} It was run in float32; in {kind} it also rounds activations."
        if not found.within_limit:
            raise DamagedError(f"{sentence} The root mean square is above the limit, so the output was deleted.")
    return Certificate(
        source=source,
        model=model.config.kind,
        target=target,
        kind=kind,
        checked=found is not None,
        sentence=sentence,
        found=found,
        versions=versions,
        config=hashlib.sha256(
            json.dumps(settings_to_dict(without_defaults(model.config)), sort_keys=True).encode()
        ).hexdigest(),
        files=hash_files(path),
    )


def call_peer(target: str, work: Callable[[], T]) -> T:
    """Call another library; its exceptions become a DamagedError."""
    try:
        return work()
    except ChumokuError:
        raise
    except Exception as error:
        raise DamagedError(
            f"{target} could not use the converted model, so the output was deleted: {str(error)[:300]}"
        ) from error


def compare(model: Model, peer: Peer, kind: str) -> Comparison:
    """Compare a model's outputs with a peer's over all probes."""
    largest, place, scale, squares, spread, numbers, agreeing, positions = -1.0, "", 0.0, 0.0, 0.0, 0, 0, 0
    probes = [without_token(probe, peer.padding) for probe in make_probes(model)]
    for probe in probes:
        ours, theirs = our_answer(model, probe, peer), peer.answer(probe).float()
        if ours.shape != theirs.shape:
            raise DamagedError(
                f"{peer.library} returns shape {list(theirs.shape)} where the model returns {list(ours.shape)}: it is "
                "a different model, so the output was deleted."
            )
        error = (theirs - ours).abs()
        worst = error if error.ndim == 1 else error.amax(1)
        index = int(worst.argmax())
        if not (math.isnan(largest) or float(worst[index]) <= largest):  # NaN counts as the largest
            largest, place = float(worst[index]), f"{probe.name}, position {index}"
        scale = max(scale, float(ours.abs().amax()))
        squares += float(error.double().square().sum())
        spread += float((ours - ours.mean(-1, keepdim=True)).double().square().sum())
        numbers += ours.numel()
        same = theirs.argmax(-1) == ours.argmax(-1)
        agreeing += int(same.sum())
        positions += same.numel()  # one of classes
    return Comparison(
        compared=peer.compared,
        difference=largest,
        place=place,
        scale=scale,
        apart=math.sqrt(squares / numbers),
        limit=LIMITS[kind] * math.sqrt(spread / numbers),
        agreeing=agreeing if peer.compared == "logits" else None,
        positions=positions,
        probes=[probe.name for probe in probes],
    )


def make_probes(model: Model) -> list[Probe]:
    """Inputs to compare with: the first token, the last, consecutive tokens, and random ones of several lengths."""
    config, random = model.config, torch.Generator().manual_seed(SEED)
    longest = max(1, min(config.context, MAX_PROBE_TOKENS) - 1)  # leaves room for a translator's begin token

    def fixed(size: int) -> dict[str, list[int]]:
        return {
            "the first token": [0],
            "the last token": [size - 1],
            "consecutive tokens": [number % size for number in range(min(longest, 67))],
        }

    lengths = sorted({min(longest, length) for length in (2, 7, 31, longest // 2 + 1, longest)})
    targets = fixed(config.vocabulary)
    for length in lengths:
        targets[f"{length} random tokens"] = torch.randint(config.vocabulary, (length,), generator=random).tolist()
    if config.kind != "encoder-decoder":
        return [Probe(name, tokens, []) for name, tokens in targets.items()]
    # Sources get shorter while targets get longer, so that lengths differ in each pair.
    sources = list(fixed(config.source_tokens).values())
    for length in lengths:
        sources.append(torch.randint(config.source_tokens, (length,), generator=random).tolist())
    return [
        Probe(name, tokens, source) for (name, tokens), source in zip(targets.items(), reversed(sources), strict=True)
    ]


def without_token(probe: Probe, token: int | None) -> Probe:
    """The probe with another token in place of this one."""
    tokens, source = (
        [each if each != token else each - 1 if each else 1 for each in row] for row in (probe.tokens, probe.source)
    )
    return probe._replace(tokens=tokens, source=source)


def summarize(found: Comparison, library: str, kind: str) -> str:
    """The certificate's sentence: the difference and its limit first, then further details."""
    sentence = (
        f"Checked with {library}: {found.compared} differ by {found.apart:.2g} (root mean square); {kind} allows "
        f"{found.limit:.2g}. The largest single difference, which has no limit, is {found.difference:.2g} "
        f"({found.place}); {found.compared} reach {found.scale:.3g} in absolute value."
    )
    if found.agreeing is None:
        return sentence
    return f"{sentence} The most likely token is the same at {found.agreeing} of {found.positions} positions."


def hash_files(path: Path) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of a file, or of all files in a folder except certificate and manifest."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    found = {}
    for file in files:
        name = file.name if path.is_file() else file.relative_to(path).as_posix()
        if name not in (CERTIFICATE_FILE, MANIFEST):
            with file.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            found[name] = {"bytes": file.stat().st_size, "sha256": digest}
    return found
