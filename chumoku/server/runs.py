"""Training runs of a folder, while they are made and afterwards.

    folder/name/metrics.jsonl        points: loss, validation loss, rate, norm, tokens a second by step
    folder/name/recipe.json          what is trained
    folder/name/checkpoints/step-…   models, to watch a head form (`checkpoints` opens them)

A run's files may be anybody's: so much of each is read and no more, lines that are no points are skipped and counted,
and a run is found by its name in a listing, never by a path made of what was asked.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import time
from pathlib import Path
from typing import Any

from chumoku.errors import UsageError
from chumoku.inspect_prompt import longest
from chumoku.probe.cancellation import CheckInterrupt, interruptible, never_interrupt
from chumoku.probe.page import pack_weights
from chumoku.probe.snapshot import take_snapshot
from chumoku.safe_files import leads_out
from chumoku.server.checkpoints import Checkpoints, UnknownRun, checkpoints, listed, open_regular
from chumoku.server.look.schemas import RunLook
from chumoku.server.look.shared import MOST, ROOM, check_head, check_layer, holes, number, put
from chumoku.weights.bundle import Bundle

LARGEST, TAIL = 16 << 20, 1 << 16  # bytes of metrics that are read: those at the end
LARGEST_RECIPE = 1 << 20
MOST_RUNS, MOST_POINTS = 500, 2000
LIVE = 60.0  # seconds since something was written
FIELDS = {  # theirs → ours
    **{name: name for name in ("loss", "rate", "norm", "tokens_per_second")},
    "validation_loss": "validation",
}


class Runs:
    """The runs in a folder. What reads files (`listing`, `points`, `model`) may take as long as a disk does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._checkpoints = Checkpoints()
        self._last: tuple[Any, tuple[list[dict[str, Any]], int]] = (None, ([], 0))

    def listing(self) -> dict[str, Any]:
        """All runs, the one that changed last first."""
        runs = []
        for name, path in self._found().items():
            with contextlib.suppress(OSError):  # gone meanwhile, or not ours to read; the others are
                runs.append(self._described(name, path))
        return {"runs": sorted(runs, key=lambda run: -float(run["updated"]))}

    def points(self, name: str, after: int = 0) -> dict[str, Any]:
        """What a run told after a step; of very many points, evenly chosen ones."""
        path = self._run(name)
        try:
            lines, skipped = self._told(path / "metrics.jsonl")
        except OSError as error:
            raise UnknownRun(f"The run {name} cannot be read, or is not there any more.") from error
        later = [line for line in lines if line["step"] > after]
        return {"id": name, "points": thinned(later), "total": len(later), "skipped": skipped}

    def model(self, name: str, step: int) -> Bundle:
        """The model that a run was at a step."""
        return self._checkpoints.open(self._run(name), step)

    def look(
        self,
        speaker: Bundle,
        request: RunLook,
        turn: contextlib.AbstractContextManager[None] | None = None,
        going: CheckInterrupt = never_interrupt,
    ) -> dict[str, Any]:
        """One head's map of a text, by a run's model; what computes has the `turn`."""
        with turn or contextlib.nullcontext(), interruptible(speaker.model, going):
            return self._seen(speaker, request, going)

    def _seen(self, speaker: Bundle, request: RunLook, going: CheckInterrupt) -> dict[str, Any]:
        if request.map == "cross" and speaker.config.kind != "encoder-decoder":
            raise UsageError(f"A model of kind '{speaker.config.kind}' does not look across. Choose another map.")
        check_layer(speaker, request.layer, "decoder" if request.map == "cross" else request.map)
        check_head(speaker, request.head)
        most = longest(speaker, most=MOST, room=ROOM, layers=1)
        asked, notices = put(speaker, request.text, request.target, None, most=most, going=going)
        depth = min(depth for depth in (speaker.config.encoder_depth, speaker.config.decoder_depth) if depth)
        shown = request.layer if request.layer < depth else None
        seen = take_snapshot(speaker.model, asked, layer=shown, with_lens=False, check_interrupt=going)
        one = seen.map(request.map)
        layer = 0 if len(one.weights) == 1 else request.layer
        drawn = one._replace(weights=one.weights[layer, request.head][None, None])
        return {
            "step": request.checkpoint,
            "rows": drawn.rows,
            "columns": drawn.columns,
            "weights": pack_weights(drawn.weights),
            "nan": holes(drawn),
            "notices": notices,
        }

    def _told(self, path: Path) -> tuple[list[dict[str, Any]], int]:
        """All points of a run; whoever asks again and again has them read once, until there are more."""
        there = path.stat() if path.is_file() else None
        stamp = there and (path, there.st_size, there.st_mtime_ns)
        if stamp is None or self._last[0] != stamp:
            self._last = (stamp, read_points(path))
        return self._last[1]

    def _found(self) -> dict[str, Path]:
        """Folders that hold a run, by name; links lead nowhere."""
        if not self.folder.is_dir():
            return {}
        try:
            inside = sorted(self.folder.iterdir())
        except OSError:
            return {}
        return {path.name: path for path in itertools.islice(filter(is_run, inside), MOST_RUNS)}

    def _run(self, name: str) -> Path:
        found = self._found()
        if name not in found:
            raise UnknownRun(f"There is no run {name[:80]!r} in the folder of runs. It has {listed(found)}.")
        return found[name]

    def _described(self, name: str, path: Path) -> dict[str, Any]:
        recipe = read_recipe(path / "recipe.json")
        metrics = path / "metrics.jsonl"
        updated = metrics.stat().st_mtime if metrics.is_file() else path.stat().st_mtime
        lines, skipped = read_points(metrics, largest=TAIL)
        planned = _count(recipe, "train", "steps")
        return {
            "id": name,
            "kind": _kind(recipe),
            **{part: _count(recipe, "model", part) for part in ("layers", "encoder_layers", "heads")},
            "steps": lines[-1]["step"] if lines else 0,
            "planned": planned,
            "updated": round(updated, 1),
            "live": time.time() - updated < LIVE and not (lines and lines[-1]["step"] == planned),
            "checkpoints": sorted(checkpoints(path)),
            "skipped": skipped,
        }


def is_run(path: Path) -> bool:
    """Whether this is a folder with a run in it, and no link."""
    try:
        if path.is_symlink() or not path.is_dir():
            return False
        return any((path / part).exists() for part in ("metrics.jsonl", "checkpoints"))
    except OSError:
        return False


def read_points(path: Path, *, largest: int = LARGEST) -> tuple[list[dict[str, Any]], int]:
    """The points of a metrics file, one a step, and how many lines were none."""
    if not path.is_file() or leads_out(path):
        return [], 0
    with open_regular(path) as stream:
        if (size := os.fstat(stream.fileno()).st_size) > largest:
            stream.seek(size - largest)
            stream.readline()
        data = stream.read(largest)
    points: dict[int, dict[str, Any]] = {}
    skipped = 0
    whole = data.rpartition(b"\n")[0]  # the last line may still be being written
    for line in whole.splitlines():
        values = _values(line)
        if values is None:
            skipped += 1
        else:
            points.setdefault(values["step"], {}).update(values)
    return [points[step] for step in sorted(points)], skipped


def _values(line: bytes) -> dict[str, Any] | None:
    """What a line tells of a step; null, which is how a log says that a number was none, is NaN."""
    try:
        told = json.loads(line)
    except (ValueError, RecursionError):
        return None
    step = told.get("step") if isinstance(told, dict) else None
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step <= 10**12:
        return None
    found: dict[str, Any] = {"step": step}
    for theirs, ours in FIELDS.items():
        value = told.get(theirs, ...)
        if value is None:
            found[ours] = "NaN"
        elif isinstance(value, int | float) and not isinstance(value, bool):
            # Of NaN, nothing is larger or smaller; and not every whole number is one of floats.
            endless = abs(value) >= 1e300
            found[ours] = number((math.inf if value > 0 else -math.inf) if endless else float(value))
    return found if len(found) > 1 else None


def thinned(points: list[dict[str, Any]], most: int = MOST_POINTS) -> list[dict[str, Any]]:
    """No more points than can be drawn: evenly chosen, every validation and the last among them while they fit."""
    if len(points) <= most:
        return points
    every = math.ceil(len(points) / (most // 2))
    judged = [place for place, point in enumerate(points) if "validation" in point]
    judged = judged[:: math.ceil(max(1, len(judged)) / (most // 2 - 1))]
    return [points[place] for place in sorted({*range(0, len(points), every), *judged, len(points) - 1})]


def read_recipe(path: Path) -> dict[str, Any]:
    """A recipe's tables, or none where there is none to be read."""
    try:
        if leads_out(path):
            return {}
        with open_regular(path) as stream:
            data = stream.read(LARGEST_RECIPE + 1)
        found = json.loads(data) if len(data) <= LARGEST_RECIPE else None
    except (OSError, ValueError, RecursionError):
        return {}
    return {key: value for key, value in found.items() if isinstance(value, dict)} if isinstance(found, dict) else {}


def _kind(recipe: dict[str, Any]) -> str:
    found = recipe.get("model", {}).get("kind")
    return found if found in ("encoder", "decoder", "encoder-decoder") else "decoder"


def _count(recipe: dict[str, Any], table: str, key: str) -> int | None:
    found = recipe.get(table, {}).get(key)
    return found if isinstance(found, int) and not isinstance(found, bool) and 0 < found <= 10**12 else None
