"""Split Japanese–English tables into training, validation and test files for recipes/ja-en-teacher.toml.

    python scripts/prepare_ja_en.py FOLDER data/ja-en

FOLDER has everyday.tsv.gz, prose.tsv.gz and dictionary.tsv.gz with the columns Japanese, English, source. Similar pairs
form groups (chumoku.data.near_duplicates, over all tables), and a hash of a group decides whether it is held out. Of a
held-out group, one pair goes to the test or validation file, and the others are dropped, so no sentence of these
files has a near-duplicate in training. Writes

    train/SOURCE.tsv.gz                                one file per source, so that a recipe can weight them
    validation-everyday.tsv, validation-prose.tsv      to watch and choose by
    test-everyday.tsv, test-prose.tsv                  to report
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import itertools
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from chumoku.data.near_duplicates import group_pairs
from chumoku.data.pairs import Pair, keep_letters
from chumoku.text.progress import ShowProgress

# Sources whose sentences people wrote as sentences; the others (simplified texts, glosses, verses) are only trained on.
HELD_OUT = {
    "everyday": ("tatoeba_full_2025", "manythings_2023", "tanaka_edrdg"),
    "prose": ("kyoto_wiki", "alt", "paranatcom", "cataclysm_dda"),
}
SIZES = {"test-everyday": 2000, "validation-everyday": 1000, "test-prose": 1000, "validation-prose": 500}
LARGEST_GROUP = 20  # pairs; larger groups are never held out


class Row(NamedTuple):
    pair: Pair
    table: str
    source: str


def read_rows(folder: Path) -> list[Row]:
    rows = []
    for table in ("everyday", "prose", "dictionary"):
        with gzip.open(folder / f"{table}.tsv.gz", "rt", encoding="utf-8") as lines:
            for line in lines:
                japanese, english, source = line.rstrip("\n").split("\t")
                rows.append(Row(Pair(japanese, english), table, source))
    return rows


def choose_parts(rows: list[Row], groups: list[int]) -> list[str | None]:
    """The part of each row: "train", one of SIZES, or None if the row is dropped because its group is held out."""
    members = defaultdict(list)
    for index, group in enumerate(groups):
        members[group].append(index)
    parts: list[str | None] = ["train"] * len(rows)
    for table, sources in HELD_OUT.items():
        candidates = {}
        for indices in members.values():
            chosen = [index for index in indices if rows[index].source in sources]
            free = all(parts[index] == "train" for index in indices)  # not held out for the other table
            if chosen and free and len(indices) <= LARGEST_GROUP:
                first = min(chosen, key=lambda index: content_hash(rows[index].pair))
                candidates[content_hash(rows[first].pair)] = (first, indices)
        order = iter(sorted(candidates))
        for part in (f"test-{table}", f"validation-{table}"):
            for key in itertools.islice(order, SIZES[part]):
                first, indices = candidates[key]
                for index in indices:
                    parts[index] = None
                parts[first] = part
    return parts


def content_hash(pair: Pair) -> str:
    return hashlib.blake2b(
        f"{keep_letters(pair.source)}\t{keep_letters(pair.target)}".encode(), digest_size=8
    ).hexdigest()


def write_parts(rows: list[Row], parts: list[str | None], folder: Path) -> None:
    lines = defaultdict(list)
    for row, part in zip(rows, parts, strict=True):
        if part is not None:
            name = f"train/{row.source}.tsv.gz" if part == "train" else f"{part}.tsv"
            lines[name].append(f"{row.pair.source}\t{row.pair.target}\n")
    (folder / "train").mkdir(parents=True, exist_ok=True)
    for name, texts in lines.items():
        data = "".join(texts).encode()
        (folder / name).write_bytes(gzip.compress(data, mtime=0) if name.endswith(".gz") else data)
        print(f"{folder / name}: {len(texts):,} pairs")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tables", type=Path, help="folder with everyday.tsv.gz, prose.tsv.gz and dictionary.tsv.gz")
    parser.add_argument("out", type=Path, help="folder to write")
    given = parser.parse_args()
    rows = read_rows(given.tables)
    with ShowProgress(Console()) as progress:
        groups = group_pairs([row.pair for row in rows], progress)
    parts = choose_parts(rows, groups)
    print(", ".join(f"{part or 'dropped'} {number:,}" for part, number in Counter(parts).items()))
    write_parts(rows, parts, given.out)


if __name__ == "__main__":
    main()
