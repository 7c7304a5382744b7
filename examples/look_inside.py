"""Open a model and look inside: attention weights, the logit lens, and what happens without one head.

python examples/look_inside.py FOLDER [TEXT]
"""

import sys

import torch

import chumoku

folder, text = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "the cat sat on"
pipeline = chumoku.load(folder)
model, tokenizer = pipeline.model, pipeline.tokenizer
tokens = tokenizer.encode(text)

print(len(chumoku.addresses(model)), "tensors have an address, for example", chumoku.addresses(model)[3])
with chumoku.record(model, "decoder.blocks.*.attention.weights", "logits") as tape:
    model(torch.tensor([tokens]))
for address, weights in tape.items():
    if address.endswith("weights"):
        place = int(weights[0].mean(0)[-1].argmax())
        print(f"{address}: the last token attends most to {tokenizer.decode([tokens[place]])!r}, at {place}")
best = tape["logits"][0, -1].argmax()
print("next token:", repr(tokenizer.decode([int(best)])))

lens = chumoku.logit_lens(model, tokens)
for name, best in zip(lens.addresses, lens.tokens[:, 0, -1, 0].tolist(), strict=True):
    print(f"{name}: would predict {tokenizer.decode([best])!r}")
for effect in chumoku.ablate(model, tokens)[:3]:
    print(f"without {effect.address}, head {effect.head}: the answer changes by {effect.effect:.3f}")
