"""The page of a look: one HTML file that needs nothing else, from a disk or from anywhere.

    look.html   the frame, in English and Japanese      look.css, look*.js   put into it, known by their SHA-256
    data        one JSON block; maps as base64 of 16-bit numbers, 65535 for a weight of 1

The policy in the page's head allows that script, that style and nothing more: no request, no other code. Names of
tokens come from files of strangers: they are data in a block that cannot end early, and become text, never markup.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chumoku.probe.lens import Stream
from chumoku.probe.snapshot import Seen, Word

FULL = 65535


def write_page(
    seen: Seen, path: Path, *, model: str, text: str, said: str, notices: Sequence[tuple[str, str]] = ()
) -> Path:
    """Write the page of a look; `notices` are sentences in English and Japanese."""
    data = {"model": model, "text": text, "said": said, "notices": list(notices), **as_data(seen)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(filled(data), encoding="utf-8")
    return path


def filled(data: dict[str, Any]) -> str:
    """The template with style, script and data in it."""
    room = files("chumoku.probe")
    names = ("look.html", "look.css", "look.js", "look_tables.js")
    html, css, *scripts = ((room / name).read_text(encoding="utf-8") for name in names)
    js = "".join(scripts)
    # In JSON, < is as well written \u003c: so written, nothing in it can end the block.
    block = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    allowed = ("default-src 'none'", f"script-src '{fingerprint(js)}'", f"style-src '{fingerprint(css)}'")
    policy = "; ".join((*allowed, "img-src data:", "base-uri 'none'", "form-action 'none'"))
    parts = {"{{policy}}": policy, "{{css}}": css, "{{js}}": js, "{{data}}": block}
    for mark, part in parts.items():
        html = html.replace(mark, part, 1)
    return html


def fingerprint(text: str) -> str:
    """How a policy names an inline part."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def as_data(seen: Seen) -> dict[str, Any]:
    """A look as JSON."""
    return {
        "kind": seen.kind,
        "tokens": seen.tokens,
        "source": seen.source,
        "first": seen.first,
        "maps": [
            {
                "key": one.key,
                "layers": one.weights.shape[0],
                "heads": one.weights.shape[1],
                "rows": one.rows,
                "columns": one.columns,
                "weights": packed(one.weights),
            }
            for one in seen.maps
        ],
        "entropy": {key: _rounded(table) for key, table in seen.entropy.items()},
        "streams": {name: _stream(stream) for name, stream in seen.streams.items()},
        "lens": None if seen.lens is None else [[_pairs(place) for place in row] for row in seen.lens.candidates],
        "words": [_word(word) for word in seen.words],
        "positions": {
            "kind": seen.positions.kind,
            "rows": seen.positions.rows,
            "table": None if seen.positions.table is None else _rounded(seen.positions.table, 3),
        },
    }


def packed(weights: Tensor) -> str:
    """Weights from 0 to 1 as 16-bit numbers, little end first, in base64."""
    whole = (weights.double().nan_to_num(0.0).clamp(0, 1) * FULL).round().to(torch.int32).numpy()
    return base64.b64encode(whole.astype("<u2").tobytes()).decode()


def _stream(stream: Stream) -> dict[str, list[list[float]]]:
    """Of each part, the least, the middle and the most over the places: [layers][3]."""
    shares = torch.tensor([0.0, 0.5, 1.0])
    parts = {name: part for name, part in stream._asdict().items() if part is not None}
    return {name: _rounded(part.quantile(shares, dim=1).T) for name, part in parts.items()}


def _word(word: Word) -> dict[str, Any]:
    looked = [(column, round(weight, 4)) for column, weight in word.looked]
    return {**word._asdict(), "candidates": _pairs(word.candidates), "looked": looked}


def _pairs(candidates: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    return [(name, float(f"{chance:.3g}")) for name, chance in candidates]


def _rounded(table: Tensor, digits: int = 4) -> Any:
    """Nested lists with so many significant digits."""
    return [[float(f"{number:.{digits}g}") for number in row] for row in table.tolist()]
