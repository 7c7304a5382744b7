"""The commands translate, generate, chat, embed and evaluate, as a user runs them."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bundles import byte_tokenizer, chat_tokenizer, make_bundle
from commands import Ask, Ended, command, show_help
from serving import until

import chumoku
from chumoku.decoding.translate_file import progress_path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one model of each kind, and a few more."""
    folder = tmp_path_factory.mktemp("models")
    make_bundle(folder / "translator", "encoder-decoder", byte_tokenizer(("en", "ja")), tie_output=False)
    make_bundle(folder / "short", "encoder-decoder", position="learned", context=23)
    make_bundle(folder / "decoder", "decoder", width=64, heads=2)
    make_bundle(folder / "chat_tokenizer", "decoder", chat_tokenizer(), context=4096, width=64, heads=2)
    make_bundle(folder / "endless", "decoder", chat_tokenizer(marks=()), context=4096)
    make_bundle(folder / "encoder", "encoder")
    (folder / "text.txt").write_text("one two three\n")
    return folder


@pytest.fixture
def ask(models: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Run a command in this process, with the models' folder as its own."""
    monkeypatch.chdir(models)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # how this process meets pipes is not a command's to say

    def run(*words: str, stdin: bytes = b"") -> Ended:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        return command(*words, capfd=capfd, monkeypatch=monkeypatch)

    return run


def alone(*words: str, cwd: Path, stdin: bytes | None = b"") -> subprocess.Popen[bytes]:
    """A command in a process of its own."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}
    process = subprocess.Popen([sys.executable, "-m", "chumoku", *words], cwd=cwd, **pipes, env=environment)
    if stdin is not None and process.stdin is not None:
        process.stdin.write(stdin)
        process.stdin.close()
        process.stdin = None  # so that `communicate` leaves it alone
    return process


def test_help_of_no_command_needs_torch() -> None:
    commands = ("translate", "generate", "chat", "embed", "evaluate", "diff")
    output = show_help(*commands)
    assert [command for command in commands if f"Usage: chumoku {command} " not in output] == []


# Translate


def test_translate_sentences(ask: Ask, models: Path) -> None:
    pipeline = chumoku.load(models / "translator")
    expected = pipeline.translate(["one", "two"], beam=2, max_new_tokens=7)
    short = ("--beam", "2", "--max-new-tokens", "7")
    assert ask("translate", "translator", "one", "two", *short) == (0, "".join(f"{one}\n" for one in expected), "")
    lines = ask("translate", "translator", "one", "two", *short, "--json").out.split("\n")
    assert [json.loads(line) for line in lines[:-1]] == [
        {"text": text, "translation": output} for text, output in zip(["one", "two"], expected, strict=True)
    ]
    into = [ask("translate", "translator", "one", "--into", code, *short).out for code in ("en", "ja")]
    assert into[0] != into[1]


def test_translate_lines_of_standard_input(ask: Ask, models: Path) -> None:
    one, two = chumoku.load(models / "translator").translate(["one", "two"], max_new_tokens=7)
    found = ask("translate", "translator", "--max-new-tokens", "7", stdin=b"one\r\n\n  \ntwo")
    assert found == (0, f"{' '.join(one.splitlines())}\n\n\n{' '.join(two.splitlines())}\n", "")
    found = ask("translate", "translator", "--max-new-tokens", "7", stdin=b"one\n\x83\x7d\xff\ntwo\n")
    assert found.code == 2
    assert found.out == f"{' '.join(one.splitlines())}\n", "what came before is answered"
    assert "Line 2 of standard input is not valid UTF-8" in found.err
    found = ask("translate", "short", stdin=b"\n" * 40 + b"x" * 50 + b"\n")
    assert found.code == 2
    assert "standard input, line 41: Text 1: a sentence has 51 tokens" in found.err


def test_lines_are_translated_while_more_are_awaited(models: Path) -> None:
    process = alone("translate", "translator", "--max-new-tokens", "3", cwd=models, stdin=None)
    assert process.stdin is not None
    assert process.stdout is not None
    for text in (b"one\n", b"\n", b"two\n"):
        process.stdin.write(text)
        process.stdin.flush()
        assert select.select([process.stdout], [], [], 60)[0], "no answer is held back"
        assert process.stdout.readline().endswith(b"\n")
    process.stdin.close()
    assert process.wait() == 0


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "words",
    [["translate", "translator", "--max-new-tokens", "3"], ["generate", "decoder", "x", "--max-new-tokens", "40"]],
)
def test_a_closed_pipe_ends_quietly(words: list[str], models: Path) -> None:
    process = alone(*words, cwd=models, stdin=None)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    try:
        for _ in range(1 << 12):
            process.stdin.write(b"one\n" * 64)
            process.stdin.flush()
        process.stdin.close()
    except BrokenPipeError:
        pass
    assert process.wait() in (0, -signal.SIGPIPE)
    assert process.stderr.read() == b""


def test_translate_a_file(ask: Ask, models: Path, tmp_path: Path) -> None:
    texts = [f"line {number}" if number % 5 else "" for number in range(33)]
    (tmp_path / "in.txt").write_text("\n".join(texts))
    out = tmp_path / "new" / "out.txt"
    words = ("--file", str(tmp_path / "in.txt"), "--out", str(out), "--max-new-tokens", "5", "--beam", "1")
    found = ask("translate", "translator", *words)
    assert found.code == 0, found.err
    assert found.out == f"Wrote 33 lines to {out}.\n"
    output = chumoku.load(models / "translator").translate(texts, max_new_tokens=5, beam=1)
    assert out.read_text().split("\n") == [*(" ".join(one.splitlines()) for one in output), ""]
    again = ask("translate", "translator", *words)
    assert again.code == 2
    assert "already exists and is not an unfinished translation" in again.err
    out.unlink()
    found = ask("translate", "translator", *words, "--json")
    assert json.loads(found.out)["lines"] == 33
    pairs = [tmp_path / name for name in ("pairs.tsv", "back.tsv")]
    for path, more in zip(pairs, ([], ["--back"]), strict=True):
        found = ask("translate", "translator", *words[:2], "--to-pairs", str(path), *words[4:], *more)
        assert found.out == f"Wrote 33 lines to {path}.\n"
    forward, back = ([line.split("\t") for line in path.read_text().splitlines()] for path in pairs)
    assert [text for text, _ in forward] == [text for _, text in back]
    assert [translation for _, translation in forward] == [translation for translation, _ in back]
    assert [" ".join(text.split()) for text, _ in forward] == [" ".join(text.split()) for text in texts]


@pytest.mark.slow
def test_a_killed_translation_is_continued(models: Path, tmp_path: Path, ask: Ask) -> None:
    (tmp_path / "in.txt").write_text("".join(f"line {number}\n" for number in range(1301)))
    words = (
        "translate",
        "translator",
        "--file",
        str(tmp_path / "in.txt"),
        "--max-new-tokens",
        "5",
        "--beam",
        "1",
        "--out",
    )
    whole, out = tmp_path / "whole.txt", tmp_path / "out.txt"
    assert ask(*words, str(whole)).code == 0
    process = alone(*words, str(out), cwd=models)
    until(lambda: out.exists() and out.stat().st_size > 0, 30)
    process.kill()
    process.wait()
    assert progress_path(out).exists()
    assert out.stat().st_size < whole.stat().st_size
    refused = ask(*words, str(out), "--into", "en")
    assert refused.code == 2
    assert "started with into = None, not en" in refused.err
    interrupted = alone(*words, str(out), cwd=models)
    before = out.stat().st_size
    until(lambda: out.stat().st_size > before, 30)
    interrupted.send_signal(signal.SIGINT)
    _, err = interrupted.communicate()
    assert interrupted.returncode == 130
    assert b"Continuing after line" in err
    assert b"of 1,301 lines. Run the same command to continue." in err
    assert ask(*words, str(out)).code == 0
    assert out.read_bytes() == whole.read_bytes()
    assert not progress_path(out).exists()


# Generate


def test_generate_streams_what_python_gives(ask: Ask, models: Path) -> None:
    pipeline = chumoku.load(models / "decoder")
    options = {"max_new_tokens": 17, "temperature": 0.6, "top_k": 40, "top_p": 0.9, "min_p": 0.01, "seed": 3}
    options |= {"repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.3}
    expected = pipeline.generate("Once", **options)  # type: ignore[arg-type]
    words = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
    assert ask("generate", "decoder", "Once", *words) == (0, f"{expected}\n", "")
    assert ask("generate", "decoder", *words, stdin=b"Once\n") == (0, f"{expected}\n", "")
    found = json.loads(ask("generate", "decoder", "Once", *words, "--json").out)
    assert (found["prompt"], found["text"]) == ("Once", expected)
    letter = expected.strip()[3]
    stopped = ask("generate", "decoder", "Once", *words, "--stop", "nowhere", "--stop", letter).out
    assert stopped == expected.partition(letter)[0] + "\n"


def test_generate_min_new_tokens(ask: Ask, models: Path) -> None:
    pipeline = chumoku.load(models / "decoder")
    options: dict[str, Any] = {"max_new_tokens": 31, "temperature": 5.0}  # hot, so that some text ends soon
    seed = next(seed for seed in range(99) if len(pipeline.generate("Once", seed=seed, **options)) < 15)
    words = ("generate", "decoder", "Once", "--max-new-tokens", "31", "--temperature", "5", "--seed", str(seed))
    expected = pipeline.generate("Once", min_new_tokens=31, seed=seed, **options)
    assert ask(*words, "--min-new-tokens", "31").out == expected + "\n"
    assert len(ask(*words).out) < len(ask(*words, "--min-new-tokens", "31").out)


def test_generate_refuses_invalid_input(ask: Ask) -> None:
    found = ask("generate", "decoder", stdin=b"one\ntwo \xff")
    assert found.code == 2
    assert "Line 2 of standard input is not valid UTF-8" in found.err


# Chat


def test_chat_through_a_pipe(ask: Ask, models: Path) -> None:
    pipeline = chumoku.load(models / "chat_tokenizer")
    options = {"max_new_tokens": 9, "seed": 3}
    first = pipeline.chat([("system", "Be brief."), ("user", "Hello")], **options)  # type: ignore[arg-type, list-item]
    talk = [("system", "Be brief."), ("user", "Hello"), ("assistant", first), ("user", "Who?")]
    second = pipeline.chat(talk, **options)  # type: ignore[arg-type]
    words = ("chat", "chat_tokenizer", "--system", "Be brief.", "--max-new-tokens", "9", "--seed", "3")
    assert first
    assert ask(*words, stdin=b"Hello\nWho?\n").out == f"{first}\n{second}\n"
    found = ask(*words, stdin=b"Hello\n/reset\n\nHello\n/what\n/quit\nHello\n")
    assert found.out == f"{first}\n{first}\n"
    notice = "This model has no chat template; messages are written in the format chatml.\n"
    assert found.err == f"{notice}A new conversation.\nThe commands are /reset and /quit.\n"
    assert "chat template" not in ask(*words, "--format", "chatml", stdin=b"/quit\n").err
    lines = ask(*words, "--json", stdin=b"Hello\nWho?\n").out.split("\n")
    assert [json.loads(line) for line in lines[:-1]] == [
        {"role": "assistant", "text": text} for text in (first, second)
    ]
    found = ask(*words, stdin=b"Hello\n\xff\n")
    assert (found.code, found.out) == (2, f"{first}\n")
    assert "Line 2 of standard input is not valid UTF-8" in found.err


def test_chat_reports_dropped_messages(ask: Ask) -> None:
    lines = b"one one one one\ntwo two two two\n" + b"x" * 90 + b"\nthree\n"
    found = ask("chat", "decoder", "--max-new-tokens", "5", stdin=lines)
    assert found.code == 0
    assert found.err.count("oldest messages no longer fit") == 2
    assert found.err.count("The last message alone makes a prompt of") == 1


@pytest.fixture
def terminal(models: Path) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """A chat at a terminal that talks for a long time."""
    ours, theirs = pty.openpty()
    words = ["chat", "endless", "--max-new-tokens", "4000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "chumoku", *words],
        cwd=models,
        **dict.fromkeys(("stdin", "stdout", "stderr"), theirs),
        env={**os.environ, "TERM": "dumb"},
        start_new_session=True,
        preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0),
    )
    os.close(theirs)
    yield ours, process
    process.kill()
    process.wait()
    os.close(ours)


def read_until(terminal: int, wanted: bytes) -> bytes:
    """What the terminal shows, up to these bytes."""
    shown = b""
    while wanted not in shown:
        assert select.select([terminal], [], [], 20)[0], shown
        shown += os.read(terminal, 1 << 12)
    return shown


def test_chat_at_a_terminal(terminal: tuple[int, subprocess.Popen[bytes]]) -> None:
    """Ctrl-C stops an answer, or the line being typed, and not the program; Ctrl-D ends it."""
    ours, process = terminal
    assert b"Format plain. /reset starts a new conversation" in read_until(ours, b"> ")
    os.write(ours, b"Hello\n")
    read_until(ours, b"Hello\r\n")
    assert select.select([ours], [], [], 20)[0], "the answer begins"
    os.write(ours, b"\x03")
    read_until(ours, b" (stopped)\r\n> ")
    os.write(ours, b"half a line")
    read_until(ours, b"half a line")
    time.sleep(0.3)  # between a key and the next, Python hears a signal only with the key after it
    os.write(ours, b"\x03")
    read_until(ours, b"\r\n> ")
    assert process.poll() is None
    os.write(ours, b"\x04")
    assert process.wait(timeout=20) == 0


# Embed


def test_embed_compares(ask: Ask, models: Path, tmp_path: Path) -> None:
    pipeline = chumoku.load(models / "encoder")
    alike = pipeline.similarity(["one", "two words"])
    found = ask("embed", "encoder", "one", "two words")
    assert found.code == 0
    assert f"{float(alike[0, 1]):.3f}" in found.out
    assert "1.000" in found.out
    found = json.loads(ask("embed", "encoder", "one", "two words", "--json").out)
    assert found["texts"] == ["one", "two words"]
    assert found["vectors"][1] == pytest.approx(pipeline.embed("two words").tolist(), abs=1e-5)
    assert found["similarities"][0] == pytest.approx(alike[0].tolist(), abs=1e-5)
    assert "A vector of 12 numbers" in ask("embed", "encoder", "one").out
    (tmp_path / "texts.txt").write_text("".join(f"line {n} [/]\n\n" for n in range(11)) + "line 3 [/]\n")
    found = ask("embed", "encoder", "--file", str(tmp_path / "texts.txt"))
    assert "nearest" in found.out
    assert found.out.count("line 3 [/]") >= 4, "twins are each other's nearest"


# Evaluate


def test_evaluate_says_what_a_precision_costs(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("one two three four five " * 20)
    stored = json.loads(ask("evaluate", "decoder", str(tmp_path / "text.txt"), "--json").out)
    assert "stored" not in stored
    found = json.loads(ask("evaluate", "decoder", str(tmp_path / "text.txt"), "--precision", "int8", "--json").out)
    assert (found["precision"], found["stored"]) == ("int8", stored)
    assert found["difference"]["perplexity"] == pytest.approx(found["perplexity"] - stored["perplexity"])
    assert found["loss"] != stored["loss"]
    shown = ask("evaluate", "decoder", str(tmp_path / "text.txt"), "--precision", "int8").out
    assert shown.split()[:4] == ["int8", "as", "stored", "difference"]
    assert f"{stored['perplexity']:,.4f}" in shown


def test_evaluate_compares_language_models(ask: Ask, tmp_path: Path) -> None:
    make_bundle(tmp_path / "other", "decoder", width=32, heads=2)
    for name in ("one", "two"):
        (tmp_path / f"{name}.txt").write_text(f"{name} two three four five " * 20)
    text, other = str(tmp_path / "one.txt"), str(tmp_path / "other")
    found = json.loads(ask("evaluate", "decoder", other, text, "--json").out)
    assert found["models"]["decoder"] == json.loads(ask("evaluate", "decoder", text, "--json").out)
    (pair,) = found["pairs"]
    scores = found["models"]
    assert scores[pair["first"]]["loss"] <= scores[pair["second"]]["loss"]
    gap = scores[pair["second"]]["loss"] - scores[pair["first"]]["loss"]
    assert (pair["unit"], pair["difference"]) == ("nats per token", pytest.approx(gap))
    shown = ask("evaluate", "decoder", other, text).out
    assert pair["answer"] in shown
    assert "bits per byte" in shown
    words = ("evaluate", "decoder", "chat_tokenizer", text)
    assert "two files or more" in ask(*words).err, "these have different tokenizers"
    assert ask(*words, str(tmp_path / "two.txt"), "--json").out.count('"bits per byte"') == 1


def test_evaluate_compares_translations(ask: Ask, tmp_path: Path) -> None:
    lines = [f"the cat sat on the mat number {number} today" for number in range(23)]
    files = {"right": lines, "wrong": [line[::-1] for line in lines], "references": lines}
    for name, texts in files.items():
        (tmp_path / f"{name}.txt").write_text("".join(f"{text}\n" for text in texts))
    paths = [str(tmp_path / f"{name}.txt") for name in ("wrong", "right", "references")]
    (pair,) = json.loads(ask("evaluate", *paths, "--json").out)["pairs"]
    assert (pair["first"], pair["better"], pair["unit"]) == (paths[1], True, "BLEU")
    assert f"{paths[1]} is better than {paths[0]} by" in ask("evaluate", *paths).out
    (tmp_path / "pairs.tsv").write_text("one\ttwo three\n" * 3)
    found = ask("evaluate", "translator", "short", str(tmp_path / "pairs.tsv"), "--beam", "1", "--json")
    assert list(json.loads(found.out)["models"]) == ["translator", "short"]


def test_evaluate_translations_at_a_precision(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("one\ttwo three\n" * 3)
    words = ("evaluate", "translator", str(tmp_path / "pairs.tsv"), "--beam", "1", "--precision", "bf16", "--json")
    found = json.loads(ask(*words, "--save", str(tmp_path / "said.txt")).out)
    assert set(found["difference"]) == {"bleu", "chrf"}
    assert len((tmp_path / "said.txt").read_text().splitlines()) == 3


def test_evaluate_skips_sentences_longer_than_the_context(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text(f"one\ttwo\n{'x' * 23}\ttwo three\n{'x' * 22}\tfour\n")
    words = ("evaluate", "short", str(tmp_path / "pairs.tsv"), "--beam", "1")
    found = ask(*words, "--json", "--save", str(tmp_path / "output.txt"))
    assert found.code == 0, found.err
    score = json.loads(found.out)
    assert (score["sentences"], score["skipped"]) == (2, 1)
    assert "1 of 3 sentences were skipped, because they are longer than the model's context." in found.err
    lines = (tmp_path / "output.txt").read_text().split("\n")
    assert (len(lines), lines[1]) == (4, ""), "the other translations stay in their lines"
    (tmp_path / "pairs.tsv").write_text("one\ttwo\none two\tfour\n")
    found = ask(*words)
    assert "skipped          0" in found.out
    assert "skipped" not in found.err
    (tmp_path / "pairs.tsv").write_text(f"{'x' * 23}\ttwo three\n")
    found = ask(*words)
    assert found.code == 2
    assert "All sentences (1) are longer than the model's context, 23 tokens" in found.err


# What cannot be


@pytest.mark.sample(13)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["translate", "translator", ""], "Text 1 is empty"),
        (["translate", "translator", "one", " \n"], "Text 2 is empty"),
        (["translate", "translator", b"\xff".decode("utf-8", "surrogateescape")], "Text 1 is not valid UTF-8"),
        (["translate", "short", "x" * 50], "Text 1: a sentence has 51 tokens"),
        (["translate", "translator", "one", "--into", "fr"], "'fr'"),
        (["translate", "decoder", "one"], "decoder is of kind 'decoder', but this command needs the kind"),
        (["translate", ".", "one"], "is not a model"),
        (["translate", "nowhere", "one"], "nowhere does not exist"),
        (["translate", "translator", "one", "--max-new-tokens", "0"], "--max-new-tokens"),
        (["translate", "translator", "one", "--beam", "-1"], "--beam"),
        (["translate", "translator", "one", "--length-penalty", "nan"], "-penalty must be a number from −10 to 10"),
        (["translate", "translator", "one", "--length-penalty", "1e300"], "--length-penalty"),
        (["translate", "translator", "one", "--length-penalty", "-1e300"], "--length-penalty"),
        (["translate", "translator", "one", "--device", "cuda:99"], "Choose cpu"),
        (["translate", "translator", "one", "--precision", "int3"], "There is no precision 'int3'"),
        (["translate", "translator", "--file", "in.txt"], "--file IN and --out OUT or --to-pairs OUT"),
        (["translate", "translator", "--out", "out.txt"], "--file IN and --out OUT or --to-pairs OUT"),
        (
            ["translate", "translator", "--file", "in.txt", "--out", "a", "--to-pairs", "b"],
            "--out OUT or --to-pairs OUT",
        ),
        (["translate", "translator", "one", "--back"], "--back needs --to-pairs OUT"),
        (["translate", "translator", "one", "--file", "in.txt", "--out", "out.txt"], "no other texts"),
        (["translate", "translator", "--file", "absent.txt", "--out", "out.txt"], "absent.txt could not be read"),
        (["generate", "decoder", ""], "The text is empty"),
        (["generate", "decoder"], "The text is empty"),
        (["generate", "decoder", "x" * 62], "The prompt has 62 tokens"),
        (["generate", "decoder", "one", "--max-new-tokens", "0"], "--max-new-tokens"),
        (["generate", "decoder", "one", "--max-new-tokens", "-1"], "--max-new-tokens"),
        (["generate", "decoder", "one", "--temperature", "-1"], "to 1,000,000, not -1.0"),
        (["generate", "decoder", "one", "--temperature", "nan"], "temperature must be a number from 0"),
        (["generate", "decoder", "one", "--temperature", "warm"], "--temperature"),
        (["generate", "decoder", "one", "--top-p", "2"], "top_p must be above 0 and at most 1"),
        (["generate", "decoder", "one", "--top-k", "0"], "top_k must be 1 or more"),
        (["generate", "decoder", "one", "--stop", ""], "stop string must not be empty"),
        (["generate", "encoder", "one"], "encoder is of kind 'encoder'"),
        (["generate", "decoder", "one", "--device", "tpu9"], "There is no device 'tpu9'"),
        (["chat", "decoder", "--format", "chatml"], "Choose plain"),
        (["chat", "chat_tokenizer", "--format", "jinja"], "Choose one of chatml, llama3, plain"),
        (["chat", "chat_tokenizer", "--temperature", "nan"], "temperature must"),
        (["chat", "chat_tokenizer", "--system", " "], "The system message is empty"),
        (["chat", "translator"], "translator is of kind 'encoder-decoder'"),
        (["embed", "encoder"], "0 texts were given"),
        (["embed", "encoder", "one", ""], "Text 2 is empty"),
        (["embed", "encoder", "one", "x" * 61], "Text 2 has 62 tokens"),
        (["embed", "encoder", "--file", "absent.txt"], "absent.txt"),
        (["embed", "decoder", "one"], "decoder is of kind 'decoder'"),
        (["evaluate", "decoder", "text.txt", "--precision", "int3"], "There is no precision 'int3'"),
        (["evaluate", "decoder", "text.txt", "--device", "cuda:99"], "Choose cpu"),
        (["evaluate", "decoder", "decoder", "text.txt"], "decoder is given twice"),
        (["evaluate", "decoder", "translator", "text.txt"], "Compare models of one kind"),
        (["evaluate", "decoder", "endless", "text.txt", "--save", "x"], "need one model"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_wrong_use_ends_with_two_and_a_sentence(words: list[str], message: str, ask: Ask, models: Path) -> None:
    before = sorted(models.iterdir())
    found = ask(*words)
    assert found.code == 2, found
    assert message in " ".join(found.err.replace("│", " ").split())
    assert found.out == ""
    assert "Traceback" not in found.err
    assert sorted(models.iterdir()) == before


def test_more_texts_than_are_compared(ask: Ask, models: Path) -> None:
    (models / "many.txt").write_text("one\n" * 5000)
    found = ask("embed", "encoder", "--file", "many.txt")
    assert found.code == 2
    assert "More than 4,096 texts were given; give 1 to 4,096" in found.err


def test_a_prompt_without_end_is_not_waited_for(ask: Ask) -> None:
    found = ask("generate", "decoder", stdin=b"x" * (1 << 24) + b"x")
    assert found.code == 2
    assert "more than 16,777,216 bytes" in found.err
