"""The plan of a comparison: arms whose data is prepared and whose cost is equal.

choices → recipes (checked) → tokens (prepared once for all arms that share them) → cost → adjusted recipes → jobs
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chumoku.compare.equal_cost import (
    Adjusted,
    Cost,
    adjust_cost,
    measure_batches,
    set_steps,
)
from chumoku.compare.jobs import Job
from chumoku.compare.request import Request
from chumoku.compare.step_times import read_or_measure
from chumoku.errors import UsageError
from chumoku.probe.bilingual import Words
from chumoku.text.progress import Progress
from chumoku.training.datasets import TrainingData, prepare
from chumoku.training.distributed import choose_device
from chumoku.training.recipe import Recipe, read_recipe
from chumoku.training.teacher import load_teacher
from chumoku.weights.open_model import load

REFERENCE = "recipe"
IGNORED = {  # keys of [train] that a comparison leaves out
    "patience": Words("a run that stops early would have another cost", "途中で終わると、かかるコストが変わるためです"),
    "validation_batches": Words(
        "the validation loss is that of all validation data", "検証損失は検証データ全体の値です"
    ),
}
QUIET = {"samples": 0, "tensorboard": False}  # outputs of a run that nobody looks at


@dataclass(frozen=True)
class PreparedData:
    name: str  # of its folder
    data: TrainingData

    @property
    def hash(self) -> str:
        parts = (self.data.corpus, self.data.tokenizer.fingerprint, self.data.source_tokenizer.fingerprint)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@dataclass(frozen=True)
class PlannedArm:
    name: str
    overrides: tuple[str, ...]
    adjusted: Adjusted
    prepared: PreparedData


@dataclass(frozen=True)
class Plan:
    arms: tuple[PlannedArm, ...]
    metric: str
    test_files: tuple[str, ...]
    notes: tuple[Words, ...]

    def job(self, arm: PlannedArm, *, rate: float, seed: int, share: float = 1.0) -> Job:
        """The job that trains an arm; `share` is that of its steps."""
        recipe, cost = arm.adjusted.recipe, arm.adjusted.cost
        if share < 1:
            recipe = set_steps(recipe, cost, round(cost.steps * share)).recipe
        tables = recipe.as_dict()
        train = {key: value for key, value in tables["train"].items() if key != "out"} | {"seed": seed}
        tables |= {"train": train, "optimizer": tables["optimizer"] | {"learning_rate": rate}}
        files = hashlib.sha256(b"".join(Path(name).read_bytes() for name in self.test_files)).hexdigest()
        corpus = f"{arm.prepared.hash} {files}" if self.test_files else arm.prepared.hash
        label = f"{arm.name}, learning rate {rate:g}, seed {seed}"
        return Job(tables, corpus, arm.prepared.name, self.metric, self.test_files, label, cost.batch.tokens)


def make_plan(request: Request, folder: Path, *, remote: bool, progress: Progress) -> Plan:
    """Prepare the data of every arm and make the costs equal. `remote`: the jobs choose their own device."""
    recipes, equal = request.recipes, request.equal
    reference = {} if request.reference is None else {REFERENCE: request.reference}
    every = {name: _comparable(one, remote=remote) for name, one in {**reference, **recipes}.items()}
    prepared = _prepare_all(every, folder, progress)
    costs = {
        name: Cost(prepared[name].data.config, measure_batches(one, prepared[name].data), one.train.steps)
        for name, one in every.items()
    }
    if equal == "seconds":
        for name, seconds in read_or_measure(folder, every, costs).items():
            costs[name] = replace(costs[name], seconds_a_step=seconds)
    target = next(iter(costs.values()))
    arms = []
    for choice in request.choices.arms:
        name = choice.name
        adjusted = adjust_cost(every[name], costs[name], target=target, equal=equal, by=request.adjust)
        arms.append(PlannedArm(name, (*choice.overrides, *adjusted.overrides), adjusted, prepared[name]))
    notes = (*_ignored_keys(recipes.values()), *_compare_validation(arms, request.metric))
    return Plan(tuple(arms), request.metric, request.test_files, notes)


def _ignored_keys(recipes: Any) -> list[Words]:
    given = [key for key in IGNORED if any(getattr(one.train, key) is not None for one in recipes)]
    return [
        Words(f"train.{key} is ignored: {IGNORED[key].en}.", f"train.{key} は使いません。{IGNORED[key].ja}。")
        for key in given
    ]


def _comparable(recipe: Recipe, *, remote: bool) -> Recipe:
    """The recipe as it is compared: without keys that would make runs incomparable."""
    tables = recipe.as_dict()
    learning_rate = recipe.optimizer.learning_rate
    train = {key: value for key, value in tables["train"].items() if key not in IGNORED} | QUIET
    if not remote:
        train["device"] = str(choose_device(recipe.train.device))
    optimizer = {key: value for key, value in tables["optimizer"].items() if key != "learning_rate"}
    if learning_rate is not None:  # else the default depends on the width, which may be adjusted
        optimizer["learning_rate"] = learning_rate
    return read_recipe({**tables, "train": train, "optimizer": optimizer})


def _prepare_all(recipes: Mapping[str, Recipe], folder: Path, progress: Progress) -> dict[str, PreparedData]:
    """The data of each recipe. Recipes whose data is the same share a folder, in which it is prepared once."""
    prepared = {}
    for name, recipe in recipes.items():
        key = _data_name(recipe)
        tokenizers = load(recipe.init) if recipe.init is not None else load_teacher(recipe, choose_device("cpu"))
        data = prepare(recipe, tokenizers, progress, folder=folder / "data" / key)
        prepared[name] = PreparedData(key, data)
    return prepared


def _data_name(recipe: Recipe) -> str:
    """A hash of all settings that decide what the prepared files contain."""
    tables, config = recipe.as_dict(), recipe.config()
    settings = {key: tables.get(key) for key in ("data", "tokenizer")}
    settings["model"] = [recipe.init, config.kind, config.context, config.max_seq_length, repr(config.prompts)]
    settings["teacher"] = tables.get("distillation", {}).get("teacher")
    settings["length"] = recipe.train.sequence_length
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def _compare_validation(arms: Sequence[PlannedArm], metric: str) -> list[Words]:
    """Notes about arms with different validation data; UsageError if their losses mean different things."""
    if metric != "loss":
        return []
    if len({arm.prepared.data.tokenizer.fingerprint for arm in arms}) > 1:
        raise UsageError(
            "The arms have different tokenizers, so their losses per token cannot be compared. Give all of them one "
            "tokenizer with tokenizer.file=…, or choose another --metric."
        )
    settings = {_validation_key(arm): arm.prepared.data for arm in arms}
    if len(settings) > 1 and len({_hash_validation(data) for data in settings.values()}) > 1:
        return [
            Words(
                "The arms are validated on different batches (lengths, rows or files differ); compare with care.",
                "選択肢によって検証のバッチ（長さ、行数、ファイル）が異なります。比較には注意してください。",
            )
        ]
    return []


def _validation_key(arm: PlannedArm) -> tuple[str, int, int]:
    """What decides the validation batches; only different ones need a look at the batches themselves."""
    return arm.prepared.name, arm.adjusted.recipe.train.batch_size, arm.adjusted.recipe.train.batch_tokens


def _hash_validation(data: TrainingData) -> str:
    found = hashlib.sha256()
    for index in range(len(data.validation)):
        batch = data.validation.batch(0, index)
        for key in sorted(batch):
            found.update(batch[key].contiguous().numpy().tobytes())
    return found.hexdigest()
