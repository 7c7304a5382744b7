"""Training runs in a folder, running or finished.

    folder/name/metrics.jsonl        points: loss, validation loss, learning rate, gradient norm, tokens per second
    folder/name/recipe.json          the configuration
    folder/name/checkpoints/step-…   models (opened by `checkpoints`)

The files are not trusted: only a limited part of each is read, lines that are not points are skipped and counted, and
a run is looked up by name in a list, never by a path built from a request.
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
from chumoku.probe.forward_pass import check_head, check_layer
from chumoku.probe.json_values import json_number
from chumoku.probe.page import nan_bitmap, pack_weights
from chumoku.probe.snapshot import take_snapshot
from chumoku.safe_files import is_outside_link
from chumoku.server.checkpoints import Checkpoints, UnknownRun, list_checkpoints, list_names, open_regular
from chumoku.server.look.schemas import RunLook
from chumoku.server.look.shared import MAX_MAP_VALUES, MAX_TOKENS, prompt_from_text
from chumoku.weights.bundle import Bundle

MAX_BYTES, TAIL = 16 << 20, 1 << 16  # read from the end of a metrics file: for all points, for the list of runs
MAX_RECIPE_BYTES = 1 << 20
MAX_RUNS, MAX_POINTS = 500, 2000
LIVE = 60.0  # seconds since the last change, in which a run counts as live
FIELDS = {  # name in the file → name in the API
    **{name: name for name in ("loss", "rate", "norm", "tokens_per_second")},
    "validation_loss": "validation",
}


class Runs:
    """The runs in a folder. `list_runs`, `points` and `open_model` read files and may block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._checkpoints = Checkpoints()
        self._last: tuple[Any, tuple[list[dict[str, Any]], int]] = (None, ([], 0))

    def list_runs(self) -> dict[str, Any]:
        """All runs, most recently changed first."""
        runs = []
        for name, path in self._run_folders().items():
            with contextlib.suppress(OSError):  # deleted in the meantime, or not readable
                runs.append(self._summarize(name, path))
        return {"runs": sorted(runs, key=lambda run: -float(run["updated"]))}

    def points(self, name: str, after: int = 0) -> dict[str, Any]:
        """Points after a step; if there are too many, an even selection of them."""
        path = self._find_run(name)
        try:
            lines, skipped = self._read_points(path / "metrics.jsonl")
        except OSError as error:
            raise UnknownRun(f"The run {name} cannot be read, or no longer exists.") from error
        later = [line for line in lines if line["step"] > after]
        return {"id": name, "points": thin_points(later), "total": len(later), "skipped": skipped}

    def open_model(self, name: str, step: int) -> Bundle:
        """The model of a run at a step."""
        return self._checkpoints.open(self._find_run(name), step)

    def look(
        self,
        pipeline: Bundle,
        request: RunLook,
        lock: contextlib.AbstractContextManager[None] | None = None,
        check_interrupt: CheckInterrupt = never_interrupt,
    ) -> dict[str, Any]:
        """Attention map of one head for a text, with a checkpoint's model; `lock` is held while it computes."""
        with lock or contextlib.nullcontext(), interruptible(pipeline.model, check_interrupt):
            return self._look(pipeline, request, check_interrupt)

    def _look(self, pipeline: Bundle, request: RunLook, check_interrupt: CheckInterrupt) -> dict[str, Any]:
        if request.map == "cross" and pipeline.config.kind != "encoder-decoder":
            raise UsageError(f"A model of kind '{pipeline.config.kind}' has no cross-attention. Choose another map.")
        check_layer(pipeline.config, request.layer, "decoder" if request.map == "cross" else request.map)
        check_head(pipeline.config, request.head)
        most = longest(pipeline, most=MAX_TOKENS, room=MAX_MAP_VALUES, layers=1)
        prompt, notices = prompt_from_text(
            pipeline, request.text, request.target, None, most=most, check_interrupt=check_interrupt
        )
        depth = min(depth for depth in (pipeline.config.encoder_depth, pipeline.config.decoder_depth) if depth)
        only_layer = request.layer if request.layer < depth else None
        snapshot = take_snapshot(
            pipeline.model, prompt, layer=only_layer, with_lens=False, check_interrupt=check_interrupt
        )
        full_map = snapshot.map(request.map)
        layer = 0 if len(full_map.weights) == 1 else request.layer
        weights = full_map.weights[layer, request.head]
        return {
            "step": request.checkpoint,
            "rows": full_map.rows,
            "columns": full_map.columns,
            "weights": pack_weights(weights),
            "nan": nan_bitmap(weights),
            "notices": notices,
        }

    def _read_points(self, path: Path) -> tuple[list[dict[str, Any]], int]:
        """All points of a run; read again only if the file changed since the last call."""
        info = path.stat() if path.is_file() else None
        stamp = info and (path, info.st_size, info.st_mtime_ns)
        if stamp is None or self._last[0] != stamp:
            self._last = (stamp, read_points(path))
        return self._last[1]

    def _run_folders(self) -> dict[str, Path]:
        """Name → folder of each run; symbolic links are ignored."""
        if not self.folder.is_dir():
            return {}
        try:
            entries = sorted(self.folder.iterdir())
        except OSError:
            return {}
        return {path.name: path for path in itertools.islice(filter(is_run, entries), MAX_RUNS)}

    def _find_run(self, name: str) -> Path:
        folders = self._run_folders()
        if name not in folders:
            raise UnknownRun(f"There is no run {name[:80]!r}. The folder of runs contains: {list_names(folders)}.")
        return folders[name]

    def _summarize(self, name: str, path: Path) -> dict[str, Any]:
        recipe = read_recipe(path / "recipe.json")
        metrics = path / "metrics.jsonl"
        updated = metrics.stat().st_mtime if metrics.is_file() else path.stat().st_mtime
        lines, skipped = read_points(metrics, max_bytes=TAIL)
        planned = _count(recipe, "train", "steps")
        return {
            "id": name,
            "kind": _kind(recipe),
            **{part: _count(recipe, "model", part) for part in ("layers", "encoder_layers", "heads")},
            "steps": lines[-1]["step"] if lines else 0,
            "planned": planned,
            "updated": round(updated, 1),
            "live": time.time() - updated < LIVE and not (lines and lines[-1]["step"] == planned),
            "checkpoints": sorted(list_checkpoints(path)),
            "skipped": skipped,
        }


def is_run(path: Path) -> bool:
    """Whether this is a folder with a training run, and not a symbolic link."""
    try:
        if path.is_symlink() or not path.is_dir():
            return False
        return any((path / part).exists() for part in ("metrics.jsonl", "checkpoints"))
    except OSError:
        return False


def read_points(path: Path, *, max_bytes: int = MAX_BYTES) -> tuple[list[dict[str, Any]], int]:
    """Points of a metrics file, one per step, and the number of skipped lines."""
    if not path.is_file() or is_outside_link(path):
        return [], 0
    with open_regular(path) as stream:
        if (size := os.fstat(stream.fileno()).st_size) > max_bytes:
            stream.seek(size - max_bytes)
            stream.readline()
        data = stream.read(max_bytes)
    points: dict[int, dict[str, Any]] = {}
    skipped = 0
    complete = data.rpartition(b"\n")[0]  # the last line may be incomplete
    for line in complete.splitlines():
        values = _parse_point(line)
        if values is None:
            skipped += 1
        else:
            points.setdefault(values["step"], {}).update(values)
    return [points[step] for step in sorted(points)], skipped


def _parse_point(line: bytes) -> dict[str, Any] | None:
    """One line of a metrics file; null becomes "NaN". None if the line is not a point."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    step = entry.get("step") if isinstance(entry, dict) else None
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step <= 10**12:
        return None
    point: dict[str, Any] = {"step": step}
    for file_name, api_name in FIELDS.items():
        value = entry.get(file_name, ...)
        if value is None:
            point[api_name] = "NaN"
        elif isinstance(value, int | float) and not isinstance(value, bool):
            # Large integers do not fit into a float; for NaN the comparison is false.
            infinite = abs(value) >= 1e300
            point[api_name] = json_number((math.inf if value > 0 else -math.inf) if infinite else float(value))
    return point if len(point) > 1 else None


def thin_points(points: list[dict[str, Any]], most: int = MAX_POINTS) -> list[dict[str, Any]]:
    """At most `most` points, evenly selected; validation points and the last one are preferred."""
    if len(points) <= most:
        return points
    every = math.ceil(len(points) / (most // 2))
    validated = [place for place, point in enumerate(points) if "validation" in point]
    validated = validated[:: math.ceil(max(1, len(validated)) / (most // 2 - 1))]
    return [points[place] for place in sorted({*range(0, len(points), every), *validated, len(points) - 1})]


def read_recipe(path: Path) -> dict[str, Any]:
    """The tables of a recipe; empty if it cannot be read."""
    try:
        if is_outside_link(path):
            return {}
        with open_regular(path) as stream:
            data = stream.read(MAX_RECIPE_BYTES + 1)
        recipe = json.loads(data) if len(data) <= MAX_RECIPE_BYTES else None
    except (OSError, ValueError, RecursionError):
        return {}
    return {key: value for key, value in recipe.items() if isinstance(value, dict)} if isinstance(recipe, dict) else {}


def _kind(recipe: dict[str, Any]) -> str:
    kind = recipe.get("model", {}).get("kind")
    return kind if kind in ("encoder", "decoder", "encoder-decoder") else "decoder"


def _count(recipe: dict[str, Any], table: str, key: str) -> int | None:
    value = recipe.get(table, {}).get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 10**12 else None
