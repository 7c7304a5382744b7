"""CUDA kernels on the CPU, slowly, in place of a GPU."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).parent
COMPILER = shutil.which("c++")


class EmulatedKernel:
    """Stands for `nn.cuda.Kernel`: the kernel is compiled for the CPU in `folder`, and emulated."""

    folder: Path

    def __init__(self, sources: Sequence[Path], name: str, constants: Mapping[str, int], *, shared_bytes: int) -> None:
        files = [HERE / "cuda_emulator.h", *sources[1:], HERE / "cuda_emulator_run.h"]
        source, library = self.folder / f"{name}.cpp", self.folder / f"{name}.so"
        source.write_text("".join(f'#include "{file}"\n' for file in files))
        defined = [f"-D{key}={value}" for key, value in {**constants, "KERNEL": name}.items()]
        options = ("-std=c++17", "-O1", "-w", "-shared", "-fPIC", *defined)
        subprocess.run([str(COMPILER), *options, "-o", library, source], check=True)
        self._run = ctypes.CDLL(str(library)).emulate

    def launch(self, blocks: int, threads: int, argument: ctypes.Structure, *, together: bool) -> None:
        self._run(ctypes.byref(argument), ctypes.c_bool(together))
