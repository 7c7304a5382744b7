"""The dry run: the size, memory and time of a recipe on this machine, without training.

time ≈ steps × (gradient_accumulation × tokens per batch × seconds per token + seconds per update)

Both are measured on random tokens, without torch.compile, which takes minutes to start; a compiled run is usually
faster. The tokens are a batch as in the recipe, or as many of its rows as a CPU trains in TIMED_SECONDS. If even a
small sample would take too long (for example bf16 on a CPU without it), both are estimated:

seconds = FLOPs / FLOP/s of the best matrix product
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from chumoku import lora
from chumoku.config import parse_settings, settings_to_dict
from chumoku.data.report import report_lines
from chumoku.errors import pluralize
from chumoku.messages import translate
from chumoku.model_path import resolve_run
from chumoku.models.build import build
from chumoku.models.config import ModelConfig
from chumoku.models.count import count
from chumoku.models.model import Model
from chumoku.nn.plain import describe_mode, plain, plain_formulas
from chumoku.text.special_tokens import special_tokens
from chumoku.training.checkpoint import disk_needed
from chumoku.training.data_files import find_data_files
from chumoku.training.datasets.chat import first_sample
from chumoku.training.datasets.preferences import first_pair
from chumoku.training.datasets.prompts import first_answers
from chumoku.training.datasets.text import count_sentinels
from chumoku.training.distributed import World, choose_device, wrap
from chumoku.training.line_check import MOST_BYTES, check_lines
from chumoku.training.log import format_speed, measure_matmul_flops, synchronize
from chumoku.training.objectives import default_objective, make_objective
from chumoku.training.optimizer import Optimizer, uses_muon
from chumoku.training.outputs import count_trained_parameters
from chumoku.training.precision import DTYPES
from chumoku.training.recipe import Recipe
from chumoku.training.settings import LABEL_HEADS, TrainSettings
from chumoku.training.vocabulary import VocabularySizes, vocabulary_sizes
from chumoku.weights.open_model import load, read_model_config

FIRST_TOKENS = 256  # of the sample that tells how many rows a CPU can train in TIMED_SECONDS; at least one row
TIMED_SECONDS = 2.0  # of a step on a CPU, about; no new measurement starts this long after the first
TIMED_BYTES = 1 << 30  # of the activations of a step on a CPU
LONGEST = 4.0  # seconds; if the first sample would take longer, it is estimated instead
PAIR_LENGTH = 24  # assumed tokens per sentence or prompt
TEXT_LENGTH = 64  # assumed tokens of a text with a label


def plan(recipe: Recipe) -> dict[str, Any]:
    """The size, memory, disk space and time of a run, by name."""
    files, lines = find_data_files(recipe.data), check_lines(recipe.data)
    sizes = _vocabulary_sizes(recipe)
    config = recipe.config(sizes.target or recipe.model.get("vocabulary"), sizes.source)
    rows, length = _shape(recipe, config)
    counted = count(config, length=length, batch=rows)
    trained = count_trained_parameters(recipe, config)
    device = choose_device(recipe.train.device)
    tokens = recipe.train.gradient_accumulation * rows * length
    with plain(recipe.train.plain or plain_formulas()):
        most = max(1, rows * TIMED_BYTES // max(1, counted.activation_bytes)) if device.type == "cpu" else rows
        seconds, runs = _step_time(recipe, config, device, rows=min(rows, most), length=length), describe_mode()
    step_seconds = tokens * seconds.token + seconds.update
    return {
        "kind": config.kind,
        "parameters": counted.parameters,
        "vocabulary": sizes.sentence,
        "rate": recipe.peak_learning_rate,
        "files": len(files),
        "bytes_read": sum(path.stat().st_size for path in files),
        "device": str(device),
        "runs": runs,
        "tokens_a_step": tokens,
        "trained": trained,
        "memory_fixed": counted.training_bytes - 12 * (counted.parameters - trained),
        "memory_activations": counted.activation_bytes,
        "disk": disk_needed(trained, recipe),
        "tokens_timed": seconds.tokens,
        "tokens_per_second": round(tokens / step_seconds, 3),
        "seconds": round(recipe.train.steps * step_seconds),
        "out": recipe.train.out,
        "out_exists": (Path(recipe.train.out) / "checkpoints").is_dir(),
        "sample": _sample(recipe),
        "data": None if lines is None else lines.as_dict(),
    }


def _vocabulary_sizes(recipe: Recipe) -> VocabularySizes:
    if recipe.distillation is not None and recipe.init is None:
        vocabulary = read_model_config(resolve_run(recipe.distillation.teacher)).vocabulary
        return VocabularySizes(vocabulary, None, f"Vocabulary: {vocabulary:,} tokens, as the teacher's.")
    languages = recipe.data.languages if recipe.data.both_directions else None
    specials = special_tokens(languages or (), count_sentinels(recipe))
    return vocabulary_sizes(recipe.model, recipe.tokenizer, specials=specials)


def _sample(recipe: Recipe) -> str | None:
    """A conversation as the model gets it, with the learned part marked; None for other kinds of data."""
    show_first = {"chat": first_sample, "preferences": first_pair, "prompts": first_answers}.get(recipe.data.kind)
    if show_first is None:
        return None
    return show_first(recipe, None if recipe.init is None else load(recipe.init))


def _shape(recipe: Recipe, config: ModelConfig) -> tuple[int, int]:
    if recipe.data.kind in ("text", "chat", "preferences"):
        sides = 2 if recipe.data.kind == "preferences" else 1
        return sides * recipe.train.batch_size, recipe.train.sequence_length or config.context
    if recipe.grpo is not None:
        rows, length = recipe.train.batch_size * recipe.grpo.samples, PAIR_LENGTH + recipe.grpo.max_new_tokens
        return rows, min(length, recipe.train.sequence_length or config.context)
    if recipe.data.kind == "sentences":
        sides = len(recipe.data.columns or (0, 1))
        return sides * recipe.train.batch_size, min(PAIR_LENGTH, recipe.train.sequence_length or config.context)
    if recipe.data.kind in LABEL_HEADS:
        return recipe.train.batch_size, min(TEXT_LENGTH, config.max_seq_length or config.context)
    length = min(PAIR_LENGTH, recipe.train.batch_tokens)
    return recipe.train.batch_tokens // length, length


class StepTime(NamedTuple):
    """Seconds per token (forward and backward) and per weight update."""

    token: float
    update: float
    tokens: int  # of the batch that was measured; 0 if both are estimated


def _step_time(recipe: Recipe, config: ModelConfig, device: torch.device, *, rows: int, length: int) -> StepTime:
    first = min(rows, max(1, FIRST_TOKENS // length))
    if device.type == "cpu":
        token = count(config, length=length).training_flops / measure_matmul_flops(
            device, DTYPES[recipe.train.precision]
        )
        update = 0.0
        if recipe.optimizer.kind == "muon":
            update = _muon_flops(_model(recipe, config, torch.device("meta"))) / measure_matmul_flops(
                device, torch.bfloat16
            )
        if first * length * token + update > LONGEST:
            return StepTime(token, update, tokens=0)
    step = TimedStep(recipe, config, device, length=length)
    if device.type == "cpu":
        step(first)  # warms up
        rows = max(first, min(rows, int(TIMED_SECONDS * first / step(first)[0])))
    times: list[tuple[float, float]] = []
    end = math.inf
    while len(times) < 4 and time.perf_counter() < end:
        times.append(step(rows))
        end = min(end, time.perf_counter() + TIMED_SECONDS)
    times = times[1:] or times  # the first one warms up
    return StepTime(min(one for one, _ in times) / (rows * length), min(two for _, two in times), rows * length)


def _model(recipe: Recipe, config: ModelConfig, device: torch.device) -> Model:
    model = build(config, device=device)
    if recipe.lora is not None:
        lora.attach(model, recipe.lora)
    return model


class TimedStep:
    """Training steps of a new model on batches of random tokens, to measure their time."""

    def __init__(self, recipe: Recipe, config: ModelConfig, device: torch.device, *, length: int) -> None:
        self.config, self.device, self.length = config, device, length
        model = _model(recipe, config, device)
        self.optimizer = Optimizer(model, recipe.optimizer)
        settings = parse_settings(
            TrainSettings, {**settings_to_dict(recipe.train), "compile": False, "fp8_output": False}
        )
        self.sentences = recipe.data.kind == "sentences"
        objective = make_objective(recipe, model) if self.sentences else default_objective(model)
        self.module = wrap(objective, settings, World(device)).train()

    def __call__(self, rows: int) -> tuple[float, float]:
        """Train on a batch of this many rows; returns the seconds of both passes and of the update."""
        batch = (_random_sentences if self.sentences else _random_batch)(self.config, rows, self.length, self.device)
        start = time.perf_counter()
        self.optimizer.zero_grad()
        (self.module(batch) / (rows * self.length)).backward()
        synchronize(self.device)
        middle = time.perf_counter()
        self.optimizer.grad_norm().item()
        self.optimizer.step(1e-6)
        synchronize(self.device)
        return middle - start, time.perf_counter() - middle


def _muon_flops(model: nn.Module) -> float:
    """FLOPs of a Muon update: for each m × n matrix, m ≤ n, five rounds of X Xᵀ, its square, and a product with X."""
    sizes = [sorted(p.shape) for name, p in model.named_parameters() if p.requires_grad and uses_muon(name, p)]
    return float(sum(5 * (4 * m * m * n + 2 * m**3) for m, n in sizes))


def _random_batch(config: ModelConfig, rows: int, length: int, device: torch.device) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(0)

    def tokens(vocabulary: int) -> Tensor:
        return torch.randint(0, vocabulary, (rows, length), generator=random).to(device)

    if config.labels is not None:
        labels = tokens(config.label_count)
        return {"tokens": tokens(config.vocabulary), "labels": labels if config.head == "tags" else labels[:, 0]}
    if config.kind != "encoder-decoder":
        return {"tokens": tokens(config.vocabulary), "labels": tokens(config.vocabulary)}
    real = torch.ones(rows, length, dtype=torch.bool, device=device)
    create_result = {"source": tokens(config.source_tokens), "source_mask": real}
    return {**create_result, "target": tokens(config.vocabulary), "labels": tokens(config.vocabulary)}


def _random_sentences(config: ModelConfig, rows: int, length: int, device: torch.device) -> dict[str, Tensor]:
    """A batch of pairs; triplets take as long for each text."""
    tokens = _random_batch(config, max(2, rows), length, device)["tokens"]
    anchors, positives = tokens[::2], tokens[1::2]
    numbers = torch.arange(len(positives), device=device)
    return {
        "anchor": anchors[: len(numbers)],
        "positive": positives,
        "group": numbers,
        "terms": torch.ones_like(numbers),
    }


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
    for line in ("", *_plan_lines(recipe, found)):
        print(translate(line))
    if found["sample"]:
        print(translate("A sample, with ⟦ ⟧ around what is learned:"), found["sample"], sep="\n")
    print(translate("Nothing was trained."))


def _plan_lines(recipe: Recipe, found: dict[str, Any]) -> Iterator[str]:
    megabyte = 1 << 20
    yield f"{found['kind']} with {found['parameters']:,} parameters, of which {found['trained']:,} are trained."
    yield from (line for line in (found["vocabulary"], _learning_rate_line(recipe), _warmup_line(recipe)) if line)
    yield f"{pluralize(found['files'], 'file')}, {pluralize(found['bytes_read'], 'byte')} of training data."
    yield from _data_lines(recipe, found)
    yield (
        f"{found['tokens_a_step']:,} tokens per step, {format_speed(found['tokens_per_second'])} tokens per second "
        f"on {found['device']} with {found['runs']}: about {format_duration(found['seconds'])} for "
        f"{pluralize(recipe.train.steps, 'step')} ({', '.join(_timing_notes(recipe, found))})."
    )
    yield (
        f"Memory: {found['memory_fixed'] / megabyte:,.0f} MiB for weights, gradients and optimizer, about "
        f"{found['memory_activations'] / megabyte:,.0f} MiB for activations."
    )
    yield (
        f"Disk: up to {found['disk'] / megabyte:,.0f} MiB in {found['out']}"
        f"{', which already contains a run: continue it with --resume' if found['out_exists'] else ''}."
    )


def _data_lines(recipe: Recipe, found: dict[str, Any]) -> list[str]:
    """What the files have and what is dropped, or why that was not counted."""
    if found["data"] is not None or not recipe.data.files:
        return [] if found["data"] is None else report_lines(found["data"])
    return [f"Broken lines were not counted: the files have more than {MOST_BYTES >> 20} MiB."]


def _learning_rate_line(recipe: Recipe) -> str:
    if recipe.optimizer.learning_rate is not None:
        return ""
    return f"Peak learning rate: {recipe.peak_learning_rate:g}, the default for this optimizer, schedule and width."


def _warmup_line(recipe: Recipe) -> str:
    """A warning if the run ends before the learning rate is at its peak; inverse_sqrt and constant allow that."""
    warmup, steps = recipe.schedule.warmup, recipe.train.steps
    if warmup <= steps:
        return ""
    return (
        f"The run ends before the learning rate reaches its peak: schedule.warmup is {warmup:,}, "
        f"train.steps {steps:,}. For a short run add schedule.warmup={steps // 10}."
    )


def _timing_notes(recipe: Recipe, found: dict[str, Any]) -> Iterator[str]:
    """Yield how the time was found, and what it does not include."""
    if found["tokens_timed"]:
        yield f"measured on a sample of {found['tokens_timed']:,} tokens"
    else:
        yield "estimated from the speed of matrix products because a sample would take too long here"
    if recipe.train.compile:
        yield "without torch.compile"
    if recipe.grpo is not None:
        yield "without the time to generate answers"


def format_duration(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return pluralize(round(seconds), "second")
