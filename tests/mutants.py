"""Open randomly damaged files: each must open or be refused with a sentence. `make faults` opens 3,000 of each format.

    python tests/mutants.py --each 3000 [format …]

Each mutant is opened in a fork of this process, where everything has been imported before. There, nothing may take
longer than two seconds of computing or ten of waiting, more memory than the file and 256 MB, or run any code that comes
from outside; and whatever is raised is an error of ours, in sentences.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its thread pool does not survive a fork

import bombs
import bundle_mutants as damage
import sentencepiece
import torch
from bundles import byte_tokenizer, make_bundle
from tokenizers import models, pre_tokenizers

from chumoku import lora, text
from chumoku.errors import ChumokuError
from chumoku.model_path import base_model_of
from chumoku.models.build import build
from chumoku.models.config import ModelConfig
from chumoku.weights.bundle import Tokenizers
from chumoku.weights.families import transformers_rows
from chumoku.weights.formats.gguf_model import write_gguf_model
from chumoku.weights.formats.transformers_folder import write_folder
from chumoku.weights.open_model import load

SECONDS, LONGEST, SPARE = 2.0, 10.0, 256 << 20  # of computing, by the clock, bytes
AT_ONCE = 20  # mutants a fork
FORBIDDEN = ("os.system", "subprocess.Popen", "pickle.find_class", "socket.connect", "os.exec", "os.posix_spawn")
HOSTILE: list[Any] = [
    *(None, True, -1, 0, 2**31, 2**63, 10**30, 1e308, float("nan"), "", "../../etc/passwd", "x" * 70_000, [], {}),
    *([[[[]]]], {"a": {"a": {}}}, "\0", "\ud800", "a|b|" * 999, "(a+)+$", [0] * 9999, "float32", "gelu"),
]
SMALL = {"vocabulary": 263, "width": 16, "heads": 4, "layers": 2, "context": 37, "feedforward_width": 32}


class Format(NamedTuple):
    """A healthy model or tokenizer on disk, its file to be damaged, and how it is opened."""

    make: Callable[[Path], Path]  # into a folder; the file that is damaged
    open: Callable[[Path], object]  # by that file
    mutate: Callable[[bytes, random.Random], bytes] | None = None  # None: the function `mutate`


def llama(**changes: Any) -> Any:
    return build(ModelConfig(**{**SMALL, "norm": "rms", "feedforward": "swiglu", "bias": False, **changes}))


def folder(model: Any, name: str) -> Callable[[Path], Path]:
    def make(place: Path) -> Path:
        tokenizer = byte_tokenizer()
        write_folder(place, model, Tokenizers(tokenizer, tokenizer))
        return place / name

    return make


def gguf(kind: Any) -> Callable[[Path], Path]:
    def make(place: Path) -> Path:
        tokenizer = byte_tokenizer()
        write_gguf_model(place / "model.gguf", llama(width=32), Tokenizers(tokenizer, tokenizer), kind=kind)
        return place / "model.gguf"

    return make


def llama2c(place: Path) -> Path:
    """Seven numbers, the weights, and a tokenizer behind them."""
    sizes = (8, 16, 1, 2, 1, 263, 11)
    count = 263 * 8 + 8 + 64 + 32 + 32 + 64 + 8 + 3 * 128 + 8 + 11 * 4
    pieces = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(f"<0x{byte:02X}>".encode() for byte in range(256))]
    pieces += [b" ", b"a", b" a", b"b"]
    tokens = b"".join(struct.pack("<fi", -float(n), len(piece)) + piece for n, piece in enumerate(pieces))
    random_weights = torch.randn(count, generator=torch.Generator().manual_seed(0)).numpy().tobytes()
    (place / "model.bin").write_bytes(struct.pack("<7i", *sizes) + random_weights + struct.pack("<i", 6) + tokens)
    return place / "model.bin"


def adapter(name: str) -> Callable[[Path], Path]:
    def make(place: Path) -> Path:
        base = make_bundle(place / "base", "decoder")
        model = load(base).model
        lora.attach(model, lora.LoraSettings(rank=3, dora=True))
        lora.save(model, place / "adapter", base=str(base), rows=transformers_rows(model.config))
        return place / "adapter" / name

    return make


def open_adapter(file: Path) -> None:
    model = load(base_model_of(file.parent)).model
    lora.load(model, file.parent, rows=transformers_rows(model.config))


def modules(place: Path) -> Path:
    changes: dict[str, Any] = {"kind": "encoder", "position": "learned", "placement": "post", "embedding_norm": True}
    changes |= {"head": "vector", "segments": 2}
    return folder(build(ModelConfig(**{**SMALL, **changes})), "modules.json")(place)  # type: ignore[arg-type]


def tokenizer(kind: str) -> Callable[[Path], Path]:
    return lambda place: text.train(["some words, and words again: うどん"], kind=kind, vocabulary=600).save(  # type: ignore[arg-type]
        place / "tokenizer.json"
    )


def spm(kind: str) -> Callable[[Path], Path]:
    def make(place: Path) -> Path:
        (place / "corpus.txt").write_text("some words, and words again\nうどん、そば、うどん\n" * 20, encoding="utf-8")
        sentencepiece.SentencePieceTrainer.train(
            input=str(place / "corpus.txt"), model_prefix=str(place / "text"), vocab_size=300, model_type=kind,
            byte_fallback=True, minloglevel=2, hard_vocab_limit=False,
        )  # fmt: skip
        return place / "text.model"

    return make


def vocabulary(place: Path) -> Path:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b", "word", "##s", "."]
    (place / "vocab.txt").write_text("\n".join(words) + "\n")
    return place / "vocab.txt"


def pairs(name: str) -> Callable[[Path], Path]:
    def make(place: Path) -> Path:
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        numbers = {letter: number for number, letter in enumerate([*letters, "he", "<|endoftext|>"])}
        models.BPE(vocab=numbers, merges=[("h", "e")]).save(str(place))
        return place / name

    return make


def open_model_and_encode(file: Path) -> None:
    opened = load(file if file.suffix in (".gguf", ".bin") else file.parent)
    opened.tokenizer.encode("a word 12")


def words(file: Path) -> None:
    text.load(file).encode("a word 12 うどん")


FORMATS: dict[str, Format] = {
    "safetensors": Format(folder(llama(), "model.safetensors"), open_model_and_encode),
    "config": Format(folder(llama(), "config.json"), open_model_and_encode),
    "modules": Format(modules, open_model_and_encode),
    "gguf f16": Format(gguf("f16"), open_model_and_encode),
    "gguf q8_0": Format(gguf("q8_0"), open_model_and_encode),
    "llama2.c": Format(llama2c, open_model_and_encode),
    "adapter config": Format(adapter("adapter_config.json"), open_adapter),
    "adapter": Format(adapter("adapter_model.safetensors"), open_adapter),
    "tokenizer config": Format(folder(llama(), "tokenizer_config.json"), open_model_and_encode),
    "bpe": Format(tokenizer("bpe"), words),
    "unigram": Format(tokenizer("unigram"), words),
    "wordpiece": Format(tokenizer("wordpiece"), words),
    "sentencepiece unigram": Format(spm("unigram"), words),
    "sentencepiece bpe": Format(spm("bpe"), words),
    "vocab.txt": Format(vocabulary, words),
    "vocab.json": Format(pairs("vocab.json"), words),
    "merges.txt": Format(pairs("merges.txt"), words),
    "bundle weights": Format(damage.bundle("model.safetensors"), damage.open_bundle),
    "bundle types": Format(damage.bundle("model.safetensors"), damage.open_bundle, damage.change_types),
    "int8 bundle weights": Format(damage.quantized_bundle, damage.open_bundle),
    "int8 bundle types": Format(damage.quantized_bundle, damage.open_bundle, damage.change_types),
    "bundle config": Format(damage.bundle("config.json"), damage.open_bundle),
    "bundle tokenizer": Format(damage.bundle("tokenizer.json"), damage.open_bundle),
    "bundle manifest": Format(damage.bundle("manifest.json"), damage.open_bundle),
    "bundle files": Format(damage.files, damage.open_with_replacement, damage.plan_replacement),
    "bundle bombs": Format(damage.bombs, damage.open_bundle, damage.make_bomb),
    "checkpoint weights": Format(damage.checkpoint("model.safetensors"), damage.open_checkpoint, damage.change_types),
    "checkpoint optimizer": Format(
        damage.checkpoint("optimizer.safetensors"), damage.open_checkpoint, damage.change_types
    ),
    "checkpoint average": Format(damage.checkpoint("average.safetensors"), damage.open_checkpoint, damage.change_types),
    "checkpoint state": Format(damage.checkpoint("state.json"), damage.open_checkpoint),
}


def mutate(data: bytes, rng: random.Random) -> bytes:
    """The bytes with one to three random changes."""
    if data[:1] in (b"{", b"[") and data[:5] != b"[PAD]" and rng.random() < 0.6:
        return change_values(json.loads(data), rng)
    if data[8:9] == b"{" and rng.random() < 0.5:  # a safetensors header
        size = struct.unpack("<Q", data[:8])[0]
        header = change_values(json.loads(data[8 : 8 + size]), rng)
        return struct.pack("<Q", len(header)) + header + data[8 + size :]
    damaged = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        # Mostly in the header, where counts and offsets are.
        place = rng.randrange(max(1, min(len(damaged), rng.choice([64, 4096, len(damaged)]))))
        length = rng.choice([1, 4, 8, 64, 1000])
        match rng.randrange(6):
            case 0:
                damaged[place : place + 1] = bytes([rng.randrange(256)])
            case 1:
                damaged = damaged[:place]
            case 2:
                del damaged[place : place + length]
            case 3:
                damaged[place:place] = damaged[place : place + length] * rng.choice([1, 2, 50])
            case 4:
                number = rng.choice([0, 1, 2**31 - 1, 2**32 - 1, 2**62, 2**63, 2**64 - 1, len(damaged)])
                damaged[place : place + 8] = struct.pack("<Q", number)
            case 5:
                damaged[place : place + length] = rng.randbytes(length)
    return bytes(damaged)


def change_values(tree: Any, rng: random.Random) -> bytes:
    """JSON with some values replaced or removed."""
    for _ in range(rng.randint(1, 3)):
        node = tree
        while isinstance(node, (dict, list)) and node:
            key: Any = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
            inner = node[key]
            if isinstance(inner, (dict, list)) and inner and rng.random() < 0.8:
                node = inner
                continue
            if isinstance(node, dict) and rng.random() < 0.2:
                del node[key]
            else:
                node[key] = copy.deepcopy(rng.choice([*HOSTILE, [inner] * 3, {"a": inner}]))
            break
    return json.dumps(tree).encode("utf-8", "surrogatepass")


class MutantResult(NamedTuple):
    opened: int
    refused: int
    problems: list[str]


def attempt(format: Format, file: Path, mutants: list[bytes]) -> tuple[int, int, str | None]:
    """In this process: how many opened, how many were answered by a sentence, and the first problem."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    opened = refused = 0
    for data in mutants:
        file.write_bytes(data)
        start, computed = time.perf_counter(), time.process_time()
        try:
            format.open(file)
            opened += 1
        except ChumokuError as error:
            refused += 1
            words = str(error)
            if not words.rstrip().endswith((".", "?", "…")) or len(words) > 4000 or "Traceback" in words:
                return opened, refused, f"no sentence: {words[:200]!r}"
        except BaseException as error:
            return opened, refused, f"{type(error).__name__}: {str(error)[:200]}"
        seconds, computed = time.perf_counter() - start, time.process_time() - computed
        if computed > SECONDS or seconds > LONGEST:
            return opened, refused, f"took {seconds:.1f} s, {computed:.1f} s of them computing"
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
        if used > len(data) + SPARE:
            return opened, refused, f"took {used >> 20} MB for a file of {len(data):,} bytes"
    return opened, refused, None


def attempt_in_fork(format: Format, file: Path, mutants: list[bytes]) -> tuple[int, int, str | None]:
    """The same in a forked process, so that a crash or a hang is noticed; running any program ends it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        sys.addaudithook(lambda event, _: os._exit(77) if event in FORBIDDEN else None)
        os.write(writing, json.dumps(attempt(format, file, mutants)).encode())
        os._exit(0)
    os.close(writing)
    signal.alarm(int(2 * SECONDS * len(mutants)) + 10)
    try:
        with os.fdopen(reading, "rb") as pipe:
            answer = pipe.read()
    except TimeoutError:
        os.kill(child, signal.SIGKILL)
        answer = b""
    finally:
        signal.alarm(0)
    _, status = os.waitpid(child, 0)
    if answer:
        opened, refused, problems = json.loads(answer)
        return opened, refused, problems
    if os.waitstatus_to_exitcode(status) == 77:
        return 0, 0, "ran a program"
    return 0, 0, f"died with {os.waitstatus_to_exitcode(status)}"


def raise_timeout(*_: object) -> None:
    raise TimeoutError


def open_mutants(name: str, count: int, seed: int = 0) -> MutantResult:
    """Damage a healthy file `count` times, and open each result."""
    signal.signal(signal.SIGALRM, raise_timeout)
    format, rng = FORMATS[name], random.Random(f"{name} {seed}")
    place = Path(tempfile.mkdtemp())
    try:
        file = format.make(place)
        data = file.read_bytes()
        format.open(file)  # a healthy file opens, and everything is imported
        opened = refused = 0
        problems: list[str] = []
        for start in range(0, count, AT_ONCE):
            mutants = [(format.mutate or mutate)(data, rng) for _ in range(min(AT_ONCE, count - start))]
            found = attempt_in_fork(format, file, mutants)
            opened, refused = opened + found[0], refused + found[1]
            if found[2] is not None:
                alone = [(mutant, attempt_in_fork(format, file, [mutant])[2]) for mutant in mutants]
                problems += [
                    f"{name}: {what} ({save_mutant(mutant)})" for mutant, what in alone if what is not None
                ] or [f"{name}: {found[2]} (together)"]
    finally:
        shutil.rmtree(place)
    return MutantResult(opened, refused, problems)


def save_mutant(mutant: bytes) -> str:
    """Store a mutant that caused a problem, and return its path."""
    handle, path = tempfile.mkstemp(prefix="mutant-")
    with os.fdopen(handle, "wb") as stream:
        stream.write(mutant)
    return path


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--each", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("formats", nargs="*")
    options = parser.parse_args()
    torch.set_num_threads(1)
    bad = 0
    for name in options.formats or FORMATS:
        start = time.perf_counter()
        result = open_mutants(name, options.each, options.seed)
        bad += len(result.problems)
        print(
            f"{name}: {options.each:,} mutants, {result.opened:,} opened, {result.refused:,} answered by a sentence, "
            f"{len(result.problems)} problems, {time.perf_counter() - start:.0f} s",
            flush=True,
        )
        for line in result.problems[:20]:
            print("  ", line)
    bad += bombs.try_bombs(lambda file, data: attempt_in_fork(FORMATS["bpe"], file, [data])[2])
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
