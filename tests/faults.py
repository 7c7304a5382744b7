"""Training runs killed at random moments, and files with flipped bytes. `make faults` runs all of them.

    python tests/faults.py --cuts 5 --kills 200 --flips 50

torch is imported once; each run is a fork of this process, so that starting a run after a kill is fast.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its thread pool does not survive a fork

import torch
from rich.console import Console

from chumoku import text
from chumoku.data import grammar
from chumoku.errors import ChumokuError
from chumoku.models.build import build
from chumoku.models.config import ModelConfig
from chumoku.save_model import save
from chumoku.training.checkpoint import Checkpoints
from chumoku.training.checkpoint_files import read_tensors
from chumoku.training.datasets import prepare
from chumoku.training.distributed import World
from chumoku.training.recipe import read_recipe
from chumoku.training.run import train
from chumoku.weights.bundle import load
from chumoku.weights.checksums import verify_checksums

KINDS = ("decoder", "encoder", "encoder-decoder")
# Other objectives: the kind of their model, data.kind and the file.
OBJECTIVES: dict[str, tuple[str, str, str]] = {
    "classes": ("encoder", "labels", "labels.tsv"),
    "tags": ("decoder", "tags", "tags.conll"),
    "spans": ("encoder-decoder", "text", "text.txt"),
    "distillation": ("decoder", "text", "text.txt"),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "dropout": {"model": {"dropout": {"embedding": 0.1, "attention": 0.2, "sublayer": 0.3}}},
    "accumulation": {"train": {"gradient_accumulation": 3}},
    "ema": {"train": {"save_every": 2, "ema": 0.9}},
    "epoch end": {"train": {}},  # saves at the end of each epoch: see `epoch_of`
}
STEPS = 37


def write_corpora(folder: Path) -> None:
    pairs = grammar.generate(110)
    (folder / "pairs.tsv").write_text("".join(f"{p.source}\t{p.target}\n" for p in pairs), "utf-8")
    (folder / "text.txt").write_text("\n\n".join(pair.target for pair in pairs) + "\n", "utf-8")
    more = [pair.target for pair in grammar.generate(397)]
    (folder / "labels.tsv").write_text("".join(f"{line}\t{len(line) % 3}\n" for line in more), "utf-8")
    sentences = ["".join(f"{word} {len(word) % 2}\n" for word in line.split()) for line in more]
    (folder / "tags.conll").write_text("\n".join(sentences), "utf-8")
    tokenizer = text.train(["a"], kind="byte")
    sizes: dict[str, Any] = {"vocabulary": tokenizer.size, "width": 16, "layers": 1, "heads": 2, "context": 11}
    save(folder / "teacher", build(ModelConfig(**sizes, initialization="xavier"), seed=7), tokenizer)


def recipe_for(kind: str, corpora: Path, out: Path, **changes: dict[str, Any]) -> dict[str, Any]:
    """The recipe of a very small run; `changes` replace values of its tables. `kind`: of a model, or an objective."""
    pairs = kind == "encoder-decoder"
    source = ("pairs", "pairs.tsv") if pairs else ("text", "text.txt")
    distilled = kind == "distillation"
    kind, data_kind, file = OBJECTIVES.get(kind, (kind, *source))
    tables: dict[str, dict[str, Any]] = {
        "model": {"kind": kind, "width": 12, "layers": 1, "heads": 3, "context": 11, "position": "learned"},
        "tokenizer": {"kind": "byte"} if not pairs else {"kind": "character", "target_kind": "word"},
        "data": {"kind": data_kind, "files": str(corpora / file)},
        "train": {
            "out": str(out),
            "steps": STEPS,
            "batch_size": 29,
            "batch_tokens": 331,
            "save_every": 3,
            "samples": 0,
        },
        "optimizer": {"learning_rate": 0.01},
        "schedule": {"warmup": 5},
    }
    tables["train"] |= {"validate_every": 7, "validation_batches": 2, "keep_checkpoints": 3, "device": "cpu"}
    if pairs:
        tables["model"]["context"] = 64
        tables["data"]["validation_share"] = 0.2
    if kind == "encoder-decoder" and data_kind == "text":  # several spans in a short window, so that they are random
        tables["data"] |= {"mask_probability": 0.5, "mean_span_length": 2.0}
    if distilled:
        del tables["tokenizer"]  # the teacher brings its own
        tables["distillation"] = {"teacher": str(corpora / "teacher")}
    for name, table in changes.items():
        tables[name] = {**tables[name], **table}
    return tables


def fork(recipe: dict[str, Any]) -> int:
    """Start or resume a run in a child process, and return its process id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        train(recipe, resume=True, console=Console(file=io.StringIO()))
        code = 0
    except ChumokuError as error:
        print(f"child: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def finish(recipe: dict[str, Any]) -> float:
    """Run to the end, and return the seconds it took."""
    start = time.monotonic()
    _, status = os.waitpid(fork(recipe), 0)
    if status:
        raise SystemExit(f"A run that should finish ended with status {status}: {recipe['train']['out']}")
    return time.monotonic() - start


def tensors(out: Path) -> dict[str, torch.Tensor]:
    """All tensors of a finished run: of its last checkpoint, and of last/ and best/."""
    newest = Checkpoints(out / "checkpoints", keep=1, world=World(torch.device("cpu")), notify=print).newest()
    if newest is None:
        raise SystemExit(f"{out} has no checkpoint.")
    found = read_tensors(newest).flatten()
    found |= {f"last/{name}": value for name, value in load(out / "last").model.state_dict().items()}
    found |= {f"best/{name}": value for name, value in load(out / "best").model.state_dict().items()}
    return found


def check_resume(kind: str, setting: str, cuts: int, folder: Path, rng: random.Random) -> int:
    """A run that is killed at random moments ends with exactly the tensors of one that is not."""
    changes = {name: dict(table) for name, table in SETTINGS[setting].items()}
    expected_run, killed_run = folder / f"{kind}-{setting}-expected", folder / f"{kind}-{setting}-killed"
    if setting == "epoch end":
        changes["train"]["save_every"] = epoch_of(recipe_for(kind, folder, folder / f"{kind}-epoch"))
    seconds = finish(recipe_for(kind, folder, expected_run, **changes))
    shutil.copytree(expected_run / "data", killed_run / "data")
    kills_done = 0
    while kills_done < cuts:
        if kill_after(recipe_for(kind, folder, killed_run, **changes), after=rng.uniform(0.3, 0.9) * seconds):
            kills_done += 1
        else:  # it finished before the kill: start again
            shutil.rmtree(killed_run / "checkpoints")
    finish(recipe_for(kind, folder, killed_run, **changes))
    expected, found = tensors(expected_run), tensors(killed_run)
    unequal = [name for name in expected if name not in found or not torch.equal(expected[name], found[name])]
    if unequal or set(expected) != set(found):
        raise SystemExit(f"{kind}, {setting}: resumed differs from uninterrupted in {unequal[:3]}.")
    return kills_done


def epoch_of(recipe: dict[str, Any]) -> int:
    """The number of batches of an epoch."""
    finish({**recipe, "train": {**recipe["train"], "steps": 5}})
    return len(prepare(read_recipe(recipe)).train)


def kill_after(recipe: dict[str, Any], *, after: float) -> bool:
    """Kill a run after some seconds; False if it had finished before."""
    child = fork(recipe)
    time.sleep(after)
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def check_kills(kills: int, folder: Path, rng: random.Random) -> int:
    """Kill runs that save at every step; the last two checkpoints are always intact, and the run can be resumed."""
    out = folder / "kills"
    recipe = recipe_for("decoder", folder, out, train={"save_every": 1, "steps": 7, "validate_every": 5})
    seconds = finish(recipe)
    recipe["train"]["steps"] = 100_000
    for _ in range(kills):
        if not kill_after(recipe, after=rng.uniform(0.5, 1.5) * seconds):
            raise SystemExit("A run ended before it was killed.")
        steps = sorted(path for path in (out / "checkpoints").glob("step-*") if path.name[5:].isdecimal())
        for path in steps[-2:]:
            verify_checksums(path)
    if list((out / "checkpoints").glob("*.bad*")):
        raise SystemExit("A kill left a checkpoint that looked damaged.")
    return int(steps[-1].name[5:])


def check_flips(flips: int, folder: Path, rng: random.Random) -> int:
    """Every flipped byte and every truncation of a checkpoint's files is noticed."""
    out = folder / "flips"
    finish(recipe_for("decoder", folder, out, train={"steps": 7, "save_every": 7, "ema": 0.5}))
    path = out / "checkpoints" / "step-00000007"
    verify_checksums(path)
    tried = 0
    for file in sorted(path.iterdir()):
        content = file.read_bytes()
        for _ in range(flips):
            place, bit = rng.randrange(len(content)), rng.randrange(1, 256)
            flipped = bytearray(content)
            flipped[place] ^= bit
            for damaged in (bytes(flipped), content[:place]):
                file.write_bytes(damaged)
                tried += 1
                try:
                    verify_checksums(path)
                except ChumokuError:
                    continue
                raise SystemExit(f"{file.name}: damage at byte {place} was not noticed.")
        file.write_bytes(content)
    verify_checksums(path)
    return tried


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("cuts", 5), ("kills", 200), ("flips", 50), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--settings", nargs="*", default=list(SETTINGS))
    parser.add_argument("--runs", type=int, help="how many kinds of model with settings are resumed; default: all")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_corpora(folder)
        first = recipe_for("decoder", folder, folder / "first", train={"steps": 7})
        train(first, console=Console(file=io.StringIO()))  # imports what the runs would otherwise import one by one
        runs = [(kind, setting) for kind in KINDS for setting in options.settings]
        for kind, setting in runs[:: len(runs) // (options.runs or len(runs))]:
            kills_done = check_resume(kind, setting, options.cuts, folder, rng)
            print(f"resume: {kind}, {setting}: {kills_done} kills, every tensor equal", flush=True)
        step = check_kills(options.kills, folder, rng)
        print(f"kills: {options.kills}, the run reached step {step}, every checkpoint is intact", flush=True)
        print(f"flips: {check_flips(options.flips, folder, rng)} damages, all noticed", flush=True)


if __name__ == "__main__":
    main()
