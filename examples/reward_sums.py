"""Correct a small decoder by reward alone: it has read sums of which most are wrong (recipes/grpo.toml).

    python examples/reward_sums.py runs/sums

1. A decoder reads sums such as 2+7=10: in three of five, the answer is one too many. So its greedy answers are wrong.
2. GRPO lets it answer, and a rule rewards right answers.
3. The share of right greedy answers to sums that were not rewarded, before and after, is logged as reward.

More words, such as train.device=cuda, override keys of both runs.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import chumoku

LARGEST, WRONG = 10, 0.6  # the numbers are smaller than LARGEST; WRONG: the share of wrong sums


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit("Give a folder for the runs: python examples/reward_sums.py runs/sums")
    folder, overrides, dice = Path(sys.argv[1]), sys.argv[2:], random.Random(7)
    folder.mkdir(parents=True, exist_ok=True)
    sums = [(f"{a}+{b}=", a + b) for a in range(LARGEST) for b in range(LARGEST)]
    lines = [f"{asked}{answer + (dice.random() < WRONG)}" for asked, answer in dice.choices(sums, k=20_000)]
    (folder / "sums.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    records = [{"prompt": asked, "answer": str(answer)} for asked, answer in sums]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")
    read = chumoku.train(
        {
            "model": {"kind": "decoder", "width": 64, "layers": 2, "heads": 4, "context": 64, "position": "rotary"},
            "tokenizer": {"kind": "character", "vocabulary": 64},
            "data": {"files": str(folder / "sums.txt"), "documents": "line"},
            "train": {"out": str(folder / "read"), "steps": 500, "batch_size": 8, "sequence_length": 64},
            "optimizer": {"learning_rate": 5e-3},
            "schedule": {"warmup": 30},
        },
        overrides,
    )
    chumoku.train(
        "grpo",
        [
            f"model.init={read.last}",
            f"data.files={folder / 'prompts.jsonl'}",
            "data.validation_share=0.3",
            f"train.out={folder / 'rewarded'}",
            "train.steps=60",
            "train.log_every=5",
            "optimizer.learning_rate=1e-3",
            "grpo.beta=0.01",
            *overrides,
        ],
    )


if __name__ == "__main__":
    main()
