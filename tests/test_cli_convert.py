"""chumoku convert: the output is complete and certified, or absent."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from bundles import byte_tokenizer, chat_tokenizer, make_bundle
from commands import Ask, show_help

import chumoku
from chumoku.errors import DamagedError
from chumoku.partial_output import incomplete_folder
from chumoku.web import chromium, export
from chumoku.weights import convert as converting
from chumoku.weights.convert import KINDS, WRITERS, certificate_path, convert

GPT2 = {"position": "learned", "feedforward": "gelu_tanh", "width": 64, "heads": 2}
LLAMA = {"pairing": "half", "feedforward": "swiglu", "norm": "rms", "bias": False, "width": 64, "heads": 2}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    make_bundle(folder / "translator", "encoder-decoder", byte_tokenizer(("en", "ja")), tie_output=False)
    make_bundle(folder / "gpt2", "decoder", chat_tokenizer(), vocabulary=chat_tokenizer().size, **GPT2)
    make_bundle(folder / "llama", "decoder", chat_tokenizer(), vocabulary=chat_tokenizer().size, **LLAMA)
    make_bundle(folder / "experts", "decoder", experts=3)
    make_bundle(folder / "encoder", "encoder")
    return folder


@pytest.fixture
def ask(ask: Ask, models: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Run a command in this process, in the models' folder."""
    monkeypatch.chdir(models)
    return ask


def list_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def convert_and_kill(out: Path, models: Path, to: str, after: str) -> None:
    """Convert in a new process that is killed after `after` was called in weights.convert."""
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from chumoku.weights import convert\n"
        "plain, calls = getattr(convert, sys.argv[4]), []\n"
        "def last(*given, **words):\n"
        "    plain(*given, **words)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "setattr(convert, sys.argv[4], last)\n"
        "if sys.argv[4] == 'certificate_path':\n"
        "    replace = Path.replace\n"
        "    Path.replace = lambda self, other: (replace(self, other), os.kill(os.getpid(), signal.SIGKILL))\n"
        "    convert.certificate_path = plain\n"
        "convert.convert(sys.argv[1], sys.argv[2], to=sys.argv[3])\n"
    )
    words = [sys.executable, "-c", code, str(models / "llama"), str(out), to, after]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    assert result.returncode == -9, result.stderr


@pytest.mark.sample(1)
@pytest.mark.parametrize("to", ["chumoku", "gguf"])
@pytest.mark.parametrize("after", ["certify", "certificate_path"])
def test_leftovers_of_killed_conversions_are_removed(
    to: str, after: str, ask: Ask, models: Path, tmp_path: Path
) -> None:
    """Killed when everything is written, or after the first file was moved."""
    out = tmp_path / "out.gguf"
    (tmp_path / "out.gguf.txt").write_text("somebody's")
    convert_and_kill(out, models, to, after)
    assert "out.gguf.incomplete" in list_names(tmp_path)
    assert ("out.certificate.json" in list_names(tmp_path)) == (to == "gguf" and after == "certificate_path")
    result = ask("convert", "llama", str(out), "--to", to)
    assert result.code == 0, result.err
    assert list_names(tmp_path) == [*(["out.certificate.json"] if to == "gguf" else []), "out.gguf", "out.gguf.txt"]
    (tmp_path / "out.gguf.incomplete").mkdir()  # killed when all was done but for this
    assert ask("convert", "llama", str(out), "--to", to).code == 2
    assert "out.gguf.incomplete" not in list_names(tmp_path)


def test_running_conversion_is_not_disturbed(ask: Ask, tmp_path: Path) -> None:
    with incomplete_folder(tmp_path / "out") as place:
        (place / "new").mkdir()
        result = ask("convert", "llama", str(tmp_path / "out"), "--to", "chumoku")
        assert result.code == 2
        assert f"is in use: process {os.getpid()} is writing there" in result.err
        assert (place / "new").is_dir()
    assert ask("convert", "llama", str(tmp_path / "out"), "--to", "chumoku").code == 0


@pytest.mark.parametrize("what", ["file", "folder", "link"])
def test_unrelated_files_are_kept(what: str, ask: Ask, tmp_path: Path) -> None:
    theirs = tmp_path / "out.incomplete"
    if what == "folder":
        theirs.mkdir()
        (theirs / "thesis.txt").write_text("years of work")
    elif what == "link":
        (tmp_path / "elsewhere").mkdir()
        theirs.symlink_to(tmp_path / "elsewhere")
    else:
        theirs.write_text("years of work")
    before = list_names(tmp_path)
    result = ask("convert", "llama", str(tmp_path / "out"), "--to", "chumoku")
    assert result.code == 2
    assert "something else is there. Move it away" in result.err
    assert list_names(tmp_path) == before


def test_a_page_is_complete_or_absent(ask: Ask, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "small.html"
    monkeypatch.setenv("CHUMOKU_CHROMIUM", str(tmp_path / "no-browser"))
    result = ask("convert", "gpt2", str(out), "--to", "web")
    assert result.code == 2
    assert f"CHUMOKU_CHROMIUM is {tmp_path / 'no-browser'}, which is not a program. Set it" in result.err
    assert list_names(tmp_path) == []
    monkeypatch.setattr(chromium, "find_chromium", lambda: None)
    result = ask("convert", "gpt2", str(out), "--to", "web", "--json")
    assert result.code == 0
    report = json.loads(result.out)
    assert report["certificate"] is None
    assert re.match("Not checked in a browser.* CHUMOKU_CHROMIUM .* The page compares itself", report["sentences"][0])
    assert report["size"] == out.stat().st_size == sum(report["parts"].values())
    assert list_names(tmp_path) == ["small.html"]
    again = ask("convert", "gpt2", str(out), "--to", "web")
    assert again.code == 2
    assert "already exists" in again.err
    out.unlink()

    def differ(page: Path, progress: object) -> None:
        assert page.stat().st_size == report["size"]
        raise DamagedError("The page is not the same.")

    monkeypatch.setattr(export, "check_in_chromium", differ)
    result = ask("convert", "gpt2", str(out), "--to", "web")
    assert (result.code, list_names(tmp_path)) == (1, [])


def test_help_needs_no_torch() -> None:
    output = show_help("convert")
    for word in ("web", *KINDS, *(kind for kinds in KINDS.values() for kind in kinds)):
        assert word in output, f"--help says {word}"


@pytest.mark.parametrize(
    ("model", "to", "line"),
    [
        ("translator", "ctranslate2", "ctranslate2.Translator('{out}')"),
        ("llama", "ctranslate2", "ctranslate2.Generator('{out}')"),
        ("gpt2", "transformers", "AutoModelForCausalLM.from_pretrained('{out}')"),
        ("llama", "transformers", "AutoModelForCausalLM.from_pretrained('{out}')"),
        ("translator", "chumoku", 'chumoku translate {out} "A sentence."'),
        ("experts", "chumoku", 'chumoku generate {out} "A sentence."'),
        ("encoder", "chumoku", 'chumoku embed {out} "A sentence."'),
    ],
)
def test_folder_targets_and_their_report(model: str, to: str, line: str, ask: Ask, tmp_path: Path) -> None:
    if to != "chumoku":
        pytest.importorskip(to, reason=f"{to} is not installed")
    out = tmp_path / "new" / "out"
    result = ask("convert", model, str(out), "--to", to)
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0] == f"{out}: {to}, float32"
    assert lines[-3].startswith(f"Checked with {to} ")
    assert lines[-2] == f"Versions and checksums are in {out / 'certificate.json'}."
    assert lines[-1].startswith("Use it: ")
    assert line.format(out=out) in lines[-1]
    certificate = json.loads((out / "certificate.json").read_text())
    assert certificate["source"] == model
    assert certificate["checked"]
    for name, entry in certificate["files"].items():
        assert (out / name).stat().st_size == entry["bytes"]
        assert any(row.split()[0] == name for row in lines[1:-3])
    assert list_names(tmp_path / "new") == ["out"]
    again = ask("convert", model, str(out), "--to", to)
    assert again.code == 2
    assert f"{out} already exists and is not overwritten." in again.err


def test_json_is_one_line(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()  # an empty folder is as good as none
    result = ask("convert", "experts", str(tmp_path / "out"), "--to", "chumoku", "--json")
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert (found["out"], found["checked"]) == (str(tmp_path / "out"), True)
    assert (found["found"]["difference"], found["found"]["apart"]) == (0.0, 0.0)
    assert found["use"].startswith("chumoku generate ")


def test_chumoku_target_can_be_loaded(ask: Ask, models: Path, tmp_path: Path) -> None:
    assert ask("convert", "translator", str(tmp_path / "out"), "--to", "chumoku").code == 0
    ours, theirs = chumoku.load(models / "translator"), chumoku.load(tmp_path / "out")
    assert theirs.translate("one", max_new_tokens=7) == ours.translate("one", max_new_tokens=7)
    assert "certificate.json" in json.loads((tmp_path / "out" / "manifest.json").read_text())["files"]


def test_a_runs_folder_stands_for_its_model(ask: Ask, models: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "last").symlink_to(models / "gpt2")
    ended = ask("convert", str(tmp_path / "run"), str(tmp_path / "out"), "--to", "chumoku")
    assert ended.code == 0, ended
    assert chumoku.load(tmp_path / "out").config == chumoku.load(models / "gpt2").config


@pytest.mark.parametrize("kind", [None, "q8_0", "f32"])
@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_gguf_target(model: str, kind: str | None, ask: Ask, tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed")
    out = tmp_path / "new" / "out.gguf"
    result = ask("convert", model, str(out), "--to", "gguf", *(["--type", kind] if kind else []))
    assert result.code == 0, result.err
    assert list_names(out.parent) == ["out.certificate.json", "out.gguf"]
    assert f"Use it: llama-cli -m {out} -p" in result.out
    certificate = json.loads((tmp_path / "new" / "out.certificate.json").read_text())
    assert certificate["kind"] == (kind or "f16")
    assert certificate["checked"] == ("Checked with llama_cpp" in result.out)
    assert certificate["checked"] or "pip install llama-cpp-python" in result.out
    assert ask("convert", model, str(out), "--to", "gguf").code == 2


@pytest.mark.parametrize("to", ["ctranslate2", "transformers", "gguf"])
def test_wrong_export_is_deleted(to: str, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One number of one matrix is changed."""
    for name in {"gguf": ("gguf", "llama_cpp")}.get(to, (to,)):
        pytest.importorskip(name, reason=f"{name} is not installed")
    write = WRITERS[to]

    def wrong(path: Path, model: Any, *rest: Any) -> None:
        down = model.decoder.blocks[1].feedforward.down.weight
        before = down[3, 5].clone()
        down[3, 5] += 1.5
        write(path, model, *rest)
        down[3, 5] = before

    monkeypatch.setitem(converting.WRITERS, to, wrong)
    result = ask("convert", "llama", str(tmp_path / "out.gguf"), "--to", to, *(["--type", "f32"] * (to == "gguf")))
    assert result.code == 1
    assert "The root mean square is above the limit, so the output was deleted." in result.err
    assert "differ by" in result.err
    assert list_names(tmp_path) == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["llama", "out", "--to", "onnx"], "Unknown target 'onnx'. Choose one of transformers, gguf"),
        (
            ["llama", "out", "--to", "ctranslate2", "--type", "q8_0"],
            "ctranslate2 cannot be written as 'q8_0'. Choose one of float32",
        ),
        (
            ["llama", "out.gguf", "--to", "gguf", "--type", "q4_k"],
            "llama.cpp's llama-quantize makes other types of an f16",
        ),
        (["llama", "out", "--to", "gguf"], "must end in .gguf, but out does not. Use out.gguf."),
        (["llama", "llama", "--to", "ctranslate2"], "llama is inside the source model's folder llama"),
        (["llama", "gpt2", "--to", "ctranslate2"], "gpt2 already exists"),
        (["llama", "/", "--to", "ctranslate2"], "/ already exists"),
        (["nowhere", "out", "--to", "chumoku"], "nowhere"),
        (["nowhere", "out.html", "--to", "web"], "nowhere"),
        (["llama", "out", "--to", "web"], "must end in .html, but out does not. Use out.html."),
        (["llama", "out.html", "--to", "web", "--type", "q8_0"], "Choose one of int8, float32."),
        (["llama", "llama/out.html", "--to", "web"], "is inside the source model's folder llama"),
        (["experts", "out", "--to", "ctranslate2"], "model.experts = 3"),
        (["encoder", "out", "--to", "ctranslate2"], "model.kind = "),
        (["experts", "out", "--to", "transformers"], "model.experts = 3"),
        (["translator", "out.gguf", "--to", "gguf"], "model.kind = "),
    ],
)
def test_wrong_arguments_are_explained(words: list[str], sentence: str, ask: Ask, models: Path) -> None:
    before = list_names(models)
    result = ask("convert", *words)
    assert result.code == 2
    assert sentence in result.err
    assert list_names(models) == before


def test_interrupted_conversion_leaves_nothing(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(path: Path, *_: Any) -> None:
        (path / "half").write_text("half")
        raise KeyboardInterrupt

    monkeypatch.setitem(converting.WRITERS, "ctranslate2", killed)
    with pytest.raises(KeyboardInterrupt):
        convert(models / "llama", tmp_path / "out", to="ctranslate2")
    assert list_names(tmp_path) == []
    (tmp_path / "out.writing").mkdir()  # somebody's own
    (tmp_path / "out.writing" / "book").write_text("words")
    convert(models / "llama", tmp_path / "out", to="chumoku")
    assert list_names(tmp_path) == ["out", "out.writing"]
    assert list_names(tmp_path / "out.writing") == ["book"]


def test_folder_may_have_a_file_suffix(models: Path, tmp_path: Path) -> None:
    convert(models / "llama", tmp_path / "odd.gguf", to="chumoku")
    assert certificate_path(tmp_path / "odd.gguf") == tmp_path / "odd.gguf" / "certificate.json"
    assert (tmp_path / "odd.gguf" / "certificate.json").is_file()


def test_bf16_stays_bf16_for_transformers(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    whole = convert(models / "llama", tmp_path / "whole", to="transformers")
    half = convert(models / "llama", tmp_path / "half", to="transformers", kind="bf16")
    assert (whole.kind, half.kind) == ("float32", "bf16")
    weights = "model.safetensors"
    assert half.files[weights]["bytes"] < 0.6 * whole.files[weights]["bytes"]
    assert half.found is not None
    assert half.found.apart > 0
    assert convert(tmp_path / "half", tmp_path / "again", to="transformers").kind == "bf16"
    assert torch.get_default_dtype() == torch.float32
