"""Kernels in CUDA C++ that are compiled when they are first needed: NVRTC and the driver, called through ctypes.

PyTorch comes with NVRTC, so no compiler has to be installed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import torch

INSTRUCTIONS = Path(__file__).with_name("instructions.cu")  # the first source of all kernels
DYNAMIC_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class Kernel:
    """A function of source files, compiled together for this GPU with the given constants."""

    def __init__(self, sources: Sequence[Path], name: str, constants: Mapping[str, int], *, shared_bytes: int) -> None:
        torch.cuda.synchronize()  # the driver's functions need a context, which a new thread does not have
        major, minor = torch.cuda.get_device_capability()
        defined = tuple(f"-D{key}={value}" for key, value in constants.items())
        self._driver, self._shared_bytes = ctypes.CDLL("libcuda.so.1"), shared_bytes
        self._context, self._module, self._function = (ctypes.c_void_p() for _ in range(3))
        program = compile_sources(tuple(sources), (f"--gpu-architecture=sm_{major}{minor}", "-std=c++17", *defined))
        self._call("cuCtxGetCurrent", ctypes.byref(self._context))
        self._call("cuModuleLoadData", ctypes.byref(self._module), program)
        self._call("cuModuleGetFunction", ctypes.byref(self._function), self._module, name.encode())
        self._call("cuFuncSetAttribute", self._function, DYNAMIC_SHARED_BYTES, shared_bytes)

    def launch(self, blocks: int, threads: int, argument: ctypes.Structure, *, together: bool) -> None:
        """Run all blocks on the current stream; `together`: at the same time, so that they can wait for each other."""
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        sizes = (blocks, 1, 1, threads, 1, 1, self._shared_bytes)
        self._call("cuCtxSetCurrent", self._context)
        if together:
            self._call("cuLaunchCooperativeKernel", self._function, *sizes, stream, pointers)
        else:
            self._call("cuLaunchKernel", self._function, *sizes, stream, pointers, None)

    def _call(self, name: str, *arguments: object) -> None:
        if code := getattr(self._driver, name)(*arguments):
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(code, ctypes.byref(text))
            raise RuntimeError(f"{name}: {(text.value or b'unknown error').decode()}")


@cache
def can_compile() -> bool:
    if torch.version.hip is not None:
        return False
    try:
        load_compiler()
    except OSError:
        return False
    return True


def load_compiler() -> ctypes.CDLL:
    return ctypes.CDLL(f"libnvrtc.so.{str(torch.version.cuda).split('.')[0]}")


@cache
def compile_sources(sources: tuple[Path, ...], options: tuple[str, ...]) -> bytes:
    """The machine code of source files, as if they were one."""
    compiler, program = load_compiler(), ctypes.c_void_p()
    text, title = b"".join(source.read_bytes() for source in sources), sources[-1].name

    def call(name: str, *arguments: object) -> int:
        return int(getattr(compiler, name)(*arguments))

    def read(name: str) -> bytes:
        size = ctypes.c_size_t()
        call(f"nvrtcGet{name}Size", program, ctypes.byref(size))
        content = ctypes.create_string_buffer(size.value)
        call(f"nvrtcGet{name}", program, content)
        return content.raw

    if call("nvrtcCreateProgram", ctypes.byref(program), text, title.encode(), 0, None, None):
        raise RuntimeError("NVRTC could not create a program.")
    try:
        given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if call("nvrtcCompileProgram", program, len(options), given):
            raise RuntimeError(f"{title} was not compiled:\n{read('ProgramLog').decode(errors='replace')}")
        return read("CUBIN")
    finally:
        call("nvrtcDestroyProgram", ctypes.byref(program))
