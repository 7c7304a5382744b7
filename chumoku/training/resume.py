"""Resuming a run: the newest intact checkpoint, and the settings and data that must be those of its first step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from chumoku.config import settings_to_dict
from chumoku.data.span_corruption import SpanBatches
from chumoku.errors import UsageError
from chumoku.training import checkpoint
from chumoku.training import checkpoint_files as files
from chumoku.training.datasets import TrainingData
from chumoku.training.distributed import distribute_like
from chumoku.training.loop import Run
from chumoku.training.outputs import Result, hash_base_weights
from chumoku.training.recipe import Recipe, renamed_tables


def resume_from_checkpoint(run: Run) -> None:
    """Load the newest intact checkpoint; UsageError if it belongs to a run with other settings or data."""
    before = len(run.checkpoints.steps())
    run.world.barrier()
    if run.world.main:
        run.checkpoints.newest()  # renames damaged ones to .bad
    run.world.barrier()
    if before and not run.checkpoints.steps():
        raise UsageError(
            f"Every checkpoint in {run.checkpoints.folder} is damaged; they were renamed to .bad. To start again, "
            "choose another train.out, or move that folder away."
        )
    if not before:
        run.log.info("There is no checkpoint to resume; the run starts at step 1.")
        return
    path = run.checkpoints.path(run.checkpoints.steps()[-1])
    state = files.read_state(path)
    changed = checkpoint.find_differences(renamed_tables(state.origin), run.state.origin)
    if changed:
        raise UsageError(
            f"{path} belongs to another run, so it cannot be resumed:\n"
            + "\n".join(f"  {line}" for line in changed)
            + "\nChange these back (corpus or tokenizer: the text has changed), or choose another train.out."
        )
    if state.step > run.recipe.train.steps:
        raise UsageError(f"{path} is at step {state.step:,}, beyond train.steps = {run.recipe.train.steps:,}.")
    tensors = files.read_tensors(path)
    needed = files.Tensors(run.result.tensors(), run.optimizer.empty_state(), run.average.tensors)
    files.check_tensors(path, tensors, needed)
    files.load_weights(run.result, tensors.model)
    known = dict(run.model.named_parameters())
    run.optimizer.load(
        {
            key: distribute_like(known[key.rpartition(":")[0]], value) if value.ndim else value
            for key, value in tensors.optimizer.items()
        }
    )
    run.average.load({name: distribute_like(known[name], value) for name, value in tensors.average.items()})
    vars(run.state).update(vars(state))
    if state.step == run.recipe.train.steps:
        run.log.info(f"Resumed from {path}. It is finished; raise train.steps to continue.")
    elif state.out_of_patience(run.recipe.train):
        run.log.info(f"Resumed from {path}. It stopped early and is finished; raise train.patience to continue.")
    else:
        run.log.info(f"Resumed from {path}.")


def find_changed_settings(path: Path, recipe: Recipe) -> list[str]:
    """The differences between a recipe and the one stored at `path`."""
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return []
    now = json.loads(json.dumps(recipe.as_dict()))
    return checkpoint.find_differences(renamed_tables(before), now) if isinstance(before, dict) else []


def origin(recipe: Recipe, data: TrainingData, result: Result) -> dict[str, Any]:
    """The settings and data of a run that must not change when it is resumed."""
    train = settings_to_dict(recipe.train)
    data_keys = ("separate_documents", "mask_probability")
    spans = {"mean_span_length": recipe.data.mean_span_length} if isinstance(data.train, SpanBatches) else {}
    train_keys = ("batch_size", "sequence_length", "batch_tokens", "gradient_accumulation", "seed", "ema", "precision")
    return {
        "model": settings_to_dict(data.config),
        "tokenizer": data.tokenizer.fingerprint,
        "source_tokenizer": data.source_tokenizer.fingerprint,
        "corpus": data.corpus,
        "data": {key: getattr(recipe.data, key) for key in data_keys}
        | {"validation_share": recipe.data.held_out}
        | spans,
        "train": {key: train.get(key) for key in train_keys} | ({"packing": True} if recipe.train.packing else {}),
        "optimizer": {"kind": recipe.optimizer.kind},
        **({} if recipe.preference is None else {"preference": settings_to_dict(recipe.preference)}),
        **({} if recipe.grpo is None else {"grpo": settings_to_dict(recipe.grpo)}),
        **({} if recipe.lora is None else {"lora": {**settings_to_dict(recipe.lora), **hash_base_weights(result)}}),
    }
