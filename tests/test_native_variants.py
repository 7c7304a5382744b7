"""Which of the native libraries in a wheel a processor gets, without compiling any of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from chumoku.decoding.engines.native import build, variants
from chumoku.errors import ChumokuError, UsageError

COMPILED = build.library()
V2 = "fpu sse sse2 ht pni ssse3 cx16 sse4_1 sse4_2 popcnt lahf_lm"
HASWELL = f"{V2} avx avx2 fma f16c bmi1 bmi2 abm movbe xsave erms"
SKYLAKE = f"{HASWELL} avx512f avx512bw avx512cd avx512dq avx512vl"
ZEN_4 = f"{SKYLAKE} avx512_vnni gfni avx512_bf16"
PROCESSORS = [
    ("x86_64", "fpu sse sse2 pni", None),
    ("x86_64", V2, "x86-64-v2"),
    ("x86_64", HASWELL, "avx2"),
    ("x86_64", HASWELL.replace(" fma", ""), "x86-64-v2"),  # as some virtual machines report
    ("AMD64", f"{HASWELL} avx_vnni gfni", "avx2"),  # Alder Lake
    ("x86_64", f"{HASWELL} avx512f avx512cd avx512er", "avx2"),  # Knights Landing
    ("x86_64", SKYLAKE, "avx512"),
    ("x86_64", f"{SKYLAKE} avx512_vnni", "avx512-vnni"),
    ("x86_64", ZEN_4, "avx512-gfni"),
    ("x86_64", f"{ZEN_4} amx_tile", "avx512-gfni"),
    ("x86_64", f"{ZEN_4} amx_bf16 amx_tile", "amx"),
    ("aarch64", "fp asimd evtstrm aes crc32", "armv8"),
    ("aarch64", "fp asimd asimddp", "armv8"),
    ("arm64", "fp asimd evtstrm crc32 atomics asimdrdm asimddp", "dotprod"),
    ("riscv64", "", None),
]


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Be a processor with these flags, on which a wheel with empty libraries is installed."""
    monkeypatch.delenv("CHUMOKU_NATIVE", raising=False)
    monkeypatch.setattr(variants, "FOLDER", tmp_path / "libraries")
    monkeypatch.setattr(variants, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(build, "_build", lambda flags: Path("compiled", *flags))

    def be(machine: str, flags: str, *, wheel: bool = True) -> None:
        monkeypatch.setattr("platform.machine", lambda: machine)
        name = "flags" if "86" in machine else "Features"
        cores = [f"processor\t: {core}\nmodel name\t: avx2 amx_tile\n{name}\t\t: {flags}\n\n" for core in range(3)]
        (tmp_path / "cpuinfo").write_text("".join(cores))
        (tmp_path / "libraries").mkdir(exist_ok=True)
        for variant in variants.VARIANTS.get(variants.read_machine(), ()) if wheel else ():
            variant.shipped.touch()

    return be


@pytest.mark.parametrize(("machine", "flags", "expected"), PROCESSORS)
def test_a_processor_gets_the_best_variant_that_it_can_run(
    pretend, machine: str, flags: str, expected: str | None
) -> None:
    pretend(machine, flags)
    native = "-mcpu=native" if "ar" in machine else "-march=native"
    found = build._find()
    assert found == (Path("compiled", native) if expected is None else variants.FOLDER / f"{expected}.so")


def test_without_a_wheel_it_is_compiled_for_this_processor(pretend, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend("x86_64", ZEN_4, wheel=False)
    assert build._find() == Path("compiled/-march=native")
    monkeypatch.setenv("CHUMOKU_NATIVE", "avx2")
    assert build._find() == Path("compiled/-march=x86-64-v3")
    variants.CPUINFO.unlink()  # another system than Linux
    monkeypatch.setenv("CHUMOKU_NATIVE", "1")
    assert build._find() == Path("compiled/-march=native")


def test_the_environment_chooses_a_variant(pretend, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend("x86_64", HASWELL)
    for value, expected in {
        "x86-64-v2": variants.FOLDER / "x86-64-v2.so",
        "native": Path("compiled/-march=native"),
        "": variants.FOLDER / "avx2.so",
    }.items():
        monkeypatch.setenv("CHUMOKU_NATIVE", value)
        assert build._find() == expected
    for value, sentence in {
        "amx": "needs amx_bf16, amx_tile, avx512_bf16, avx512_vnni, .*, which .*cpuinfo does not list",
        "dotprod": "CHUMOKU_NATIVE=dotprod is unknown. .* 0, native, amx, avx512-gfni, .*, avx2, x86-64-v2.",
    }.items():
        monkeypatch.setenv("CHUMOKU_NATIVE", value)
        with pytest.raises(UsageError, match=sentence):
            build._open.__wrapped__()


@pytest.mark.skipif(COMPILED is None, reason=build.why_not() or "")
def test_a_shipped_library_is_loaded_without_a_compiler(
    pretend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And one that is damaged is reported."""
    pretend("aarch64", "")
    (shipped,) = [variant.shipped for variant in variants.find_suitable()]
    monkeypatch.setattr(build, "_open", build._open.__wrapped__)
    assert build.library() is None
    assert "armv8.so" in str(build.why_not())
    shipped.write_bytes(Path(COMPILED._name).read_bytes())
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert build.library().lanes() == COMPILED.lanes()
    assert not (tmp_path / "cache").exists()


def test_a_wheel_contains_no_library_that_needs_more_than_its_name_promises(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent.parent / "scripts")
    from build_wheels import check_library

    library = tmp_path / "amx.so"
    library.write_bytes(b"\x7fELF\0GLIBC_2.28\0GLIBC_2.2.5\0libc.so.6\0libc++abi: terminating\0")
    check_library(library)
    for more in (b"GLIBC_2.34\0", b"libstdc++.so.6\0", b"libc++.so.1\0"):
        library.write_bytes(b"\x7fELF\0GLIBC_2.28\0" + more)
        with pytest.raises(ChumokuError, match=r"amx\.so needs glibc 2\.(28|34) or a C\+\+ library"):
            check_library(library)
