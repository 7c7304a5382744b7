"""The library of the native engine for browsers: step.cpp and its headers → in_page/wasm/step.wasm (`make wasm`).

    step.wasm     is part of the repository, because users of the package have no compiler for it
    step.sha256   hashes of the sources and flags, and of step.wasm: a test compares them with the files

The compiler is clang of the package ziglang, which brings its own C++ library; the same version makes the same bytes.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import chumoku
from chumoku.decoding.engines.native.build import FOLDER as SOURCES
from chumoku.decoding.engines.native.build import SOURCE
from chumoku.errors import ChumokuError, UsageError

COMPILER = "0.17.0"  # of ziglang
FOLDER = Path(chumoku.__file__).parent / "viewer" / "in_page" / "wasm"
LIBRARY = FOLDER / "step.wasm"
HASHES = FOLDER / "step.sha256"
FUNCTIONS = ("allocate", "release", "is_arm_order", "pool_open", "sizes", "step", "product")
FLAGS = (
    *(
        "-target",
        "wasm32-wasi",
        "-mexec-model=reactor",
        "-mcpu=generic+simd128+bulk_memory+nontrapping_fptoint+sign_ext",
    ),
    *("-O3", "-std=c++20", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"),
    # A trap instead of an exception: JavaScript catches it.
    *("-fignore-exceptions", "-fno-rtti", "-fno-c++-static-destructors", "-U__cpp_exceptions"),
    *("-Wno-builtin-macro-redefined", "-D_LIBCPP_VERBOSE_ABORT(...)=__builtin_trap()"),
    *("-Wl,--strip-all", "-Wl,--gc-sections", "-Wl,-z,stack-size=262144"),
    *(f"-Wl,--export={name}" for name in FUNCTIONS),
)


def hash_sources() -> str:
    """The hash of everything that step.wasm is made from: sources, flags and the compiler's version."""
    sources = [path.read_bytes() for path in (SOURCE, *sorted(SOURCES.glob("*.h")))]
    return hashlib.sha256(b"\0".join([*sources, repr((*FLAGS, COMPILER)).encode()])).hexdigest()


def read_hashes() -> list[str]:
    """The hashes of the sources and of step.wasm as they were when it was compiled."""
    return HASHES.read_text(encoding="ascii").split()


def compile_library(target: Path) -> None:
    """Compile step.cpp for browsers into this file."""
    try:
        found = version("ziglang")
    except PackageNotFoundError:
        found = "missing"
    if found != COMPILER:
        raise UsageError(f"The package ziglang is {found}, and {COMPILER} is needed: pip install ziglang=={COMPILER}")
    command = [sys.executable, "-m", "ziglang", "c++", *FLAGS, str(SOURCE), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise ChumokuError(f"ziglang did not compile {SOURCE.name}:\n{done.stderr.decode('utf-8', 'replace')[:2000]}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        compiled = Path(folder) / LIBRARY.name
        compile_library(compiled)
        content = compiled.read_bytes()
    LIBRARY.write_bytes(content)
    HASHES.write_text(f"{hash_sources()}\n{hashlib.sha256(content).hexdigest()}\n", encoding="ascii")
    print(f"{LIBRARY}: {len(content):,} bytes")


if __name__ == "__main__":
    try:
        main()
    except ChumokuError as error:
        sys.exit(str(error))
