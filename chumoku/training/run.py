"""`chumoku.train`: trains the model of a recipe.

runs/name/
    checkpoints/step-…   to resume from                  metrics.jsonl   all logged metrics
    best/                the lowest validation loss      loss.png        the loss curve
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

from chumoku.data.batches import MaskedBatches, WindowBatches
from chumoku.errors import UsageError, pluralize
from chumoku.models.count import count
from chumoku.models.model import Model
from chumoku.nn.plain import describe_mode, plain, plain_formulas
from chumoku.probe.plot_style import draw_loss_curve
from chumoku.text.progress import ShowProgress
from chumoku.training import checkpoint
from chumoku.training import checkpoint_files as files
from chumoku.training.average import Average
from chumoku.training.checkpoint import Checkpoints
from chumoku.training.datasets import TrainingData, prepare
from chumoku.training.distributed import World, join_world, wrap
from chumoku.training.interrupt import lock_folder
from chumoku.training.log import METRICS, Log, measure_matmul_flops, read_metrics
from chumoku.training.loop import Callback, Run, TrainEvent
from chumoku.training.next_step import suggest_next
from chumoku.training.objectives import make_objective
from chumoku.training.optimizer import Optimizer
from chumoku.training.outputs import count_trained_parameters, create_result
from chumoku.training.own_data import UNKNOWN_LENGTH, own_training_data
from chumoku.training.own_parts import OwnParts, check_trainable, own_tables
from chumoku.training.precision import DTYPES, fast_kernels
from chumoku.training.recipe import Recipe, apply_changes, read_recipe
from chumoku.training.resume import find_changed_settings, origin, resume_from_checkpoint
from chumoku.training.samples import make_sampler
from chumoku.training.scores import make_scorer
from chumoku.training.state import State
from chumoku.training.teacher import check_teacher, describe_teacher, load_teacher, shared_outputs
from chumoku.training.validation import Evaluator
from chumoku.weights.bundle import Bundle, Tokenizers
from chumoku.weights.checksums import recover_interrupted_write
from chumoku.weights.identify_model import RECIPE_FILE
from chumoku.weights.open_model import load

Examine = Callable[[TrainingData, Model], None]  # raises an error to prevent training


@dataclass(frozen=True)
class TrainResult:
    """The outcome of a run."""

    folder: Path
    ended: str  # "finished", or why it stopped early
    step: int
    best_loss: float | None  # the lowest validation loss
    seconds: float  # spent training
    signal: int | None = None  # the signal that stopped it

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
    model: Bundle | None = None,
    train_data: Any = None,
    validation_data: Any = None,
    callbacks: Sequence[Callback] = (),
    console: Console | None = None,
    examine: Examine | None = None,
    data_folder: Path | None = None,
) -> TrainResult:
    """Train the model of a recipe: a TOML file, a built-in recipe's name, a run's folder, or nested mappings.

    changes            key=value overrides, as on the command line
    resume             continue from the newest checkpoint in train.out
    model              train a copy of this Pipeline's model instead of the recipe's [model]
    train_data, validation_data
                       your own batches instead of the recipe's [data]: a list, a torch Dataset or another iterable of
                       dicts (see `training.own_data`); they need `model`, whose tokenizer is saved with the result
    callbacks          functions that are called with a `TrainEvent` after each step and after each validation
    examine            called with the data and the model before the first step of a new run; may raise an error
    data_folder        where tokenizer and tokens are stored; several runs can share it. Default: train.out/data

        chumoku.train({"train": {"out": "runs/mine", "steps": 100}}, model=chumoku.Pipeline(model, tokenizer),
                      train_data=batches, validation_data=held_out, callbacks=[lambda event: print(event.loss)])
    """
    own = train_data is not None or validation_data is not None
    if own and (train_data is None or validation_data is None or model is None):
        raise UsageError("train_data, validation_data and model go together: pass all three.")
    if model is not None:
        check_trainable(model.model)
    if not isinstance(recipe, Recipe) or changes or model is not None:
        recipe = read_recipe(apply_changes(own_tables(recipe, model, own=own), changes))
    if recipe.data.kind == "own" and not own:
        raise UsageError("data.kind = 'own' is for batches that are passed to chumoku.train(train_data=…).")
    folder = Path(recipe.train.out)
    with join_world(recipe.train) as world, ExitStack() as stack:
        if world.main:
            stack.enter_context(lock_folder(folder))
        shown = (console if console is not None else Console()) if world.main else None
        log = Log(folder, recipe.train, shown)
        stack.callback(log.close)
        stack.enter_context(plain(recipe.train.plain or plain_formulas()))
        stack.enter_context(fast_kernels(recipe.train.precision))
        parts = OwnParts(model, train_data, validation_data, callbacks, data_folder)
        run = open_run(recipe, world, log, parts, resume=resume, examine=examine)
        start_run(run, resume=resume)
        return finish_run(run, run.train())


def open_run(
    recipe: Recipe, world: World, log: Log, parts: OwnParts, *, resume: bool, examine: Examine | None = None
) -> Run:
    """Prepare the data and build the run at step 0; its folder is locked."""
    folder = Path(recipe.train.out)
    keep = max(recipe.train.keep_checkpoints, recipe.train.average_checkpoints)
    options: dict[str, Any] = {"keep": keep, "world": world, "notify": log.info, "sharded": recipe.train.sharded}
    checkpoints = Checkpoints(folder / "checkpoints", **options)
    if checkpoints.steps() and not resume:
        raise UsageError(
            f"{folder} already contains a run, at step {checkpoints.steps()[-1]:,}. Continue it with --resume, or "
            "choose another folder with train.out=…"
        )
    init = parts.model if recipe.init is None else load(recipe.init)
    teacher = load_teacher(recipe, world.device)
    tokenizers = teacher if init is None else init  # a bundle that brings its tokenizers
    if init is not None:
        config = init.config if recipe.init is None else recipe.config()
        count_trained_parameters(recipe, config)  # reports wrong LoRA targets before the corpus is prepared
    data = _prepare_data(recipe, world, log, parts, init, tokenizers)
    check_batch_share(data, world)
    for line in data.notes:
        log.info(line)
    first_examine = examine if world.main and not resume else None
    run = build_run(recipe, data, world, log, checkpoints, init, first_examine, teacher)
    run.callbacks = parts.callbacks
    if world.main:
        for place in ("best", "last"):
            recover_interrupted_write(folder / place)
        checkpoints.heal()
        checkpoint.check_disk_space(
            folder, checkpoint.disk_needed(sum(t.numel() for t in run.result.tensors().values()), recipe)
        )
    return run


def start_run(run: Run, *, resume: bool) -> None:
    """Continue from the newest checkpoint if this is a resumed run, and open the log."""
    recipe, log, folder = run.recipe, run.log, Path(run.recipe.train.out)
    if resume:
        resume_from_checkpoint(run)
    if run.world.main:
        for line in find_changed_settings(folder / RECIPE_FILE, recipe) if resume else ():
            log.info(f"Changed since the last run: {line}.")
        (folder / RECIPE_FILE).write_text(json.dumps(recipe.as_dict(), indent=1, ensure_ascii=False), "utf-8")
    if not run.state.is_last(recipe.train):
        log.info(_describe_run(run))
    log.open(run.state)


def finish_run(run: Run, ended: str) -> TrainResult:
    """Write the result of a run that ended, and close its log."""
    log, folder = run.log, Path(run.recipe.train.out)
    if run.stopped_by is None:
        write_result(run, folder)
    log.close()
    if run.world.main:
        draw_loss_curve(read_metrics(folder / METRICS), folder / "loss.png", log.unit)
    state = run.state
    where = folder / ("last" if run.stopped_by is None else "checkpoints; continue with --resume")
    advice = suggest_next(run.recipe.data.kind, run.data.config.kind, folder / "last") if run.stopped_by is None else ""
    log.info(
        f"{ended[0].upper()}{ended[1:]} at step {state.step:,} after {state.seconds:,.0f} s of training. See {where}."
        f"{advice}"
    )
    return TrainResult(folder, ended, state.step, state.best, state.seconds, run.stopped_by)


def _prepare_data(
    recipe: Recipe, world: World, log: Log, parts: OwnParts, init: Bundle | None, tokenizers: Bundle | None
) -> TrainingData:
    """The data of the run. The main process prepares it; the others wait, then open what it wrote."""
    if recipe.data.kind == "own" and init is not None:
        return own_training_data(init, parts.train_data, parts.validation_data)
    if world.main:
        with ShowProgress(log.console) as progress:
            data = prepare(recipe, tokenizers, progress, folder=parts.data_folder)
    world.barrier()
    return data if world.main else prepare(recipe, tokenizers, folder=parts.data_folder)


def _describe_run(run: Run) -> str:
    """The line before the first step: model, device, steps, data."""
    data, world, batches = run.data, run.world, len(run.data.train)
    epoch = "" if batches == UNKNOWN_LENGTH else f"{pluralize(batches, 'batch', 'batches')} per epoch, "
    return (
        f"{data.config.kind}, {run.result.description}, on {world.device}"
        f"{f' × {world.size}' if world.size > 1 else ''}: steps {run.state.step + 1:,} to "
        f"{run.recipe.train.steps:,}, {epoch}vocabulary {data.tokenizer.size:,}; runs {describe_mode()}."
    )


def build_run(
    recipe: Recipe,
    data: TrainingData,
    world: World,
    log: Log,
    checkpoints: Checkpoints,
    init: Bundle | None = None,
    examine: Examine | None = None,
    teacher: Bundle | None = None,
) -> Run:
    """The run before its first step: model, objective, optimizer and all other parts."""
    settings = recipe.train
    tokenizers = Tokenizers(data.tokenizer, data.source_tokenizer)
    result = create_result(recipe, data.config, tokenizers, init=init, device=world.device)
    model = result.model
    if examine is not None:  # before the model is wrapped
        examine(data, model)
    if teacher is None:
        objective = make_objective(recipe, model, data.tokenizer)
    else:
        check_teacher(teacher, data)
        objective = make_objective(recipe, model, teacher=teacher.model, outputs=shared_outputs(teacher))
    module = wrap(objective, settings, world, fixed_shapes=isinstance(data.train, WindowBatches | MaskedBatches))
    optimizer = Optimizer(model, recipe.optimizer)
    average = Average(model, settings.ema)
    flops = count(data.config, length=data.length).training_flops
    peak_flops = measure_matmul_flops(world.device, DTYPES[settings.precision]) * world.size
    log.unit, log.tokens_a_term = data.unit, data.tokens_a_term
    log.peak_speed = peak_flops / (flops * data.tokens_a_term)
    sharded = world.size > 1 and settings.parallel == "fsdp"
    return Run(
        recipe,
        data,
        model,
        objective,
        module,
        optimizer,
        average,
        Evaluator(module, average, data.validation, world, settings.validation_batches),
        state=State(origin=origin(recipe, data, result) | describe_teacher(recipe, teacher)),
        world=world,
        log=log,
        checkpoints=checkpoints,
        result=result,
        keep_best=lambda: checkpoint.export(result, Path(settings.out) / "best", world),
        samples=make_sampler(model, data, settings.samples if world.main and not sharded else 0),
        scores=make_scorer(model, data, settings.validation_batches) if world.main and not sharded else dict,
    )


def write_result(run: Run, folder: Path) -> None:
    """Write last/: the last weights, or the average of the last checkpoints."""
    settings = run.recipe.train
    if settings.average_checkpoints > 1:
        if run.world.main:
            for step in run.checkpoints.steps():
                run.checkpoints.check_or_set_aside(run.checkpoints.path(step))
        run.world.barrier()
        steps = run.checkpoints.steps()[-settings.average_checkpoints :]
        paths = [run.checkpoints.path(step) for step in steps]
        files.load_weights(run.result, files.average_weights(paths, run.result.tensors()))
        with run.evaluator.eval_mode():
            loss = run.evaluator.loss()
            run.notify(TrainEvent(run.state.step, run.model, validation_loss=loss))
        if loss is not None:
            worse = run.state.best is not None and loss > run.state.best
            warning = f", worse than the best single one ({run.state.best:.4f}) in {folder / 'best'}" if worse else ""
            run.log.info(
                f"The mean of the last {pluralize(len(steps), 'checkpoint')}: validation loss {loss:.4f}{warning}."
            )
    with run.evaluator.eval_mode():
        checkpoint.export(run.result, folder / "last", run.world)


def check_batch_share(data: TrainingData, world: World) -> None:
    """Raise UsageError if a batch has fewer rows than there are processes."""
    rows = data.fewest_rows
    if rows < world.size:
        raise UsageError(
            f"The smallest batch has {rows} rows, too few for {world.size} processes. Raise train.batch_size (text) or "
            "train.batch_tokens (pairs), or start fewer processes."
        )
