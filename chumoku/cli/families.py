"""chumoku families: the model families of other libraries, and the formats of each."""

from __future__ import annotations

from chumoku.cli.shared import Json, json_line, pad
from chumoku.messages import heading


def families(as_json: Json = False) -> None:
    """List the model families that can be opened, and the formats that each can be opened from and written to."""
    from chumoku.weights.supported_formats import FORMATS, supported_formats

    table = supported_formats()
    if as_json:
        print(json_line(families=table))
        return
    width = max(map(len, table))
    heads = [pad(heading(form), len(form)) for form in FORMATS]
    print("  ".join([pad(heading("family"), width), *heads]))
    for title, cells in table.items():
        marks = (pad(heading("yes") if cells[form] else "–", len(form)) for form in FORMATS)
        print("  ".join([title.ljust(width), *marks]))
