"""Characters and bytes: GPT-2's characters for the 256 bytes, surrogate repair, and readable pieces."""

from __future__ import annotations

import functools

from tokenizers import pre_tokenizers

from chumoku.errors import UsageError


@functools.cache
def unicode_to_bytes() -> dict[str, int]:
    """GPT-2's table character → byte: printable bytes are their own character, the others start at U+0100."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    chars = {chr(byte): byte for byte in printable}
    chars |= {chr(256 + index): byte for index, byte in enumerate(others)}
    if set(chars) != set(pre_tokenizers.ByteLevel.alphabet()):
        raise UsageError("This version of the tokenizers library does not use GPT-2's characters for bytes.")
    return chars


def show_piece(piece: bytes) -> str:
    """A piece as readable text; an incomplete character is shown as its bytes."""
    try:
        return piece.decode("utf-8").replace(" ", "␣").replace("\n", "⏎")
    except UnicodeDecodeError:
        return "".join(f"‹{byte:02x}›" for byte in piece)


def fix_surrogates(text: str) -> str:
    """Replace each unpaired surrogate by � and each surrogate pair by its character."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
