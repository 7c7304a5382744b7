"""chumoku families: the model families of other libraries, and the formats of each."""

from __future__ import annotations

from chumoku.cli.shared import Json, json_line, pad
from chumoku.messages import heading


def families(as_json: Json = False) -> None:
    """List the model families that can be opened, and the formats that each can be opened from and written to."""
    from rich.cells import cell_len

    from chumoku.weights.supported_formats import FORMATS, supported_formats

    table = supported_formats()
    if as_json:
        print(json_line(families=table))
        return
    width = max(map(len, table))
    heads = {form: heading(form) for form in FORMATS}
    print("  ".join([pad(heading("family"), width), *heads.values()]))
    for title, cells in table.items():
        marks = (pad(heading("yes") if cells[form] else "–", cell_len(head)) for form, head in heads.items())
        print("  ".join([title.ljust(width), *marks]))
