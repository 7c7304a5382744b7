"""The library of the native engine for browsers: step.cpp and its headers → in_page/wasm/*.wasm (`make wasm`).

    step.wasm           one thread
    step_threads.wasm   several threads with shared memory, for pages that are isolated from other origins
    step.sha256         hashes of the sources and flags, and of both: a test compares them with the files

Both are part of the repository, because users of the package have no compiler for them. The compiler is clang of the
package ziglang, which brings its own C++ library; the same version makes the same bytes.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import chumoku
from chumoku.decoding.engines.native.build import FOLDER as SOURCES
from chumoku.decoding.engines.native.build import SOURCE
from chumoku.errors import ChumokuError, UsageError

COMPILER = "0.17.0"  # of ziglang
FOLDER = Path(chumoku.__file__).parent / "viewer" / "in_page" / "wasm"
LIBRARY, THREADS_LIBRARY = FOLDER / "step.wasm", FOLDER / "step_threads.wasm"
HASHES = FOLDER / "step.sha256"
CPU = "generic+simd128+bulk_memory+nontrapping_fptoint+sign_ext"
FLAGS = (
    *("-target", "wasm32-wasi", "-mexec-model=reactor"),
    *("-O3", "-std=c++20", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"),
    # A trap instead of an exception: JavaScript catches it.
    *("-fignore-exceptions", "-fno-rtti", "-fno-c++-static-destructors", "-U__cpp_exceptions"),
    *("-Wno-builtin-macro-redefined", "-D_LIBCPP_VERBOSE_ABORT(...)=__builtin_trap()"),
    # The only static variable is computed by is_arm_order, which JavaScript calls before any step.
    "-fno-threadsafe-statics",
    *("-Wl,--strip-all", "-Wl,--gc-sections", "-Wl,-z,stack-size=262144"),
)
EXPORTS = ("allocate", "release", "is_arm_order", "pool_open", "recover", "sizes", "step", "product", "__stack_pointer")
THREAD_EXPORTS = ("work_round", "abandon_round", "__wasm_init_tls", "__tls_size")


def export_flags(names: Iterable[str]) -> list[str]:
    return [f"-Wl,--export={name}" for name in names]


LIBRARIES = {
    LIBRARY: [*FLAGS, f"-mcpu={CPU}", *export_flags(EXPORTS)],
    THREADS_LIBRARY: [
        *(*FLAGS, f"-mcpu={CPU}+atomics", *export_flags((*EXPORTS, *THREAD_EXPORTS))),
        *("-Wl,--import-memory", "-Wl,--shared-memory", f"-Wl,--max-memory={65535 * 65536}"),
    ],
}


def hash_sources() -> str:
    """The hash of everything that the libraries are made from: sources, flags and the compiler's version."""
    sources = [path.read_bytes() for path in (SOURCE, *sorted(SOURCES.glob("*.h")))]
    flags = repr((*LIBRARIES.values(), COMPILER))
    return hashlib.sha256(b"\0".join([*sources, flags.encode()])).hexdigest()


def hash_libraries() -> list[str]:
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in LIBRARIES]


def read_hashes() -> list[str]:
    """The hashes of the sources and of the libraries as they were when they were compiled."""
    return HASHES.read_text(encoding="ascii").split()


def run_compiler(arguments: Sequence[str]) -> None:
    """Run ziglang's C++ compiler with these arguments."""
    try:
        found = version("ziglang")
    except PackageNotFoundError:
        found = "missing"
    if found != COMPILER:
        raise UsageError(f"The package ziglang is {found}, and {COMPILER} is needed: pip install ziglang=={COMPILER}")
    command = [sys.executable, "-m", "ziglang", "c++", *arguments]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise ChumokuError(f"ziglang did not compile {SOURCE.name}:\n{done.stderr.decode('utf-8', 'replace')[:2000]}")


def compile_libraries() -> None:
    """Compile both libraries and write their hashes."""
    with tempfile.TemporaryDirectory() as folder:
        compiled = {path: Path(folder) / path.name for path in LIBRARIES}
        for path, flags in LIBRARIES.items():
            run_compiler([*flags, str(SOURCE), "-o", str(compiled[path])])
        for path, made in compiled.items():
            path.write_bytes(made.read_bytes())
            print(f"{path}: {path.stat().st_size:,} bytes")
    HASHES.write_text("\n".join([hash_sources(), *hash_libraries(), ""]), encoding="ascii")


def main() -> None:
    """Compile the libraries; an error ends the process with its exit code."""
    try:
        compile_libraries()
    except ChumokuError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
