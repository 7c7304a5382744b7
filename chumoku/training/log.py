"""The output of a run: a progress bar, metrics.jsonl, and TensorBoard files if enabled.

The bar shows step, loss, tokens per second, the share of the machine's matmul peak, the learning rate and the time
left. If the output is not a terminal, a line is printed every few seconds instead. Steps are logged as often as
train.log_every says, and at least every LOG_SECONDS.

tokens per second counts all tokens that the model reads; if it learns only some of them (the answers of a chat, the
masked ones), their number is shown too.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from chumoku.errors import MissingExtraError
from chumoku.messages import translate
from chumoku.training.settings import TrainSettings
from chumoku.training.state import State

METRICS = "metrics.jsonl"
LOG_SECONDS = 10.0  # between printed lines if there is no bar; between logged steps at most
SLOW_PRODUCT = 0.1  # seconds


def start_progress_bar(console: Console, *, total: int, done: int) -> Progress:
    """Start a bar with the count, a description and the time left."""
    bar = Progress(
        TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
        BarColumn(bar_width=None),
        TextColumn("{task.description}"),
        TimeRemainingColumn(compact=True),
        console=console,
        expand=True,
    )
    bar.add_task("…", total=total, completed=done)
    bar.start()
    return bar


class Log:
    """Shows and stores the progress of a run. Without a console (on other processes) it does nothing."""

    def __init__(self, folder: Path, settings: TrainSettings, console: Console | None) -> None:
        self.folder, self.console = folder, console
        self.steps, self._every = settings.steps, settings.log_every
        self.unit = "tokens"  # what the loss is a mean over
        self.tokens_a_term = 1.0  # tokens that the model reads for one of these
        self.peak_speed = math.nan  # units per second if everything ran as fast as a matrix product
        self._tensorboard = _tensorboard(folder) if settings.tensorboard and console is not None else None
        self._file: Any = None
        self._bar: Progress | None = None
        self._last_line_at, self._last_step_at, self._console_closed = 0.0, math.inf, False

    def open(self, state: State) -> None:
        """Open the files. Metrics that an interrupted run wrote after `state.step` are removed."""
        if self.console is None:
            return
        path = self.folder / METRICS
        entries = [line for line in read_metrics(path) if line["step"] <= state.step]
        fresh = path.with_suffix(".writing")
        fresh.write_text("".join(json.dumps(line) + "\n" for line in entries), encoding="utf-8")
        fresh.replace(path)
        self._file = path.open("a", encoding="utf-8")
        self._last_step_at = time.monotonic()
        if self.console.is_terminal:
            self._bar = start_progress_bar(self.console, total=self.steps, done=state.step)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._tensorboard is not None:
            self._tensorboard.close()

    def info(self, sentence: str) -> None:
        """Show a sentence in the user's language."""
        self.show(translate(sentence))

    def show(self, text: str) -> None:
        """Show a text as it is, such as the output of a model."""
        if self.console is None or self._console_closed:
            return
        try:
            self.console.print(escape(text), highlight=False, soft_wrap=True)
        except (OSError, SystemExit):  # rich exits when the pipe is closed; training continues
            self._console_closed = True

    def step(
        self, state: State, *, loss: float, norm: float, rate: float, speed: float, metrics: Mapping[str, float] = {}
    ) -> None:
        """Log a training step, if it is time to; `metrics` are those of the objective."""
        now = time.monotonic()
        if state.step % self._every and state.step != self.steps and now - self._last_step_at < LOG_SECONDS:
            return
        self._last_step_at = now
        values = {"loss": loss, "norm": norm, "rate": rate, "tokens": state.tokens, "seconds": state.seconds}
        # The peak is the matrix product measured at the start, or the fastest step if one was faster.
        self.peak_speed = max(self.peak_speed, speed)
        values |= {"tokens_per_second": speed * self.tokens_a_term, "peak_share": speed / self.peak_speed}
        self._write({"step": state.step, **values, **metrics})
        parts = [f"loss {loss:.4f}", *_describe(metrics), self._describe_speed(speed)]
        shown = " · ".join([*parts, f"{values['peak_share']:.0%} of peak", f"learning rate {rate:.1e}"])
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=state.step, description=translate(shown))
        elif self.console is not None and now - self._last_line_at >= LOG_SECONDS:
            self._last_line_at = now
            left = (self.steps - state.step) * state.seconds / state.step
            self.info(" · ".join([f"step {state.step:,}/{self.steps:,}", shown, f"{left:,.0f} s left"]))

    def _describe_speed(self, speed: float) -> str:
        if self.unit != "tokens" or self.tokens_a_term == 1:
            return f"{format_speed(speed)} {self.unit}/s"
        return f"{format_speed(speed * self.tokens_a_term)} tokens/s, {format_speed(speed)} of them learned"

    def validation(
        self,
        step: int,
        loss: float,
        *,
        bytes_a_token: float | None,
        best: bool,
        metrics: Mapping[str, float] = {},
        scores: Mapping[str, float] = {},
    ) -> None:
        """Log a validation; `metrics` are those of the objective, `scores` those of the model's labels."""
        values, words = {"validation_loss": loss}, [f"validation loss {loss:.4f}"]
        for name, value in metrics.items():
            values[f"validation_{name}"] = value
            words.append(f"{name.replace('_', ' ')} {value:.3f}")
        if self.unit == "tokens":
            values["perplexity"] = math.exp(min(loss, 700.0))
            words.append(f"perplexity {values['perplexity']:,.2f}")
        if bytes_a_token:
            values["bits_per_byte"] = loss / math.log(2) / bytes_a_token
            words.append(f"{values['bits_per_byte']:.3f} bits per byte")
        words += [f"{name.replace('_', ' ')} {value:.4f}" for name, value in scores.items()]
        self._write({"step": step, **values, **scores})
        shown = f"step {step:,}: {', '.join(words)}"
        self.info(f"{shown} (the best so far)" if best else shown)

    def _write(self, values: dict[str, float]) -> None:
        if self._file is None:
            return
        finite = {key: value if math.isfinite(value) else None for key, value in values.items()}
        try:
            self._file.write(json.dumps(finite) + "\n")
            self._file.flush()
        except OSError as error:  # a full disk does not stop the run
            self.info(f"{self.folder / METRICS} could not be written: {error.strerror}.")
        if self._tensorboard is not None:
            for key in values.keys() - {"step"}:
                self._tensorboard.add_scalar(key, values[key], int(values["step"]))


def _describe(metrics: Mapping[str, float]) -> list[str]:
    return [f"{name.replace('_', ' ')} {value:.3f}" for name, value in metrics.items()]


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The entries of a metrics file; a line cut off by a crash is skipped."""
    lines = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(values, dict) and isinstance(values.get("step"), int):
            lines.append(values)
    return lines


def measure_matmul_flops(device: torch.device, dtype: torch.dtype) -> float:
    """The peak FLOP/s of the device: the best of a few square matrix products.

    A CPU without instructions for a 16-bit type is so slow that the larger products are left out.
    """
    best = 0.0
    for size in (8192,) if device.type == "cuda" else (128, 256, 512, 1024):
        a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        for _ in range(6):
            synchronize(device)
            start = time.perf_counter()
            a @ b
            synchronize(device)
            seconds = time.perf_counter() - start
            best = max(best, 2 * size**3 / seconds)
            if seconds > SLOW_PRODUCT and device.type == "cpu":  # a GPU's first product waits for its libraries
                return best
    return best


def format_speed(speed: float) -> str:
    """A number of tokens per second for people: 7,203 or 0.14."""
    return f"{speed:,.0f}" if speed >= 10 else f"{speed:.2g}"


def synchronize(device: torch.device) -> None:
    """Wait for the device's kernels, so that a clock measures them."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _tensorboard(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingExtraError(
            "train.tensorboard needs the tensorboard package: pip install 'chumoku[tensorboard]'."
        ) from error
    return SummaryWriter(str(folder / "tensorboard"))
