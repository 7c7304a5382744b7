"""Build wheels with the compiled native engine inside, for Linux on x86-64 and ARM.

    pip install ziglang==0.17.0
    python scripts/build_wheels.py [x86_64] [aarch64] [--out dist]

Writes chumoku-VERSION-py3-none-manylinux_2_28_MACHINE.whl; without arguments for this machine. ziglang is clang with
its own C++ library, which it links statically, and with the symbols of old versions of glibc. So any machine can build
for any other, and a library needs only a glibc that is not older than 2.28, which is checked here. The wheel is built
from a copy of the source, so no library stays in the working tree.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from chumoku.decoding.engines.native import variants
from chumoku.decoding.engines.native.build import FLAGS, SOURCE
from chumoku.errors import ChumokuError, UsageError
from chumoku.web.build_wasm import run_compiler

ROOT = Path(__file__).parent.parent
GLIBC = (2, 28)
OBJECT_FLAGS = tuple(flag for flag in FLAGS if flag != "-shared")


def build_wheel(machine: str, out: Path) -> None:
    """Compile the variants of a machine, and write the wheel that contains them."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "source"
        shutil.copytree(ROOT / "chumoku", copy / "chumoku", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, copy)
        libraries = copy / "chumoku" / variants.FOLDER.relative_to(ROOT / "chumoku")
        libraries.mkdir()
        for variant in variants.VARIANTS[machine]:
            print(f"{machine}: compiling {variant.name} …", flush=True)
            compile_variant(machine, variant, libraries / variant.shipped.name)
        platform = f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{machine}"
        command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "--wheel-dir", folder, str(copy)]
        command.append(f"--config-settings=--build-option=--plat-name={platform}")
        if subprocess.run(command, check=False).returncode:
            raise ChumokuError(f"pip did not build the wheel for {machine}.")
        (made,) = Path(folder).glob("*.whl")
        packed = {Path(name).stem for name in zipfile.ZipFile(made).namelist() if name.endswith(".so")}
        if packed != {variant.name for variant in variants.VARIANTS[machine]}:
            raise ChumokuError(f"{made.name} lacks a library. Does package-data in pyproject.toml name them?")
        out.mkdir(parents=True, exist_ok=True)
        shutil.copy(made, out)
        print(f"{out / made.name}: {made.stat().st_size:,} bytes")


def compile_variant(machine: str, variant: variants.Variant, target: Path) -> None:
    """Compile with the variant's instructions, and link with a C++ library for all processors, which is built once."""
    system = ("-target", f"{machine}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}")
    compiled = target.with_suffix(".o")
    run_compiler([*OBJECT_FLAGS, *system, f"-mcpu={variant.zig}", "-c", "-g0", "-w", str(SOURCE), "-o", str(compiled)])
    run_compiler(["-shared", "-O3", *system, "-mcpu=baseline", "-s", str(compiled), "-o", str(target)])
    compiled.unlink()
    check_library(target)


def check_library(path: Path) -> None:
    """Raise ChumokuError if a library needs a newer glibc than the wheel's name promises, or a C++ library."""
    content = path.read_bytes()
    newest = max((int(major), int(minor)) for major, minor in re.findall(rb"GLIBC_(\d+)\.(\d+)", content))
    if newest > GLIBC or re.search(rb"lib(std)?c\+\+(abi)?\.so", content):
        raise ChumokuError(
            f"{path.name} needs glibc {newest[0]}.{newest[1]} or a C++ library, so the wheel cannot contain it."
        )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("machines", nargs="*", help=" or ".join(variants.VARIANTS))
    options.add_argument("--out", type=Path, default=Path("dist"))
    chosen = options.parse_args()
    machines = chosen.machines or [variants.read_machine()]
    for machine in machines:
        if machine not in variants.VARIANTS:
            raise UsageError(f"There is no native library for {machine}. Known: {', '.join(variants.VARIANTS)}.")
    for machine in machines:
        build_wheel(machine, chosen.out)


if __name__ == "__main__":
    try:
        main()
    except ChumokuError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
