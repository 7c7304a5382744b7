"""`chumoku.train`: a recipe becomes a run, and a run becomes a model.

runs/name/
    checkpoints/step-…   what a run goes on from         metrics.jsonl   every number that was told
    best/                the lowest validation loss      loss.png        the same as a picture
    last/                the result: the last weights,   data/           tokenizer and tokens
                         or their average
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from chumoku.config import override, write
from chumoku.errors import UsageError, counted
from chumoku.models.count import count
from chumoku.models.model import Model
from chumoku.nn.plain import plain, plain_formulas, running
from chumoku.probe.plot_style import draw_loss_curve
from chumoku.text.progress import ShowProgress
from chumoku.training import checkpoint
from chumoku.training.average import Average
from chumoku.training.checkpoint import Checkpoints
from chumoku.training.checkpoint_files import Tensors, check_tensors, mean, read_state, read_tensors, restore
from chumoku.training.dataset import Material, prepare
from chumoku.training.distributed import World, laid_out_as, world, wrap
from chumoku.training.interrupt import locked
from chumoku.training.log import METRICS, Log, matrix_peak, read_metrics
from chumoku.training.loop import Run
from chumoku.training.objectives import Objective
from chumoku.training.optimizer import Optimizer
from chumoku.training.outputs import Result, digest, made, trained_numbers
from chumoku.training.precision import DTYPES
from chumoku.training.recipe import RECIPE, Recipe, load_recipe, read_recipe, renamed_tables
from chumoku.training.samples import sampler
from chumoku.training.state import State
from chumoku.training.validation import Judge
from chumoku.weights.bundle import Bundle, Tokenizers
from chumoku.weights.checksums import heal
from chumoku.weights.open_model import load

Examine = Callable[[Material, Model], None]  # raises where a model should not be trained


@dataclass(frozen=True)
class Trained:
    """What a run left."""

    folder: Path
    ended: str  # "finished", or why it stopped before
    step: int
    best_loss: float | None  # the lowest validation loss
    seconds: float  # spent training
    signal: int | None = None  # that ended it

    @property
    def finished(self) -> bool:
        return self.signal is None

    @property
    def exit_code(self) -> int:
        return 0 if self.signal is None else 128 + self.signal

    @property
    def last(self) -> Path:
        return self.folder / "last"

    @property
    def best(self) -> Path:
        return self.folder / "best"


def train(
    recipe: Recipe | Mapping[str, Any] | Path | str,
    changes: Sequence[str] = (),
    *,
    resume: bool = False,
    console: Console | None = None,
    examine: Examine | None = None,
) -> Trained:
    """Train what a recipe (a TOML file, or nested mappings) describes; `resume` goes on where it stopped.

    `examine` is shown corpus and model before a run's first step.
    """
    if isinstance(recipe, (str, Path)):
        recipe = load_recipe(recipe, changes)
    elif not isinstance(recipe, Recipe):
        recipe = read_recipe(override(recipe, changes))
    folder = Path(recipe.train.out)
    with world(recipe.train) as here, ExitStack() as stack:
        if here.main:
            stack.enter_context(locked(folder))
        shown = (console if console is not None else Console()) if here.main else None
        log = Log(folder, recipe.train, shown)
        stack.callback(log.close)
        stack.enter_context(plain(recipe.train.plain or plain_formulas()))
        return _train(recipe, folder, here, log, resume=resume, examine=examine)


def _train(
    recipe: Recipe, folder: Path, here: World, log: Log, *, resume: bool, examine: Examine | None = None
) -> Trained:
    keep = max(recipe.train.keep, recipe.train.average)
    checkpoints = Checkpoints(folder / "checkpoints", keep=keep, here=here, say=log.say, sharded=recipe.train.sharded)
    if checkpoints.steps() and not resume:
        raise UsageError(
            f"{folder} already holds a run, at step {checkpoints.steps()[-1]:,}. Go on with --resume, or choose "
            "another folder with train.out=…"
        )
    init = None if recipe.init is None else load(recipe.init)
    if init is not None:
        trained_numbers(recipe, init.config)  # before the corpus is prepared
    if here.main:
        with ShowProgress(log.console) as progress:
            material = prepare(recipe, init, progress)
    here.wait()
    if not here.main:
        material = prepare(recipe, init)
    check_shareable(material, here)
    run = assemble(recipe, material, here, log, checkpoints, init, examine if here.main and not resume else None)
    if here.main:
        for place in ("best", "last"):
            heal(folder / place)
        checkpoints.heal()
        checkpoint.check_room(
            folder, checkpoint.bytes_kept(sum(t.numel() for t in run.result.tensors().values()), recipe)
        )
    if resume:
        take_up(run)
    if here.main:
        for line in changed_settings(folder / RECIPE, recipe) if resume else ():
            log.say(f"Changed since it was last run: {line}.")
        (folder / RECIPE).write_text(json.dumps(recipe.as_dict(), indent=1, ensure_ascii=False), "utf-8")
    log.say(
        f"{material.config.kind}, {run.result.told}, on {here.device}"
        f"{f' × {here.size}' if here.size > 1 else ''}: steps {run.state.step + 1:,} to {recipe.train.steps:,}, "
        f"{counted(len(material.train), 'batch', 'batches')} an epoch, vocabulary {material.tokenizer.size:,}; "
        f"runs {running()}."
    )
    log.open(run.state)
    ended = run.go()
    if run.stopped_by is None:
        finish(run, folder)
    log.close()
    if here.main:
        draw_loss_curve(read_metrics(folder / METRICS), folder / "loss.png")
    state = run.state
    where = folder / ("last" if run.stopped_by is None else "checkpoints; --resume goes on from there")
    log.say(
        f"{ended[0].upper()}{ended[1:]} at step {state.step:,} after {state.seconds:,.0f} s of training. See {where}."
    )
    return Trained(folder, ended, state.step, state.best, state.seconds, run.stopped_by)


def assemble(
    recipe: Recipe,
    material: Material,
    here: World,
    log: Log,
    checkpoints: Checkpoints,
    init: Bundle | None = None,
    examine: Examine | None = None,
) -> Run:
    """The model and everything around it, before its first step."""
    settings = recipe.train
    tokenizers = Tokenizers(material.tokenizer, material.source_tokenizer)
    result = made(recipe, material.config, tokenizers, init=init, device=here.device)
    model = result.model
    if examine is not None:  # while the model is nobody else's
        examine(material, model)
    objective = Objective(model, smoothing=settings.smoothing, balance=settings.balance, router_z=settings.router_z)
    module = wrap(objective, settings, here)
    optimizer = Optimizer(model, recipe.optimizer)
    average = Average(model, settings.ema)
    flops = count(material.config, length=material.length).training_flops
    log.tokens_at_peak = matrix_peak(here.device, DTYPES[settings.precision]) * here.size / flops
    divided = here.size > 1 and settings.parallel == "fsdp"
    return Run(
        recipe,
        material,
        model,
        objective,
        module,
        optimizer,
        average,
        Judge(module, average, material.validation, here, settings.validation_batches),
        state=State(origin=origin(recipe, material, result)),
        here=here,
        log=log,
        checkpoints=checkpoints,
        result=result,
        keep_best=lambda: checkpoint.export(result, Path(settings.out) / "best", here),
        samples=sampler(model, material, settings.samples if here.main and not divided else 0),
    )


def take_up(run: Run) -> None:
    """Go on from the newest checkpoint that is whole; a run made of something else is refused."""
    before = len(run.checkpoints.steps())
    run.here.wait()
    if run.here.main:
        run.checkpoints.newest()  # sets damaged ones aside
    run.here.wait()
    if before and not run.checkpoints.steps():
        raise UsageError(
            f"Every checkpoint in {run.checkpoints.folder} is damaged; they are kept as .bad. To begin again, choose "
            "another train.out, or move that folder away."
        )
    if not before:
        run.log.say("There is no checkpoint to resume; the run starts at its first step.")
        return
    path = run.checkpoints.path(run.checkpoints.steps()[-1])
    state = read_state(path)
    changed = checkpoint.differences(renamed_tables(state.origin), run.state.origin)
    if changed:
        raise UsageError(
            f"{path} belongs to another run, so it cannot be resumed:\n"
            + "\n".join(f"  {line}" for line in changed)
            + "\nSet these back (corpus and tokenizer: the text has changed), or choose another train.out."
        )
    if state.step > run.recipe.train.steps:
        raise UsageError(f"{path} is at step {state.step:,}, beyond train.steps = {run.recipe.train.steps:,}.")
    tensors = read_tensors(path)
    check_tensors(path, tensors, Tensors(run.result.tensors(), run.optimizer.like(), run.average.tensors))
    restore(run.result, tensors.model)
    known = dict(run.model.named_parameters())
    run.optimizer.load(
        {
            key: laid_out_as(known[key.rpartition(":")[0]], value) if value.ndim else value
            for key, value in tensors.optimizer.items()
        }
    )
    run.average.load({name: laid_out_as(known[name], value) for name, value in tensors.average.items()})
    vars(run.state).update(vars(state))
    done = state.step == run.recipe.train.steps
    run.log.say(f"Resumed from {path}.{' Nothing is left to do; raise train.steps to go on.' if done else ''}")


def finish(run: Run, folder: Path) -> None:
    """Write the result: the last weights, or the average that was asked for."""
    settings = run.recipe.train
    if settings.average > 1:
        if run.here.main:
            for step in run.checkpoints.steps():
                run.checkpoints.is_whole(run.checkpoints.path(step))
        run.here.wait()
        steps = run.checkpoints.steps()[-settings.average :]
        restore(run.result, mean([run.checkpoints.path(step) for step in steps], run.result.tensors()))
        with run.judge.at_rest():
            loss = run.judge.loss()
        if loss is not None:
            worse = run.state.best is not None and loss > run.state.best
            warning = f", worse than the best single one ({run.state.best:.4f}): see {folder / 'best'}" if worse else ""
            run.log.say(
                f"The mean of the last {counted(len(steps), 'checkpoint')}: validation loss {loss:.4f}{warning}."
            )
    with run.judge.at_rest():
        checkpoint.export(run.result, folder / "last", run.here)


def changed_settings(path: Path, recipe: Recipe) -> list[str]:
    """Where a recipe differs from the one that a run was last run with."""
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return []
    now = json.loads(json.dumps(recipe.as_dict()))
    return checkpoint.differences(renamed_tables(before), now) if isinstance(before, dict) else []


def origin(recipe: Recipe, material: Material, result: Result) -> dict[str, Any]:
    """What a run is made of: with any of this changed, it would be another run."""
    train = write(recipe.train)
    same = ("batch", "length", "tokens", "accumulate", "seed", "ema", "precision")
    return {
        "model": write(material.config),
        "tokenizer": material.tokenizer.fingerprint,
        "source_tokenizer": material.source_tokenizer.fingerprint,
        "corpus": material.corpus,
        "data": {"separate": recipe.data.separate, "hidden": recipe.data.hidden, "validation": recipe.data.held_out},
        "train": {key: train.get(key) for key in same},
        "optimizer": {"kind": recipe.optimizer.kind},
        **({} if recipe.lora is None else {"lora": {**write(recipe.lora), **digest(result)}}),
    }


def check_shareable(material: Material, here: World) -> None:
    """Refuse, before the first step, batches that are too small to be shared out."""
    rows = material.fewest_rows
    if rows < here.size:
        raise UsageError(
            f"The smallest batch has {rows} rows and {here.size} processes are to share it. Raise train.batch (text) "
            "or train.tokens (pairs), or start fewer processes."
        )
