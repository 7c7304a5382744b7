"""The library: step.cpp and its headers, compiled once for this processor and kept in the user's cache.

    NAME.so       NAME = sha256(source, flags, compiler, processor)[:16]
    NAME.sha256   of its content: a library that is not this user's own file, or not as it was compiled, is not loaded

Without a compiler there is no library and nothing is lost but speed; `why_not` says why. CHUMOKU_NATIVE=0 does without.
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

FOLDER = Path(__file__).parent
SOURCE = FOLDER / "step.cpp"
# Arithmetic is done as it is written, so that a row's numbers never depend on the rows beside it.
FLAGS = (
    *("-O3", "-std=c++20", "-shared", "-fPIC", "-pthread"),
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"),
)
SECONDS = 300
SUM = ".sha256"


class Missing(Exception):
    """Why there is no library."""


@functools.cache
def library() -> ctypes.CDLL | None:
    """The library, compiled if need be; None where that cannot be."""
    try:
        return ctypes.CDLL(str(_built()))
    except (Missing, OSError):
        return None


def why_not() -> str | None:
    """A sentence on why there is no library; None where there is one."""
    if library() is not None:
        return None
    try:
        ctypes.CDLL(str(_built()))
    except (Missing, OSError) as error:
        return f"{error} Decoding on the processor runs without it, slower."
    return None


def _built() -> Path:
    if os.environ.get("CHUMOKU_NATIVE") == "0":
        raise Missing("CHUMOKU_NATIVE=0 switches the native library off.")
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))), None)
    if compiler is None:
        raise Missing("There is no C++ compiler here (c++, g++ or clang++) to make the native library with.")
    native = _for_this_processor()
    version = _run([compiler, "--version"]).stdout
    sources = [path.read_bytes() for path in (SOURCE, *sorted(FOLDER.glob("*.h")))]
    key = hashlib.sha256(b"\0".join([*sources, repr((*FLAGS, native)).encode(), version, _processor()]))
    target = _folder() / f"{key.hexdigest()[:16]}.so"
    if not _intact(target):
        _compile([compiler, *FLAGS, native], target)
    return target


def _intact(target: Path) -> bool:
    """Whether this is a file of this user that nobody else can write, with the content that was compiled."""
    try:
        found = target.lstat()
        if not stat.S_ISREG(found.st_mode) or _others_may_write(found):
            return False
        return target.with_suffix(SUM).read_text(encoding="ascii") == hashlib.sha256(target.read_bytes()).hexdigest()
    except (OSError, ValueError):
        return False


def _others_may_write(found: os.stat_result) -> bool:
    if sys.platform == "win32":
        return False
    return found.st_uid != os.getuid() or bool(found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _compile(command: list[str], target: Path) -> None:
    """Into a file of its own, which then takes its name at once: others may be compiling too."""
    handle, made = tempfile.mkstemp(suffix=".so", dir=target.parent)
    os.close(handle)
    try:
        done = _run([*command, str(SOURCE), "-o", made])
        if done.returncode:
            said = done.stderr.decode("utf-8", "replace").strip().splitlines()[:1]
            raise Missing(f"{command[0]} did not compile the native library: {''.join(said)[:200]}")
        content = Path(made).read_bytes()
        os.replace(made, target)
        Path(made).write_text(hashlib.sha256(content).hexdigest(), encoding="ascii")
        os.replace(made, target.with_suffix(SUM))
    finally:
        Path(made).unlink(missing_ok=True)


def _run(command: list[str]) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise Missing(f"{command[0]} took more than {SECONDS} seconds over the native library.") from error


def _folder() -> Path:
    """A folder that nobody else can write into: what lies there is run."""
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError as error:  # a user whom the system does not know
        raise Missing("There is no home folder to keep the native library in; XDG_CACHE_HOME can name one.") from error
    folder = Path(cache) / "chumoku"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if _others_may_write(folder.stat()):
        raise Missing(f"{folder} can be written by others, so no native library is kept or run there.")
    return folder


def _for_this_processor() -> str:
    return "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"


def _processor() -> bytes:
    """What the compiler will look at when it is told to compile for this processor."""
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        return platform.processor().encode()
    return b"".join(sorted({line for line in lines if line.startswith((b"flags", b"Features", b"model name"))}))
