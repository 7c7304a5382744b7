"""Build a model, train it in a hand-written PyTorch loop, save it, open it again and generate text.

python examples/own_training_loop.py [FOLDER]
"""

import sys

import torch

import chumoku
from chumoku.text import train

TEXT = "the cat sat on the mat. the dog sat on the log. " * 40
FOLDER = sys.argv[1] if len(sys.argv) > 1 else "my-model"

tokenizer = train([TEXT], kind="character")
config = chumoku.ModelConfig(vocabulary=tokenizer.size, width=64, layers=2, heads=4, context=64)
model = chumoku.build(config, seed=0)
print(model.decoder.blocks[0].attention)

tokens = torch.tensor(tokenizer.encode(TEXT))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
generator = torch.Generator().manual_seed(0)
for step in range(1, 101):
    starts = torch.randint(len(tokens) - 33, (16,), generator=generator)
    rows = torch.stack([tokens[start : start + 33] for start in starts.tolist()])
    logits = model(rows[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(f"step {step}  loss {loss.item():.3f}")

chumoku.save(FOLDER, model.eval(), tokenizer, overwrite=True)
pipeline = chumoku.load(FOLDER)
print(pipeline)
print("the cat" + pipeline.generate("the cat", max_new_tokens=24, temperature=0))
