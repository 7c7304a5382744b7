"""Characters and bytes: GPT-2's letters for the 256 bytes, whole characters, and bytes as people read them."""

from __future__ import annotations

import functools

from tokenizers import pre_tokenizers

from chumoku.errors import UsageError


@functools.cache
def unicode_to_bytes() -> dict[str, int]:
    """GPT-2's letters for the 256 bytes: printable ones stand for themselves, the others follow from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    chars = {chr(byte): byte for byte in printable}
    chars |= {chr(256 + index): byte for index, byte in enumerate(others)}
    if set(chars) != set(pre_tokenizers.ByteLevel.alphabet()):
        raise UsageError("This version of the tokenizers library writes bytes in other letters than GPT-2's.")
    return chars


def show_piece(piece: bytes) -> str:
    """A piece for people; one that is part of a character shows its bytes."""
    try:
        return piece.decode("utf-8").replace(" ", "␣").replace("\n", "⏎")
    except UnicodeDecodeError:
        return "".join(f"‹{byte:02x}›" for byte in piece)


def fix_surrogates(text: str) -> str:
    """Half of a surrogate pair is no character: it becomes �, and two halves that belong together become one."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
