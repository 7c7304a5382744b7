"""The head of a GGUF file: everything but the weights.

    "GGUF"  version u32  tensors u64  fields u64
    field   name, kind u32, value                        a string is its length u64 and its bytes
    list    kind u32, count u64, values                  of one kind, none of them a list
    tensor  name, rank u32, sizes u64 …, type u32, offset u64
    (zeros up to a multiple of general.alignment)        offsets count from here

Little-endian. Such files come from anywhere: every count and length is held against what is left of the file before
anything is made of it, and all lists together against `MOST_VALUES`.
"""

from __future__ import annotations

import math
import mmap
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from chumoku.errors import DamagedError, UsageError
from chumoku.weights.formats.gguf.blocks import TYPES

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_HEADER = 1 << 25  # bytes; the largest vocabularies take a third of it
MAX_VALUES = 1 << 21  # in all lists together
MAX_ENTRIES = 1 << 14  # fields, and tensors
MAX_NAME = (1 << 16) - 1
MAX_RANK = 4
MIN_FIELD, MIN_TENSOR = 8 + 4 + 1, 8 + 4 + 8 + 4 + 8  # bytes
ALIGNMENTS = tuple(1 << power for power in range(3, 17))
STRING, LIST = 8, 9
KINDS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}  # as struct has them
LENGTH = struct.Struct("<Q")
MIN_BATCH, MAX_BATCH, MEAN_BYTES = (
    64,
    1 << 16,
    32,
)  # strings looked at together, and bytes that each takes at most on average


class TensorInfo(NamedTuple):
    """Where a tensor lies, and what it is."""

    shape: tuple[int, ...]  # as in PyTorch; the file counts from the last
    type: str
    offset: int  # from the beginning of the file
    bytes: int


class Header(NamedTuple):
    fields: dict[str, Any]
    tensors: dict[str, TensorInfo]


def read_header(data: mmap.mmap, path: Path) -> Header:
    """Fields and tensors of a whole file, all of them checked."""
    return _Reader(data, path).head()


class _Reader:
    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data, self.path = data, path
        self.at, self.end = 0, min(len(data), MAX_HEADER)
        self.values = 0

    def head(self) -> Header:
        if self.data[:4] != MAGIC:
            raise UsageError(f"{self.path} is no GGUF file: it does not begin with the letters GGUF.")
        self.at = 4
        version = self._number("I")
        if version in (1, *(number << 24 for number in (1, *VERSIONS))):
            older = "big-endian machines" if version > 1 else "the first version of the format"
            raise UsageError(f"{self.path} is a GGUF file for {older}, which is not read here. Convert it again.")
        if version not in VERSIONS:
            raise UsageError(f"{self.path} is a GGUF file of version {version}; versions 2 and 3 are read here.")
        tensors, fields = self._number("Q"), self._number("Q")
        self._room(tensors, MIN_TENSOR, "tensors", MAX_ENTRIES)
        self._room(fields, MIN_FIELD, "fields", MAX_ENTRIES)
        found = self._fields(fields)
        if found.get("split.count", 0) not in (0, 1):
            raise UsageError(
                f"{self.path} is one of {found['split.count']} parts of a model. Merge them first: "
                "`llama-gguf-split --merge` does it."
            )
        return Header(found, self._placed(self._tensors(tensors), found.get("general.alignment", 32)))

    def _fields(self, count: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in range(count):
            name = self._name(found)
            kind = self._number("I")
            found[name] = self._list(name) if kind == LIST else self._value(kind, name)
        return found

    def _value(self, kind: int, name: str) -> Any:
        if kind == STRING:
            return self._strings(1)[0]
        return self._number(self._known(kind, name))

    def _list(self, name: str) -> list[Any]:
        kind, count = self._number("I"), self._number("Q")
        self._room(count, 8 if kind == STRING else struct.calcsize(self._known(kind, name)), f"values in {name}")
        self.values += count
        if self.values > MAX_VALUES:
            self._damaged(f"its lists have more than {MAX_VALUES:,} values, more than any vocabulary has")
        return self._strings(count) if kind == STRING else self._numbers(KINDS[kind], count)

    def _known(self, kind: int, name: str) -> str:
        if kind not in KINDS:
            self._damaged(f"{name} is of kind {kind}, which there is not" + " inside a list" * (kind == LIST))
        return KINDS[kind]

    def _tensors(self, count: int) -> dict[str, TensorInfo]:
        found: dict[str, TensorInfo] = {}
        for _ in range(count):
            name = self._name(found)
            rank = self._number("I")
            if not 1 <= rank <= MAX_RANK:
                self._damaged(f"the tensor {name} has {rank} dimensions, and 1 to {MAX_RANK} are possible")
            sizes = self._numbers("Q", rank)
            number, offset = self._number("I"), self._number("Q")
            if number not in TYPES:
                raise UsageError(
                    f"{self.path}: the tensor {name} is stored as type {number} of ggml, which is not read here; "
                    f"{', '.join(kind.name for kind in TYPES.values())} are. Requantize it, to Q8_0 for example."
                )
            kind = TYPES[number]
            if 0 in sizes or sizes[0] % kind.numbers:
                self._damaged(f"{name} has sizes {sizes}, which {kind.name} cannot have")
            size = math.prod(sizes) // kind.numbers * kind.bytes
            found[name] = TensorInfo(tuple(reversed(sizes)), kind.name, offset, size)
        return found

    def _placed(self, tensors: dict[str, TensorInfo], alignment: Any) -> dict[str, TensorInfo]:
        """Offsets from the beginning of the file; every tensor inside it and beside the others."""
        if alignment not in ALIGNMENTS:
            self._damaged(f"general.alignment is {str(alignment)[:60]}, and no power of two that can be")
        start = -(-self.at // alignment) * alignment
        placed = {name: info._replace(offset=start + info.offset) for name, info in tensors.items()}
        for name, info in placed.items():
            if info.offset % alignment or info.offset + info.bytes > len(self.data):
                self._damaged(f"the tensor {name} lies outside the file or off its grid; is it whole?")
        ordered = sorted(placed.items(), key=lambda entry: entry[1].offset)
        for (name, info), (other, following) in pairwise(ordered):
            if info.offset + info.bytes > following.offset:
                self._damaged(f"the tensors {name} and {other} lie over each other")
        return placed

    def _name(self, taken: dict[str, Any]) -> str:
        if self.at + 8 <= self.end and LENGTH.unpack_from(self.data, self.at)[0] > MAX_NAME:
            self._damaged(f"a name is longer than {MAX_NAME:,} bytes")
        name = self._strings(1)[0]
        if name in taken:
            self._damaged(f"the name {name[:60]!r} is there twice")
        return name

    def _short_strings(self, count: int) -> list[str] | None:
        """Many at once, where all have 1 to 255 bytes and no zeros: the only zeros are then seven behind each length.

        None where they are others. A vocabulary read one by one is most of what opening a file costs.
        """
        data = np.frombuffer(self.data[self.at : min(self.end, self.at + count * MEAN_BYTES)], np.uint8).copy()
        zeros = np.flatnonzero(data == 0)[: 7 * count]
        if len(zeros) != 7 * count:
            return None
        starts = zeros[::7] - 1
        ends = starts + 8 + data[starts]
        if starts[0] or ends[-1] > len(data) or (starts[1:] != ends[:-1]).any() or (zeros[6::7] - starts != 7).any():
            return None
        data[starts] = 0  # and now there are eight between any two
        try:
            found = data[: ends[-1]].tobytes().decode().split("\0" * 8)[1:]
        except UnicodeDecodeError:
            return None
        if len(found) != count:
            return None
        self.at += int(ends[-1])
        return found

    def _strings(self, count: int) -> list[str]:
        found: list[str] = []
        while count:
            some = min(count, MAX_BATCH)
            quick = self._short_strings(some) if some >= MIN_BATCH else None
            found += self._each_string(some) if quick is None else quick
            count -= some
        return found

    def _each_string(self, count: int) -> list[str]:
        data, at, end = self.data, self.at, self.end
        found: list[str] = []
        length = LENGTH.unpack_from
        try:
            for _ in range(count):
                start = at + 8
                at = start + length(data, at)[0]
                if at > end:
                    self._short()
                found.append(data[start:at].decode())
        except struct.error:
            self._short()
        except UnicodeDecodeError:
            self._damaged(f"the text at byte {start:,} is no UTF-8")
        self.at = at
        return found

    def _numbers(self, letter: str, count: int) -> list[Any]:
        start, self.at = self.at, self.at + count * struct.calcsize(f"<{letter}")
        if self.at > self.end:
            self._short()
        found: list[Any] = np.frombuffer(self.data[start : self.at], f"<{letter}").tolist()
        return found

    def _number(self, letter: str) -> Any:
        start, self.at = self.at, self.at + struct.calcsize(f"<{letter}")
        if self.at > self.end:
            self._short()
        return struct.unpack_from(f"<{letter}", self.data, start)[0]

    def _room(self, count: int, each: int, what: str, most: int = MAX_HEADER) -> None:
        if count > most or count * each > self.end - self.at:
            self._damaged(f"it says it has {count:,} {what}, for which it has no room")

    def _short(self) -> NoReturn:
        if self.end < len(self.data):
            self._damaged(f"what comes before its weights is longer than {MAX_HEADER:,} bytes")
        self._damaged("it ends before its weights begin; is it whole?")

    def _damaged(self, what: str) -> NoReturn:
        raise DamagedError(f"{self.path} is damaged, or no file to trust: {what}.")
