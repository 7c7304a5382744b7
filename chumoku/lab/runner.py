"""Run experiments one after the other and write each result atomically.

    out/<id>/result.json    the claim, the verdict, its numbers and rule, seeds, versions, seconds
    out/<id>/figure.png     if the experiment draws one

An experiment that raises gets the verdict "failed to run" with the error message; the others continue.
"""

from __future__ import annotations

import json
import math
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

import chumoku
from chumoku.errors import DamagedError, UsageError
from chumoku.lab.claims import ARITHMETIC, SINGLE_SEED, TRAINING_INDEPENDENT, select_claims
from chumoku.lab.experiment import NOT_JUDGED, VERDICTS, Budget, Claim, Experiment, Outcome, load_experiment
from chumoku.probe.plot_style import plot_style
from chumoku.weights.checksums import atomic_folder, verify_checksums

FAILED = "failed to run"
LARGEST = 1 << 26  # bytes of a result file

Progress = Callable[[str, "Result | None"], None]  # the id, and the result when it is finished


@dataclass(frozen=True)
class Result:
    id: str
    verdict: str  # one of VERDICTS, or FAILED
    claim: Claim | None  # None if the claim's file could not be imported
    outcome: Outcome | None
    error: str | None  # why it failed to run
    budget: Budget
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        claim = {key: _to_dict(value) for key, value in vars(self.claim).items()} if self.claim else {"id": self.id}
        found = {key: _to_dict(value) for key, value in vars(self.outcome).items()} if self.outcome else {}
        found.pop("verdict", None)
        reading = claim.pop("reading", None)
        numbers = _to_json(found.pop("numbers", {}))
        seeds = numbers.get("seeds") if isinstance(numbers, dict) else None
        return {
            "id": self.id,
            "verdict": self.verdict,
            "failed": self.error,
            "claim": claim,
            **found,
            **({"reading": reading} if self.outcome else {}),
            "numbers": numbers,
            "seeds": seeds
            if isinstance(seeds, list)
            else list(range(1 if self.id in SINGLE_SEED else self.budget.seeds)),
            "budget": asdict(self.budget),
            "seconds": round(self.seconds, 3),
            "versions": versions(),
            "platform": f"{platform.system()} {platform.machine()}, {torch.get_num_threads()} threads",
        }


def run(ids: Sequence[str], budget: Budget, out: Path, progress: Progress = lambda id, result: None) -> list[Result]:
    """Run these claims in reading order; each result is written as soon as it is finished."""
    results = []
    for id in select_claims(ids):
        progress(id, None)
        result = _run_one(id, budget, out)
        results.append(result)
        progress(id, result)
    return results


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), "torch": torch.__version__, "chumoku": chumoku.__version__}


def read_result(out: Path, id: str) -> tuple[dict[str, Any], bytes | None] | None:
    """The last result of a claim and its figure, or None; raises DamagedError if the files are damaged."""
    folder = out / id
    if not folder.is_dir():
        return None
    verify_checksums(folder)
    file, figure = folder / "result.json", folder / "figure.png"
    for path in (file, figure):
        if path.exists() and path.stat().st_size > LARGEST:
            raise DamagedError(f"{path} is too large to be a result. Run `chumoku lab run {id}` again.")
    try:
        result = json.loads(file.read_bytes())
        valid = result["id"] == id and result["verdict"] in (*VERDICTS, FAILED)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedError(f"{file} cannot be read as a result. Run `chumoku lab run {id}` again.") from error
    if not valid:
        raise DamagedError(f"{file} is not the result of {id}. Run `chumoku lab run {id}` again.")
    return result, figure.read_bytes() if figure.exists() else None


def expected_seconds(id: str, budget: Budget, out: Path) -> float:
    """Estimated seconds for a claim: from its last run, scaled by the budget, or a guess."""
    try:
        found = read_result(out, id)
        if found is not None:
            return max(0.05, float(found[0]["seconds"]) * budget.scale / float(found[0]["budget"]["scale"]))
    except (DamagedError, KeyError, TypeError, ValueError, ZeroDivisionError):
        pass  # an estimate for the progress bar does not need valid results
    return 0.3 if id in ARITHMETIC else 25 * budget.scale


def _run_one(id: str, budget: Budget, out: Path) -> Result:
    """Run one experiment and restore the global random state, threads and dtype, so that the order does not matter."""
    started, threads, dtype = time.perf_counter(), torch.get_num_threads(), torch.get_default_dtype()
    experiment: Experiment | None = None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            experiment = load_experiment(id)
            outcome = experiment.run(budget)
            if outcome.verdict not in VERDICTS:
                raise UsageError(f"'{outcome.verdict}' is not a verdict; expected one of: {', '.join(VERDICTS)}.")
            verdict = outcome.verdict if budget.scale >= 1 or id in TRAINING_INDEPENDENT else NOT_JUDGED
            result = Result(id, verdict, experiment.claim, outcome, None, budget, time.perf_counter() - started)
            _write(result, out, experiment)
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            claim = experiment.claim if experiment else None
            result = Result(id, FAILED, claim, None, message, budget, time.perf_counter() - started)
            _write(result, out, None)
        finally:
            torch.set_num_threads(threads)
            torch.set_default_dtype(dtype)
    return result


def _write(result: Result, out: Path, experiment: Experiment | None) -> None:
    with atomic_folder(out / result.id) as folder:
        text = json.dumps(result.as_dict(), ensure_ascii=False, indent=1, allow_nan=False)
        (folder / "result.json").write_text(text + "\n", encoding="utf-8")
        if experiment is not None and experiment.draw is not None and result.outcome is not None:
            settings: Any = plot_style() | {"font.size": 9.0, "axes.titlesize": 10.0}
            with rc_context(settings):
                figure = Figure(figsize=(7.6, 3.6), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08))
                experiment.draw(result.outcome, figure)
                figure.savefig(folder / "figure.png", dpi=130)


def _to_dict(value: Any) -> Any:
    """Named tuples (texts, corrections) as dictionaries."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {key: _to_dict(part) for key, part in value._asdict().items()}
    return value


def _to_json(value: Any) -> Any:
    """Values as JSON allows them: numbers that are not finite become strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _to_json(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(part) for part in value]
    return value
