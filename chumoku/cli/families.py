"""chumoku families: the model families of other libraries, and the formats of each."""

from __future__ import annotations

from chumoku.cli.shared import Json, json_line


def families(as_json: Json = False) -> None:
    """List the model families that can be opened, and the formats that each can be opened from and written to."""
    from chumoku.weights.supported_formats import FORMATS, supported_formats

    table = supported_formats()
    if as_json:
        print(json_line(families=table))
        return
    width = max(map(len, table))
    print("  ".join(["family".ljust(width), *FORMATS]))
    for title, cells in table.items():
        print("  ".join([title.ljust(width), *(("yes" if cells[form] else "–").ljust(len(form)) for form in FORMATS)]))
