"""Faults on purpose: runs killed at random moments, files with flipped bytes. `make faults` runs them in full.

    python tests/faults.py --cuts 5 --kills 200 --flips 50

torch is imported once; each run is a fork of this process, so that a kill costs a moment and not an import.
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

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a fork and a pool of threads do not go together

import torch
from rich.console import Console

from chumoku.data import grammar
from chumoku.errors import ChumokuError
from chumoku.training.checkpoint import Checkpoints
from chumoku.training.checkpoint_files import read_tensors
from chumoku.training.dataset import prepare
from chumoku.training.distributed import World
from chumoku.training.recipe import read_recipe
from chumoku.training.run import train
from chumoku.weights.bundle import load
from chumoku.weights.checksums import verify_checksums

KINDS = ("decoder", "encoder", "encoder-decoder")
SETTINGS: dict[str, dict[str, Any]] = {
    "dropout": {"model": {"dropout": {"embedding": 0.1, "attention": 0.2, "sublayer": 0.3}}},
    "accumulation": {"train": {"gradient_accumulation": 3}},
    "middle": {"train": {"save_every": 2, "ema": 0.9}},
    "edge": {"train": {}},  # saved where an epoch ends: see `epoch_of`
}
STEPS = 37


def write_corpora(folder: Path) -> None:
    pairs = grammar.generate(110)
    (folder / "pairs.tsv").write_text("".join(f"{p.source}\t{p.target}\n" for p in pairs), "utf-8")
    (folder / "text.txt").write_text("\n\n".join(pair.target for pair in pairs) + "\n", "utf-8")


def recipe_for(kind: str, corpora: Path, out: Path, **changes: dict[str, Any]) -> dict[str, Any]:
    """A very small run of a kind; `changes` are laid over its tables."""
    pairs = kind == "encoder-decoder"
    tables: dict[str, dict[str, Any]] = {
        "model": {"kind": kind, "width": 12, "layers": 1, "heads": 3, "context": 11, "position": "learned"},
        "tokenizer": {"kind": "byte"} if not pairs else {"kind": "character", "target_kind": "word"},
        "data": {"kind": "pairs" if pairs else "text", "files": str(corpora / ("pairs.tsv" if pairs else "text.txt"))},
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
    for name, table in changes.items():
        tables[name] = {**tables[name], **table}
    return tables


def fork(recipe: dict[str, Any]) -> int:
    """Start a run in a child process, resuming what is there; returns its number."""
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
    """Run to the end; returns the seconds it took."""
    start = time.monotonic()
    _, status = os.waitpid(fork(recipe), 0)
    if status:
        raise SystemExit(f"A run that should finish ended with status {status}: {recipe['train']['out']}")
    return time.monotonic() - start


def tensors(out: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a finished run: its last checkpoint's, and its result's."""
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
    whole, cut = folder / f"{kind}-{setting}-whole", folder / f"{kind}-{setting}-cut"
    if setting == "edge":
        changes["train"]["save_every"] = epoch_of(recipe_for(kind, folder, folder / f"{kind}-epoch"))
    seconds = finish(recipe_for(kind, folder, whole, **changes))
    shutil.copytree(whole / "data", cut / "data")
    landed = 0
    while landed < cuts:
        if killed(recipe_for(kind, folder, cut, **changes), after=rng.uniform(0.3, 0.9) * seconds):
            landed += 1
        else:  # it was done before the kill came: begin again
            shutil.rmtree(cut / "checkpoints")
    finish(recipe_for(kind, folder, cut, **changes))
    expected, found = tensors(whole), tensors(cut)
    unequal = [name for name in expected if name not in found or not torch.equal(expected[name], found[name])]
    if unequal or set(expected) != set(found):
        raise SystemExit(f"{kind}, {setting}: resumed differs from uninterrupted in {unequal[:3]}.")
    return landed


def epoch_of(recipe: dict[str, Any]) -> int:
    """How many batches an epoch has."""
    finish({**recipe, "train": {**recipe["train"], "steps": 5}})
    return len(prepare(read_recipe(recipe)).train)


def killed(recipe: dict[str, Any], *, after: float) -> bool:
    """Kill a run after so many seconds; False when it was done before."""
    child = fork(recipe)
    time.sleep(after)
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def check_kills(kills: int, folder: Path, rng: random.Random) -> int:
    """Kill runs that save at every step; the newest or the previous checkpoint is always whole, and runs go on."""
    out = folder / "kills"
    recipe = recipe_for("decoder", folder, out, train={"save_every": 1, "steps": 7, "validate_every": 5})
    seconds = finish(recipe)
    recipe["train"]["steps"] = 100_000
    for _ in range(kills):
        if not killed(recipe, after=rng.uniform(0.5, 1.5) * seconds):
            raise SystemExit("A run ended by itself where it should go on.")
        steps = sorted(path for path in (out / "checkpoints").glob("step-*") if path.name[5:].isdecimal())
        for path in steps[-2:]:
            verify_checksums(path)
    if list((out / "checkpoints").glob("*.bad*")):
        raise SystemExit("A kill left a checkpoint that looked damaged.")
    return int(steps[-1].name[5:])


def check_flips(flips: int, folder: Path, rng: random.Random) -> int:
    """Every flipped byte and every truncation of every file of a checkpoint is seen."""
    out = folder / "flips"
    finish(recipe_for("decoder", folder, out, train={"steps": 7, "save_every": 7, "ema": 0.5}))
    path = out / "checkpoints" / "step-00000007"
    verify_checksums(path)
    tried = 0
    for file in sorted(path.iterdir()):
        whole = file.read_bytes()
        for _ in range(flips):
            place, bit = rng.randrange(len(whole)), rng.randrange(1, 256)
            flipped = bytearray(whole)
            flipped[place] ^= bit
            for damaged in (bytes(flipped), whole[:place]):
                file.write_bytes(damaged)
                tried += 1
                try:
                    verify_checksums(path)
                except ChumokuError:
                    continue
                raise SystemExit(f"{file.name}: damage at byte {place} was not seen.")
        file.write_bytes(whole)
    verify_checksums(path)
    return tried


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, usual in (("cuts", 5), ("kills", 200), ("flips", 50), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--settings", nargs="*", default=list(SETTINGS))
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    rng = random.Random(chosen.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_corpora(folder)
        read_recipe(recipe_for("decoder", folder, folder))
        for kind in KINDS:
            for setting in chosen.settings:
                landed = check_resume(kind, setting, chosen.cuts, folder, rng)
                print(f"resume: {kind}, {setting}: {landed} kills, every tensor equal", flush=True)
        step = check_kills(chosen.kills, folder, rng)
        print(f"kills: {chosen.kills}, the run came to step {step}, nothing unreadable", flush=True)
        print(f"flips: {check_flips(chosen.flips, folder, rng)} damages, all seen", flush=True)


if __name__ == "__main__":
    main()
