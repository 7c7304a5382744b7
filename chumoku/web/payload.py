"""The numbers of a page as text: deflated, in base85, in chunks; in_page/payload.js reads them.

    four bytes, as a number n  →  five digits of n in base 85

The digits are those of Python's base64.b85encode without < and &, so that no chunk can end its script element.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

DIGITS = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%,()*+-;.=>?@^_`{|}~"
CHUNK = 1_000_000  # bytes; a multiple of 4
LEVEL = 9  # of compression


class Payload(NamedTuple):
    """parts: name, bytes stored, bytes inflated and SHA-256 of the stored bytes; chunks: their text, in order."""

    parts: list[dict[str, Any]]
    chunks: list[str]


def encode_payload(files: Mapping[str, bytes]) -> Payload:
    """Files by name → the payload of a page."""
    parts, stored = [], []
    for name, content in files.items():
        deflated = zlib.compress(content, LEVEL)
        padded = deflated + bytes(-len(deflated) % 4)
        digest = hashlib.sha256(padded).hexdigest()
        parts.append({"name": name, "stored": len(deflated), "size": len(content), "sha256": digest})
        stored.append(padded)
    joined = b"".join(stored)
    return Payload(parts, [encode_base85(joined[at : at + CHUNK]) for at in range(0, len(joined), CHUNK)])


def encode_base85(content: bytes) -> str:
    """Bytes, a multiple of four of them, as text."""
    numbers = np.frombuffer(content, dtype=">u4").astype(np.uint64)
    powers = np.array([85**place for place in (4, 3, 2, 1, 0)], dtype=np.uint64)
    places = numbers[:, None] // powers % np.uint64(85)
    return str(np.frombuffer(DIGITS, dtype=np.uint8)[places].tobytes(), "ascii")
