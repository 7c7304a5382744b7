"""The dry run: what a recipe would do on this machine, before it does anything.

time ≈ steps × accumulate × (tokens of a batch) / (tokens a second), measured on a few real steps of made-up tokens
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chumoku import lora
from chumoku.data.files import expand
from chumoku.errors import counted as number_of
from chumoku.models.build import build
from chumoku.models.config import ModelConfig
from chumoku.models.count import count
from chumoku.nn.plain import plain, plain_formulas, running
from chumoku.training.checkpoint import bytes_kept
from chumoku.training.distributed import World, choose_device, wrap
from chumoku.training.objectives import Objective
from chumoku.training.optimiser import Optimiser
from chumoku.training.recipe import Recipe
from chumoku.training.result import trained_numbers
from chumoku.training.settings import listed
from chumoku.training.vocabulary import assumed_sizes

TIMED_TOKENS = 1024  # on a CPU a whole batch of a large model would take minutes
PAIR_LENGTH = 24  # tokens a sentence, as a guess


def plan(recipe: Recipe) -> dict[str, Any]:
    """Sizes, memory and time of a run."""
    files = [
        path for named in (recipe.data.files, recipe.data.validation_files) if named for path in expand(listed(named))
    ]
    sizes = assumed_sizes(recipe.model, recipe.tokenizer)
    config = recipe.config(sizes.target or recipe.model.get("vocabulary"), sizes.source)
    rows, length = _shape(recipe, config)
    counted = count(config, length=length, batch=rows)
    trained = trained_numbers(recipe, config)
    device = choose_device(recipe.train.device)
    with plain(recipe.train.plain or plain_formulas()):
        speed, runs = _speed(recipe, config, device, rows=rows, length=length), running()
    tokens = recipe.train.steps * recipe.train.accumulate * rows * length
    return {
        "kind": config.kind,
        "parameters": counted.parameters,
        "vocabulary": sizes.sentence,
        "rate": recipe.peak,
        "files": len(files),
        "bytes_read": sum(path.stat().st_size for path in files),
        "device": str(device),
        "runs": runs,
        "tokens_a_step": recipe.train.accumulate * rows * length,
        "trained": trained,
        "memory_fixed": counted.training_bytes - 12 * (counted.parameters - trained),
        "memory_activations": counted.activation_bytes,
        "disk": bytes_kept(trained, recipe),
        "tokens_per_second": round(speed),
        "seconds": round(tokens / speed),
        "out": recipe.train.out,
        "out_exists": (Path(recipe.train.out) / "checkpoints").is_dir(),
    }


def _shape(recipe: Recipe, config: ModelConfig) -> tuple[int, int]:
    if recipe.data.kind == "text":
        return recipe.train.batch, recipe.train.length or config.context
    length = min(PAIR_LENGTH, recipe.train.tokens)
    return recipe.train.tokens // length, length


def _speed(recipe: Recipe, config: ModelConfig, device: torch.device, *, rows: int, length: int) -> float:
    """Tokens a second over three steps, after one to warm up."""
    if device.type == "cpu":
        rows = max(1, min(rows, TIMED_TOKENS // length))
    model = build(config, device=device)
    if recipe.lora is not None:
        lora.attach(model, recipe.lora)
    module = wrap(Objective(model), recipe.train, World(device)).train()
    optimiser = Optimiser(model, recipe.optimizer)
    batch = _made_up(config, rows, length, device)
    times = []
    for _ in range(4):
        start = time.perf_counter()
        optimiser.forget()
        (module(batch) / (rows * length)).backward()
        optimiser.norm().item()
        optimiser.step(1e-6)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    return rows * length / min(times[1:])


def _made_up(config: ModelConfig, rows: int, length: int, device: torch.device) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(0)

    def tokens(vocabulary: int) -> Tensor:
        return torch.randint(0, vocabulary, (rows, length), generator=random).to(device)

    if config.kind != "encoder-decoder":
        return {"tokens": tokens(config.vocabulary), "labels": tokens(config.vocabulary)}
    real = torch.ones(rows, length, dtype=torch.bool, device=device)
    made = {"source": tokens(config.source_tokens), "source_mask": real}
    return {**made, "target": tokens(config.vocabulary), "labels": tokens(config.vocabulary)}


def show(recipe: Recipe, *, as_json: bool = False) -> None:
    """Print the settings and the plan."""
    found = plan(recipe)
    if as_json:
        print(json.dumps({**found, "recipe": recipe.as_dict()}, ensure_ascii=False))
        return
    for name, table in recipe.as_dict().items():
        print(f"[{name}]")
        for key, value in table.items():
            print(f"  {key} = {json.dumps(value, ensure_ascii=False)}")
    megabyte = 1 << 20
    print(
        f"\n{found['kind']} of {found['parameters']:,} parameters, of which {found['trained']:,} are trained.\n"
        + "".join(f"{line}\n" for line in (found["vocabulary"], _rate_line(recipe)) if line)
        + f"{number_of(found['files'], 'file')}, {number_of(found['bytes_read'], 'byte')} to learn from.\n"
        f"{found['tokens_a_step']:,} tokens a step, {found['tokens_per_second']:,} tokens a second on "
        f"{found['device']} with {found['runs']}: "
        f"about {duration(found['seconds'])} for {number_of(recipe.train.steps, 'step')}.\n"
        f"Memory: {found['memory_fixed'] / megabyte:,.0f} MiB for weights, gradients and optimizer, about "
        f"{found['memory_activations'] / megabyte:,.0f} MiB for activations.\n"
        f"Disk: up to {found['disk'] / megabyte:,.0f} MiB in {found['out']}"
        f"{', which already holds a run: --resume goes on with it' if found['out_exists'] else ''}.\n"
        "Nothing was done."
    )


def _rate_line(recipe: Recipe) -> str:
    if recipe.optimizer.rate is not None:
        return ""
    return f"Learning rate: {recipe.peak:g} at its highest, the default for this optimizer, schedule and width."


def duration(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return number_of(round(seconds), "second")
