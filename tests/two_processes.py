"""Train several recipes one after another in the processes that torchrun started, so that they start only once.

    torchrun --nproc-per-node 2 tests/two_processes.py FOLDER one.toml two.toml -- longer.toml

Each recipe is run by the command line. Those that follow `--` are resumed, once the file FOLDER/resume exists. Before
that, every process writes a file FOLDER/trained-RANK.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist
from easy_rewards import replace_words_rule

import chumoku.cli
import chumoku.training.run as run


def main() -> None:
    folder, recipes = Path(sys.argv[1]), sys.argv[2:]
    middle = recipes.index("--")
    run.draw_loss_curve = lambda *_: None
    run.measure_matmul_flops = lambda *_: 1e9
    replace_words_rule()
    keep_process_group()
    train(recipes[:middle])
    (folder / f"trained-{os.environ['RANK']}").touch()
    while not (folder / "resume").exists():
        time.sleep(0.1)
    train(recipes[middle + 1 :], "--resume")


def train(recipes: list[str], *words: str) -> None:
    for recipe in recipes:
        print(f"{recipe}:", flush=True)
        sys.argv = ["chumoku", "train", recipe, *words]
        try:
            chumoku.cli.main()
        except SystemExit as end:
            if end.code:
                raise


def keep_process_group() -> None:
    """All runs share the group of the first one: FSDP keeps it, and torchrun's store keeps its addresses."""
    create = dist.init_process_group

    def create_once(*args: Any, **options: Any) -> None:
        if not dist.is_initialized():
            create(*args, **options)

    dist.init_process_group, dist.destroy_process_group = create_once, lambda: None


if __name__ == "__main__":
    main()
