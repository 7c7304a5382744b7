"""The library: step.cpp and its headers, from the wheel, or compiled once and stored in the user's cache folder.

    NAME.so       NAME = sha256(source, flags, compiler, processor)[:16]
    NAME.sha256   hash of NAME.so: a library of another user, or one that was changed, is not loaded

Wheels for Linux contain a library for each kind of processor (variants.py). An installation from source has none of
them, and compiles; without a compiler there is no library, and decoding is slower (`why_not` says why).

    CHUMOKU_NATIVE=0          no library
    CHUMOKU_NATIVE=native     compile for exactly this processor, even if the wheel has a library for it
    CHUMOKU_NATIVE=avx2       the library of this variant, from the wheel, or compiled
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

from chumoku.decoding.engines.native import variants
from chumoku.messages import translate

FOLDER = Path(__file__).parent
SOURCE = FOLDER / "step.cpp"
# No contraction or reassociation, so that the results of a row never depend on other rows.
FLAGS = (
    *("-O3", "-std=c++20", "-shared", "-fPIC", "-pthread"),
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"),
)
SECONDS = 300
CHECKSUM = ".sha256"


class Missing(Exception):
    """The library is not available; the message says why."""


def library() -> ctypes.CDLL | None:
    """The library, compiled if necessary; None if it is not available."""
    found = _open()
    return None if isinstance(found, str) else found


def why_not() -> str | None:
    """A sentence that says why there is no library; None if there is one."""
    found = _open()
    return found if isinstance(found, str) else None


@functools.cache
def _open() -> ctypes.CDLL | str:
    """The library, or a sentence that says why it is missing."""
    try:
        return ctypes.CDLL(str(_find()))
    except Missing as error:
        return f"{error} Decoding on a CPU works without it, but slower."
    except OSError as error:
        return (
            f"The native library could not be stored or loaded: {error}. Set XDG_CACHE_HOME to a folder in which this "
            "user can write and execute files. Decoding on a CPU works without it, but slower."
        )


def _find() -> Path:
    """The file of the library that CHUMOKU_NATIVE asks for; by default the best in the wheel, else a compiled one."""
    chosen = os.environ.get("CHUMOKU_NATIVE", "")
    if chosen == "0":
        raise Missing("CHUMOKU_NATIVE=0 disables the native library.")
    suitable, flags = [], _for_this_processor()
    if chosen in ("", "1"):
        suitable = variants.find_suitable()
    elif chosen != "native":
        suitable = [variants.find_named(chosen)]
        flags = suitable[0].flags
    shipped = next((variant.shipped for variant in suitable if variant.shipped.is_file()), None)
    return _build(flags) if shipped is None else shipped


def _build(flags: tuple[str, ...]) -> Path:
    """The library compiled with these flags for a processor; it is compiled only once."""
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))), None)
    if compiler is None:
        raise Missing("The native library needs a C++ compiler (c++, g++ or clang++), and none was found.")
    version = _run([compiler, "--version"]).stdout
    sources = [path.read_bytes() for path in (SOURCE, *sorted(FOLDER.glob("*.h")))]
    key = hashlib.sha256(b"\0".join([*sources, repr((*FLAGS, *flags)).encode(), version, _processor()]))
    target = _folder() / f"{key.hexdigest()[:16]}.so"
    if not _intact(target):
        note = "Compiling the native library for this processor (once, 10 to 30 seconds) …"
        print(translate(note), file=sys.stderr, flush=True)
        _compile([compiler, *FLAGS, *flags], target)
    return target


def _intact(target: Path) -> bool:
    """Whether this file belongs to this user, is not writable by others, and has the content that was compiled."""
    try:
        found = target.lstat()
        if not stat.S_ISREG(found.st_mode) or _others_may_write(found):
            return False
        return (
            target.with_suffix(CHECKSUM).read_text(encoding="ascii") == hashlib.sha256(target.read_bytes()).hexdigest()
        )
    except (OSError, ValueError):
        return False


def _others_may_write(found: os.stat_result) -> bool:
    if sys.platform == "win32":
        return False
    return found.st_uid != os.getuid() or bool(found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _compile(command: list[str], target: Path) -> None:
    """Compile into a temporary file and rename it, because other processes may compile too."""
    handle, temporary = tempfile.mkstemp(suffix=".so", dir=target.parent)
    os.close(handle)
    try:
        done = _run([*command, str(SOURCE), "-o", temporary])
        if done.returncode:
            lines = done.stderr.decode("utf-8", "replace").strip().splitlines()[:1]
            raise Missing(f"{command[0]} did not compile the native library: {''.join(lines)[:200]}")
        content = Path(temporary).read_bytes()
        os.replace(temporary, target)
        Path(temporary).write_text(hashlib.sha256(content).hexdigest(), encoding="ascii")
        os.replace(temporary, target.with_suffix(CHECKSUM))
    finally:
        Path(temporary).unlink(missing_ok=True)


def _run(command: list[str]) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise Missing(f"{command[0]} took more than {SECONDS} seconds to compile the native library.") from error


def _folder() -> Path:
    """The cache folder. Only this user may write there, because the library in it is executed."""
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError as error:  # the user has no entry in the system
        raise Missing("There is no home folder for the native library. Set XDG_CACHE_HOME to a folder.") from error
    folder = Path(cache) / "chumoku"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if _others_may_write(folder.stat()):
        raise Missing(f"{folder} is writable by other users, so the native library is not stored there.")
    return folder


def _for_this_processor() -> tuple[str, ...]:
    return ("-mcpu=native",) if variants.read_machine() == "aarch64" else ("-march=native",)


def _processor() -> bytes:
    """The properties of this processor that the compiler uses."""
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        return platform.processor().encode()
    return b"".join(sorted({line for line in lines if line.startswith((b"flags", b"Features", b"model name"))}))
