"""The page of a snapshot, as one HTML file that needs no server and no network.

    look.html       the template
    viewer/         the panels of the web page's view Look, inlined: style sheets, and modules as one script
    data            one JSON block; attention maps are base64 of 16-bit numbers, where 65535 is a weight of 1

The page's Content-Security-Policy allows these scripts and this style only, and no requests. Token names are untrusted:
they stay in a JSON block that cannot end early, and the script inserts them as text, never as markup.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chumoku.probe.csp import csp_hash
from chumoku.probe.inline_modules import inline_modules
from chumoku.probe.json_values import replace_non_finite
from chumoku.probe.lens import StreamNorms
from chumoku.probe.snapshot import PredictedToken, Snapshot

MAX_UINT16 = 65535


def write_page(
    snapshot: Snapshot, path: Path, *, model: str, text: str, output: str, notices: Sequence[tuple[str, str]] = ()
) -> Path:
    """Write the page of a snapshot.

    model, text, output: the model's name, its input text and its output text.
    notices: pairs of sentences, in English and in Japanese.
    """
    data = {"model": model, "text": text, "output": output, "notices": list(notices), **to_json(snapshot)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render_page(data), encoding="utf-8")
    return path


def render_page(data: dict[str, Any]) -> str:
    """The template with the style, the scripts and the data inserted."""
    early, js = _read("core/early.js"), inline_modules("views/look/page.js", _read)
    css = "".join(_read(name) for name in ("core/base.css", "views/look/look.css"))
    # Every < is escaped, so that no string in the data can close the script element.
    block = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    scripts = f"script-src '{csp_hash(early)}' '{csp_hash(js)}'"
    allowed = ("default-src 'none'", scripts, f"style-src '{csp_hash(css)}'", "img-src data:")
    policy = "; ".join((*allowed, "base-uri 'none'", "form-action 'none'"))
    parts = {"policy": policy, "css": css, "early": early, "js": js, "data": block}
    template = (files("chumoku.probe") / "look.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda mark: parts[mark[1]], template)


def _read(name: str) -> str:
    """A file of the web page."""
    return (files("chumoku") / "viewer" / name).read_text(encoding="utf-8")


def to_json(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot as a dictionary for JSON; NaN and infinities become strings."""
    following = snapshot.next_token
    data = {
        "kind": snapshot.kind,
        "tokens": snapshot.tokens,
        "source": snapshot.source,
        "first": snapshot.prompt_length,
        "then": following and {"id": following[0], "text": following[1]},
        "maps": [
            {
                "key": one.key,
                "first_layer": snapshot.first_layer,
                "layers": one.weights.shape[0],
                "heads": one.weights.shape[1],
                "rows": one.rows,
                "columns": one.columns,
                "weights": pack_weights(one.weights),
                "nan": nan_bitmap(one.weights),
            }
            for one in snapshot.maps
        ],
        "entropy": {key: _round(table) for key, table in snapshot.entropy.items()},
        "streams": {name: _quantiles(norms) for name, norms in snapshot.streams.items()},
        "lens": None
        if snapshot.lens is None
        else [[_pairs(place) for place in row] for row in snapshot.lens.candidates],
        "words": [_prediction(word) for word in snapshot.words],
        "positions": {
            "kind": snapshot.positions.kind,
            "rows": snapshot.positions.rows,
            "table": None if snapshot.positions.table is None else _round(snapshot.positions.table, 3),
        },
    }
    return {name: replace_non_finite(part) for name, part in data.items()}


def pack_weights(weights: Tensor) -> str:
    """Weights from 0 to 1 as little-endian 16-bit integers in base64."""
    integers = (weights.double().nan_to_num(0.0).clamp(0, 1) * MAX_UINT16).round().to(torch.int32).numpy()
    return base64.b64encode(integers.astype("<u2").tobytes()).decode()


def nan_bitmap(weights: Tensor) -> str | None:
    """Which weights are NaN: one bit each, lowest first, in base64; None without NaN."""
    is_nan = weights.isnan().numpy()
    return base64.b64encode(np.packbits(is_nan, bitorder="little").tobytes()).decode() if is_nan.any() else None


def _quantiles(norms: StreamNorms) -> dict[str, list[list[float]]]:
    """Minimum, median and maximum over the positions, for each part: [layers][3]."""
    shares = torch.tensor([0.0, 0.5, 1.0])
    parts = {name: part for name, part in norms._asdict().items() if part is not None}
    return {name: _round(part.quantile(shares, dim=1).T) for name, part in parts.items()}


def _prediction(word: PredictedToken) -> dict[str, Any]:
    looked = [(column, round(weight, 4)) for column, weight in word.looked]
    return {**word._asdict(), "candidates": _pairs(word.candidates), "looked": looked}


def _pairs(candidates: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    return [(name, float(f"{probability:.3g}")) for name, probability in candidates]


def _round(table: Tensor, digits: int = 4) -> Any:
    """Nested lists of numbers with this many significant digits."""
    return [[float(f"{number:.{digits}g}") for number in row] for row in table.tolist()]
