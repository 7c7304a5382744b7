"""Read the header of a GGUF file: everything except the weights.

    "GGUF"  version u32  tensors u64  fields u64
    field   name, kind u32, value                        a string is its length u64 and its bytes
    list    kind u32, count u64, values                  all of one kind, no nested lists
    tensor  name, rank u32, sizes u64 …, type u32, offset u64
    (zeros up to a multiple of general.alignment)        offsets are relative to this position

Little-endian. Files are untrusted: every count and length is checked against the rest of the file before memory is
allocated, and the total length of all lists against `MAX_VALUES`.
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
from chumoku.nn.gguf_blocks import TYPES

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
KINDS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}  # struct formats
LENGTH = struct.Struct("<Q")
MIN_BATCH, MAX_BATCH, MEAN_BYTES = 64, 1 << 16, 32  # strings read at once, and their largest mean size


class TensorInfo(NamedTuple):
    """Shape, type and location of a tensor."""

    shape: tuple[int, ...]  # PyTorch order; the file has the reverse
    type: str
    offset: int  # from the beginning of the file
    bytes: int


class Header(NamedTuple):
    fields: dict[str, Any]
    tensors: dict[str, TensorInfo]


def read_header(data: mmap.mmap, path: Path) -> Header:
    """Read and check a file's fields and tensor list."""
    return _Reader(data, path).read()


class _Reader:
    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data, self.path = data, path
        self.at, self.end = 0, min(len(data), MAX_HEADER)
        self.values = 0

    def read(self) -> Header:
        if self.data[:4] != MAGIC:
            raise UsageError(f"{self.path} is not a GGUF file: it does not start with GGUF.")
        self.at = 4
        version = self._number("I")
        if version in (1, *(number << 24 for number in (1, *VERSIONS))):
            if version > 1:
                raise UsageError(
                    f"{self.path} is a GGUF file for big-endian machines: not supported. Convert it again."
                )
            raise UsageError(f"{self.path} is a GGUF file of version 1, which is not supported. Convert it again.")
        if version not in VERSIONS:
            raise UsageError(f"{self.path} is a GGUF file of version {version}; versions 2 and 3 are supported.")
        tensors, fields = self._number("Q"), self._number("Q")
        self._check_count(tensors, MIN_TENSOR, "tensors", MAX_ENTRIES)
        self._check_count(fields, MIN_FIELD, "fields", MAX_ENTRIES)
        found = self._fields(fields)
        if found.get("split.count", 0) not in (0, 1):
            raise UsageError(
                f"{self.path} is one of {found['split.count']} parts of a model. Merge them first with "
                "`llama-gguf-split --merge`."
            )
        return Header(found, self._locate_tensors(self._tensors(tensors), found.get("general.alignment", 32)))

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
        return self._number(self._struct_format(kind, name))

    def _list(self, name: str) -> list[Any]:
        kind, count = self._number("I"), self._number("Q")
        size = 8 if kind == STRING else struct.calcsize(self._struct_format(kind, name))
        self._check_count(count, size, f"values in {name}")
        self.values += count
        if self.values > MAX_VALUES:
            self._fail(f"its lists have more than {MAX_VALUES:,} values")
        return self._strings(count) if kind == STRING else self._numbers(KINDS[kind], count)

    def _struct_format(self, kind: int, name: str) -> str:
        if kind not in KINDS:
            self._fail(
                f"{name} has a list in a list" if kind == LIST else f"{name} has kind {kind}, which does not exist"
            )
        return KINDS[kind]

    def _tensors(self, count: int) -> dict[str, TensorInfo]:
        found: dict[str, TensorInfo] = {}
        for _ in range(count):
            name = self._name(found)
            rank = self._number("I")
            if not 1 <= rank <= MAX_RANK:
                self._fail(f"the tensor {name} has {rank} dimensions; 1 to {MAX_RANK} are possible")
            sizes = self._numbers("Q", rank)
            number, offset = self._number("I"), self._number("Q")
            if number not in TYPES:
                raise UsageError(
                    f"{self.path}: the tensor {name} has ggml type {number}, which is not supported; "
                    f"{', '.join(kind.name for kind in TYPES.values())} are. Requantize it, for example to Q8_0."
                )
            kind = TYPES[number]
            if 0 in sizes or sizes[0] % kind.block_values:
                self._fail(f"{name} has sizes {sizes}, which are not possible for {kind.name}")
            size = math.prod(sizes) // kind.block_values * kind.block_bytes
            found[name] = TensorInfo(tuple(reversed(sizes)), kind.name, offset, size)
        return found

    def _locate_tensors(self, tensors: dict[str, TensorInfo], alignment: Any) -> dict[str, TensorInfo]:
        """Make offsets relative to the start of the file; refuse tensors that overlap or are outside the file."""
        if alignment not in ALIGNMENTS:
            self._fail(f"general.alignment is {str(alignment)[:60]}, which is not a supported power of two")
        start = -(-self.at // alignment) * alignment
        placed = {name: info._replace(offset=start + info.offset) for name, info in tensors.items()}
        for name, info in placed.items():
            if info.offset % alignment or info.offset + info.bytes > len(self.data):
                self._fail(f"the tensor {name} is outside the file or not aligned (is the file complete?)")
        ordered = sorted(placed.items(), key=lambda entry: entry[1].offset)
        for (name, info), (other, following) in pairwise(ordered):
            if info.offset + info.bytes > following.offset:
                self._fail(f"the tensors {name} and {other} overlap")
        return placed

    def _name(self, taken: dict[str, Any]) -> str:
        if self.at + 8 <= self.end and LENGTH.unpack_from(self.data, self.at)[0] > MAX_NAME:
            self._fail(f"a name is longer than {MAX_NAME:,} bytes")
        name = self._strings(1)[0]
        if name in taken:
            self._fail(f"the name {name[:60]!r} appears twice")
        return name

    def _short_strings(self, count: int) -> list[str] | None:
        """Read many strings at once if all have 1 to 255 bytes and no zero byte; otherwise None.

        Then the only zeros are the seven upper bytes of each length. This makes opening a file several times faster.
        """
        data = np.frombuffer(self.data[self.at : min(self.end, self.at + count * MEAN_BYTES)], np.uint8).copy()
        zeros = np.flatnonzero(data == 0)[: 7 * count]
        if len(zeros) != 7 * count:
            return None
        starts = zeros[::7] - 1
        ends = starts + 8 + data[starts]
        if starts[0] or ends[-1] > len(data) or (starts[1:] != ends[:-1]).any() or (zeros[6::7] - starts != 7).any():
            return None
        data[starts] = 0  # now eight zeros separate the strings
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
            batch = min(count, MAX_BATCH)
            quick = self._short_strings(batch) if batch >= MIN_BATCH else None
            found += self._strings_one_by_one(batch) if quick is None else quick
            count -= batch
        return found

    def _strings_one_by_one(self, count: int) -> list[str]:
        data, at, end = self.data, self.at, self.end
        found: list[str] = []
        length = LENGTH.unpack_from
        try:
            for _ in range(count):
                start = at + 8
                at = start + length(data, at)[0]
                if at > end:
                    self._truncated()
                found.append(data[start:at].decode())
        except struct.error:
            self._truncated()
        except UnicodeDecodeError:
            self._fail(f"the text at byte {start:,} is not UTF-8")
        self.at = at
        return found

    def _numbers(self, letter: str, count: int) -> list[Any]:
        start, self.at = self.at, self.at + count * struct.calcsize(f"<{letter}")
        if self.at > self.end:
            self._truncated()
        found: list[Any] = np.frombuffer(self.data[start : self.at], f"<{letter}").tolist()
        return found

    def _number(self, letter: str) -> Any:
        start, self.at = self.at, self.at + struct.calcsize(f"<{letter}")
        if self.at > self.end:
            self._truncated()
        return struct.unpack_from(f"<{letter}", self.data, start)[0]

    def _check_count(self, count: int, size: int, what: str, limit: int = MAX_HEADER) -> None:
        if count > limit or count * size > self.end - self.at:
            self._fail(f"it claims {count:,} {what}, which do not fit into the file")

    def _truncated(self) -> NoReturn:
        if self.end < len(self.data):
            self._fail(f"its header is longer than {MAX_HEADER:,} bytes")
        self._fail("it ends before its weights begin (is the file complete?)")

    def _fail(self, what: str) -> NoReturn:
        raise DamagedError(f"{self.path} is damaged or malicious: {what}.")
