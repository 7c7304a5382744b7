"""Train one's own model on one's own batches with `chumoku.train`: checkpoints, resume, validation and callbacks.

python examples/train_with_own_data.py [FOLDER]
"""

import sys

import torch

import chumoku
from chumoku.text import train

TEXT = "the cat sat on the mat. the dog sat on the log. " * 40
FOLDER = sys.argv[1] if len(sys.argv) > 1 else "runs/own-data"

tokenizer = train([TEXT], kind="character")
model = chumoku.build(chumoku.ModelConfig(vocabulary=tokenizer.size, width=64, layers=2, heads=4, context=64), seed=0)
tokens = torch.tensor(tokenizer.encode(TEXT))
rows = tokens[: len(tokens) // 33 * 33].view(-1, 33)
batches = [{"tokens": part[:, :-1], "labels": part[:, 1:]} for part in rows.split(8)]


def report(event: chumoku.TrainEvent) -> None:
    if event.validation_loss is not None:
        print(f"step {event.step}: validation loss {event.validation_loss:.3f}")


result = chumoku.train(
    {"train": {"out": FOLDER, "steps": 60, "validate_every": 20}, "optimizer": {"learning_rate": 3e-3}},
    model=chumoku.Pipeline(model, tokenizer),
    train_data=batches[:-1],
    validation_data=batches[-1:],
    callbacks=[report],
)
print("the dog" + chumoku.load(result.last).generate("the dog", max_new_tokens=24, temperature=0))
