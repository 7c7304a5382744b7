"""Seeds of one recipe trained one after another, in processes of their own, and together as one batched model.

    python benchmarks/compare_together.py [--device cuda] [--seeds 5] [--steps 200] [--rounds 3] [KEY=VALUE ...]

All three train the same runs in turns: recipe, seeds, steps, a validation and a checkpoint at the end. On a CPU each
process has one thread, and there are as many at a time as cores; `--threads` is for the other two. On a GPU there is
one process for each seed; start nvidia-cuda-mps-control before to let them share it at the same time. Prints one JSON
line: seconds of each round, ratios within rounds, and the largest difference of a final loss from a run of its own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from clock import ratio, time_alternately
from rich.console import Console

from chumoku.data import grammar
from chumoku.training.recipe import load_recipe
from chumoku.training.run import TrainResult, train
from chumoku.training.together import train_together

RECIPE = Path(__file__).parent.parent / "recipes" / "shakespeare-cpu.toml"
SENTENCES = 3_000  # of the generated text


class Seeds:
    """The runs of all seeds; every training has new folders."""

    def __init__(self, chosen: argparse.Namespace, folder: Path) -> None:
        self.chosen, self.folder, self.count = chosen, folder, 0
        text = chosen.text or folder / "text.txt"
        if chosen.text is None:
            text.write_text("".join(pair.target + "\n" for pair in grammar.generate(SENTENCES)), encoding="utf-8")
        every = f"train.validate_every={chosen.steps}", f"train.save_every={chosen.steps}"
        self.changes = [f"data.files={text}", f"train.steps={chosen.steps}", f"train.device={chosen.device}", *every]
        self.changes += ["train.samples=0", "schedule.warmup=10", *chosen.changes]
        self.losses: dict[str, list[float]] = {}

    def arguments(self) -> list[tuple[Path, list[str], Path]]:
        self.count += 1
        return [
            (
                self.chosen.recipe,
                [*self.changes, f"train.seed={seed}", f"train.out={self.folder / str(self.count) / str(seed)}"],
                self.folder / "data",
            )
            for seed in range(self.chosen.seeds)
        ]

    def in_turn(self) -> None:
        self.losses["in turn"] = [train_one(one) for one in self.arguments()]

    def in_processes(self, pool: ProcessPoolExecutor) -> None:
        self.losses["processes"] = list(pool.map(train_one, self.arguments()))

    def together(self) -> None:
        arguments = self.arguments()
        recipes = [load_recipe(recipe, changes) for recipe, changes, _ in arguments]
        ended = train_together(recipes, data_folder=arguments[0][2])
        self.losses["together"] = [final_loss(one) for one in ended]


def train_one(arguments: tuple[Path, list[str], Path]) -> float:
    recipe, changes, data = arguments
    return final_loss(train(load_recipe(recipe, changes), console=Console(quiet=True), data_folder=data))


def final_loss(ended: Any) -> float:
    if not isinstance(ended, TrainResult) or ended.best_loss is None:
        raise SystemExit(f"A run has no final loss: {ended}")
    return ended.best_loss


def compare(seeds: Seeds, chosen: argparse.Namespace) -> dict[str, Any]:
    workers = chosen.seeds if chosen.device == "cuda" else min(chosen.seeds, os.cpu_count() or 1)
    spawn = multiprocessing.get_context("spawn")
    torch.set_num_threads(chosen.threads)
    with ProcessPoolExecutor(workers, spawn, torch.set_num_threads, (1,)) as pool:
        contestants = {
            "in turn": seeds.in_turn,
            "processes": lambda: seeds.in_processes(pool),
            "together": seeds.together,
        }
        seconds = time_alternately(contestants, rounds=chosen.rounds)
    single, batched = seeds.losses["in turn"], seeds.losses["together"]
    return {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if chosen.device == "cuda" else f"cpu, {chosen.threads} threads",
        "recipe": chosen.recipe.stem,
        "changes": chosen.changes,
        "seeds": chosen.seeds,
        "steps": chosen.steps,
        "processes": workers,
        "mps": "CUDA_MPS_PIPE_DIRECTORY" in os.environ,
        "seconds": {name: [round(one, 2) for one in rounds] for name, rounds in seconds.items()},
        "together / in turn": ratio(seconds["together"], seconds["in turn"]),
        "together / processes": ratio(seconds["together"], seconds["processes"]),
        "final losses": [round(loss, 5) for loss in single],
        "largest difference": max(abs(one - other) for one, other in zip(single, batched, strict=True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--recipe", type=Path, default=RECIPE)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--text", type=Path, help="a text file; default: generated sentences")
    parser.add_argument("changes", nargs="*", help="KEY=VALUE of the recipe")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(compare(Seeds(chosen, Path(folder)), chosen)))


if __name__ == "__main__":
    main()
