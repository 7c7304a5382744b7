"""Which instructions the library may be compiled with, and which of these variants a processor can run.

    wheel           libraries/NAME.so for every variant of its machine
    at run time     the first variant in the table whose `features` are all in /proc/cpuinfo

What differs between variants is what the C++ asks for: fused multiply-add, registers of 64 bytes, products of bytes
(dotprod, VNNI), GFNI, and AMX tiles. A processor never gets a variant with an instruction that it lacks.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import NamedTuple

from chumoku.errors import UsageError

FOLDER = Path(__file__).parent / "libraries"
CPUINFO = Path("/proc/cpuinfo")


class Variant(NamedTuple):
    """The library for all processors with certain instructions."""

    name: str
    flags: tuple[str, ...]  # of g++ and clang++
    zig: str  # the same as -mcpu of ziglang, which compiles the libraries of wheels; may name a processor to tune for
    features: frozenset[str]  # the same as in /proc/cpuinfo

    @property
    def shipped(self) -> Path:
        """The library in the wheel. It does not exist if the package was installed from source."""
        return FOLDER / f"{self.name}.so"


V2 = frozenset({"pni", "ssse3", "sse4_1", "sse4_2", "popcnt", "cx16", "lahf_lm"})
V3 = V2 | {"avx", "avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe", "xsave"}
V4 = V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
VNNI = V4 | {"avx512_vnni"}
GFNI = VNNI | {"gfni"}
AMX = GFNI | {"amx_tile", "amx_bf16", "avx512_bf16"}
DOTPROD = frozenset({"asimddp", "asimdrdm", "atomics", "crc32"})

_V4, _TILES = "-march=x86-64-v4", ("-mamx-tile", "-mamx-bf16", "-mavx512bf16")
_ZIG_TILES = "amx_tile+amx_bf16+avx512bf16"
# The best first.
VARIANTS = {
    "x86_64": (
        Variant("amx", (_V4, "-mavx512vnni", "-mgfni", *_TILES), f"x86_64_v4+avx512vnni+gfni+{_ZIG_TILES}", AMX),
        Variant("avx512-gfni", (_V4, "-mavx512vnni", "-mgfni"), "x86_64_v4+avx512vnni+gfni", GFNI),
        Variant("avx512-vnni", (_V4, "-mavx512vnni"), "x86_64_v4+avx512vnni", VNNI),
        Variant("avx512", (_V4,), "x86_64_v4", V4),
        Variant("avx2", ("-march=x86-64-v3",), "x86_64_v3", V3),
        Variant("x86-64-v2", ("-march=x86-64-v2",), "x86_64_v2", V2),
    ),
    "aarch64": (
        Variant("dotprod", ("-march=armv8.2-a+dotprod",), "neoverse_n1-aes-sha2-fullfp16-rcpc", DOTPROD),
        Variant("armv8", ("-march=armv8-a",), "generic", frozenset()),
    ),
}


def read_machine() -> str:
    """The kind of processor: "x86_64", "aarch64", or another name, which has no variants."""
    name = platform.machine()
    return {"AMD64": "x86_64", "arm64": "aarch64"}.get(name, name)


def read_features() -> frozenset[str]:
    """The instructions of this processor, by Linux's names. Empty on other systems."""
    try:
        with CPUINFO.open(encoding="ascii", errors="replace") as lines:
            found = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        return frozenset()
    return frozenset(found.partition(":")[2].split())


def find_suitable() -> list[Variant]:
    """The variants that this processor can run, the best first."""
    features = read_features()
    return [variant for variant in VARIANTS.get(read_machine(), ()) if variant.features <= features]


def find_named(name: str) -> Variant:
    """Return the variant with this name; refuse an unknown name, and instructions that this processor lacks."""
    known = {variant.name: variant for variant in VARIANTS.get(read_machine(), ())}
    if name not in known:
        names = ", ".join(("0", "native", *known))
        raise UsageError(f"CHUMOKU_NATIVE={name} is unknown. For this machine it can be {names}.")
    if missing := sorted(known[name].features - read_features()):
        raise UsageError(f"CHUMOKU_NATIVE={name} needs {', '.join(missing)}, which {CPUINFO} does not list.")
    return known[name]
