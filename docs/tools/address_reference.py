"""The reference of addresses: what can be recorded in a small model of each kind, with the shape of each tensor.

All sizes of these models differ, so that each dimension of a recorded tensor tells its letter.
"""

from __future__ import annotations

import tomllib

import torch
from quote import ROOT, DocsError

import chumoku

LETTERS = {2: "B", 5: "T", 7: "S", 6: "H", 3: "G", 10: "K", 60: "D", 13: "F", 17: "V", 11: "E", 8: "experts_per_token"}
SIZES = {"vocabulary": 17, "width": 60, "heads": 6, "kv_heads": 3, "feedforward_width": 13, "layers": 1}
HEADS = {
    "en": {"address": "address and shape", "meaning": "meaning", "experts": "decoder with experts"},
    "ja": {"address": "アドレスと形", "meaning": "意味", "experts": "decoder（experts を使う場合）"},
}


def generate_addresses(language: str) -> str:
    """A table for each kind of model; that of experts has only what the others have not."""
    words = HEADS[language]
    found = {kind: _record(kind=kind, position="learned") for kind in ("encoder", "decoder", "encoder-decoder")}
    plain = found["decoder"]
    with_experts = _record(kind="decoder", experts=11, experts_per_token=8)
    found[words["experts"]] = {key: shape for key, shape in with_experts.items() if plain.get(key) != shape}
    sections = []
    for title, shapes in found.items():
        rows = [f"| `{key}`<br>`{shape}` | {_meaning(key, language)} |" for key, shape in shapes.items()]
        head = f"| {words['address']} | {words['meaning']} |\n|---|---|"
        sections.append(f"## {title}\n\n{head}\n" + "\n".join(rows))
    return "\n\n".join(sections)


def _record(**keys: object) -> dict[str, str]:
    """Every address of a model with these keys, with the shape of its tensor in letters."""
    model = chumoku.build(chumoku.ModelConfig(**SIZES, **keys))
    target, source = torch.zeros(2, 5, dtype=torch.long), torch.zeros(2, 7, dtype=torch.long)
    inputs = (source, target) if keys["kind"] == "encoder-decoder" else (target,)
    with torch.inference_mode(), chumoku.record(model) as tape:
        model(*inputs)
    shapes = {}
    for address in chumoku.addresses(model):
        if address in tape:
            size = tape[address].shape
            shapes[address.replace("blocks.0", "blocks.N")] = f"[{', '.join(LETTERS.get(n, str(n)) for n in size)}]"
    return shapes


def _meaning(address: str, language: str) -> str:
    """What a tensor is, from the longest end of its address that address_meanings.toml has."""
    meanings = tomllib.loads((ROOT / "docs" / "tools" / "address_meanings.toml").read_text(encoding="utf-8"))
    parts = address.split(".")
    for start in range(len(parts)):
        end = ".".join(parts[start:])
        if end in meanings:
            return str(meanings[end][language])
    raise DocsError(f"docs/tools/address_meanings.toml does not say what {address} is.")
