"""Taps: record or replace tensors inside a model by their addresses.

    with record(model, "decoder.blocks.*.attention.weights") as tape:
        model(tokens)
    tape["decoder.blocks.0.attention.weights"]

A module lists its tensors in `TAPS` and passes each through `tap(self, name, tensor)`. The address is the module's path
in the model plus that name. Without an active tape, a tap only checks an empty tuple. A tape does not change results:
attention weights, which the fused kernel does not return, are computed separately. `edit` replaces tensors.

Addresses in the order of computation (`addresses` lists those of a model):

    decoder.token_embedding, .position (if added to it), .embedding (x₀), .norm, logits, vector
    decoder.blocks.0.attention_norm, .after_attention, .feedforward_norm, .output       the residual stream
      .attention.queries, .keys, .values, .scores, .masked_scores, .weights, .heads, .output
      .feedforward.pre_activation, .hidden, .output; with experts also .router, .chosen
      .cross_attention_norm, .cross_attention…, .after_cross_attention                  with an encoder

Scores include the position bias; masked scores have the lowest finite number at hidden keys. With a gate, the
pre-activation is x W_gate.

In a pattern, * matches one part of an address, ** any number of parts, {a,b} either a or b.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

from chumoku.errors import AddressError, did_you_mean
from chumoku.nn.html_view import html_table
from chumoku.nn.modules import unwrap_compiled
from chumoku.nn.record_check import compare_with_unrecorded, debug_enabled, recording_suspended

# Replaced, never changed in place, because other threads may be iterating over it.
_tapes: tuple[Tape, ...] = ()
_lock = threading.Lock()
_eager: object | None = None


class Tape(Mapping[str, Tensor]):
    """The recorded tensors by address: the latest of each; `history` has all, one per forward pass."""

    def __init__(self, model: nn.Module, selected: frozenset[str]) -> None:
        self.history: dict[str, list[Tensor]] = {}
        self._paths = {module: path for path, module in model.named_modules()}
        self._selected = selected
        self._thread = threading.get_ident()

    # Compared by identity: a mapping would compare tensors.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @property
    def in_this_thread(self) -> bool:
        return self._thread == threading.get_ident()

    def is_active(self, module: nn.Module, name: str) -> bool:
        """Return True if this tape records the tensor `name` of the module now."""
        return not recording_suspended() and self.selects(module, name)

    def selects(self, module: nn.Module, name: str) -> bool:
        return self.in_this_thread and self._address(module, name) in self._selected

    def observes(self, model: nn.Module) -> bool:
        return not recording_suspended() and self.in_this_thread and model in self._paths

    def process(self, module: nn.Module, name: str, tensor: Tensor) -> Tensor:
        """Store a copy of the tensor and return the tensor itself."""
        self.history.setdefault(self._address(module, name), []).append(tensor.detach().clone())
        return tensor

    def _address(self, module: nn.Module, name: str) -> str:
        # A module of another model has no path here; "?" occurs in no address.
        path = self._paths.get(module, "?")
        return f"{path}.{name}" if path else name

    def __getitem__(self, address: str) -> Tensor:
        if address not in self.history:
            hint = did_you_mean(address, self.history, f"{len(self.history)} addresses were recorded.")
            raise AddressError(f"Nothing was recorded at {address}. {hint}")
        return self.history[address][-1]

    def __contains__(self, address: object) -> bool:
        return address in self.history

    def __iter__(self) -> Iterator[str]:
        return iter(self.history)

    def __len__(self) -> int:
        return len(self.history)

    def _repr_html_(self) -> str:
        """The addresses with shape, mean and largest magnitude of their latest tensors, as a table for notebooks."""
        return html_table(("address", "shape", "mean", "max |x|"), (_describe(key, self[key]) for key in self))


def _describe(address: str, tensor: Tensor) -> tuple[str, str, str, str]:
    numbers = tensor.float()
    sizes = (f"{numbers.mean():.3g}", f"{numbers.abs().max():.3g}") if numbers.numel() else ("", "")
    return address, str(list(tensor.shape)), *sizes


class Edits(Tape):
    """A tape that records nothing and replaces tensors."""

    def __init__(self, model: nn.Module, changes: Mapping[str, Callable[[Tensor], Tensor]]) -> None:
        super().__init__(model, frozenset(changes))
        self._changes = changes

    # Edits also apply inside `without_recording`.
    is_active = Tape.selects

    def observes(self, model: nn.Module) -> bool:
        return self.in_this_thread and model in self._paths

    def process(self, module: nn.Module, name: str, tensor: Tensor) -> Tensor:
        return self._changes[self._address(module, name)](tensor)


def tap(module: nn.Module, name: str, tensor: Tensor) -> Tensor:
    """Pass a tensor to the active tapes; return it, or its replacement inside `edit`."""
    if _tapes and not torch.compiler.is_compiling():
        for tape in _tapes:
            if tape.is_active(module, name):
                tensor = tape.process(module, name, tensor)
    return tensor


def is_recording() -> bool:
    """Return True if this thread is inside `record` or `edit`."""
    return any(tape.in_this_thread for tape in _tapes)


def is_editing() -> bool:
    """Return True if this thread is inside `edit`."""
    return any(tape.in_this_thread for tape in _tapes if isinstance(tape, Edits))


def observed(model: nn.Module) -> bool:
    """Return True if this thread records or edits this model now; inside `without_recording`, only if it edits it."""
    return any(tape.observes(model) for tape in _tapes)


def is_recorded(module: nn.Module, *names: str) -> bool:
    """Return True if one of these tensors is recorded now; check it before computing a tensor only to record it."""
    if not _tapes or torch.compiler.is_compiling():
        return False
    return any(tape.is_active(module, name) for tape in _tapes for name in names)


@contextlib.contextmanager
def record(model: nn.Module, *patterns: str, debug: bool | None = None) -> Iterator[Tape]:
    """Record the tensors whose addresses match any of the patterns; without patterns, all tensors.

    Only forward passes of this model in this thread are recorded. Meanwhile compiled models run in eager mode, because
    compiled code has no taps. In debug mode every pass is compared with one that is not recorded.

    debug: True or False; None uses the environment variable CHUMOKU_DEBUG.
    """
    model = unwrap_compiled(model)
    tape = Tape(model, frozenset(select(addresses(model), patterns or ("**",))))
    _open(tape)
    try:
        with compare_with_unrecorded(model) if debug_enabled(debug) else contextlib.nullcontext():
            yield tape
    finally:
        _close(tape)


@contextlib.contextmanager
def edit(model: nn.Module, changes: Mapping[str, Callable[[Tensor], Tensor]]) -> Iterator[None]:
    """Replace tensors in forward passes of this model in this thread: each pattern has a function tensor → tensor.

    A tape opened inside records the replaced tensors, one opened outside the original ones. Replacing a tensor that is
    computed only for recording, such as attention weights, has no effect; `probe.editing` lists them.
    """
    model = unwrap_compiled(model)
    known = addresses(model)
    edits = Edits(model, {address: changes[pattern] for pattern in changes for address in select(known, (pattern,))})
    _open(edits)
    try:
        yield
    finally:
        _close(edits)


def _open(tape: Tape) -> None:
    global _tapes, _eager
    with _lock:
        if not _tapes and "torch._dynamo" in sys.modules:
            _eager = torch.compiler.set_stance("force_eager")
        _tapes = (*_tapes, tape)


def _close(tape: Tape) -> None:
    """Remove a tape; the last one switches compilation on again."""
    global _tapes, _eager
    with _lock:
        _tapes = tuple(other for other in _tapes if other is not tape)
        if not _tapes and _eager is not None:
            torch.compiler.set_stance("default")
            _eager = None


def addresses(model: nn.Module) -> list[str]:
    """Return all addresses of a model, in the order of its modules."""
    found = []
    for path, module in model.named_modules():
        for name in getattr(module, "TAPS", ()):
            # A tap with the name of a submodule exists only if the submodule does.
            if getattr(module, name, ...) is not None:
                found.append(f"{path}.{name}" if path else name)
    return found


def select(known: list[str], patterns: tuple[str, ...]) -> list[str]:
    """Return the addresses that match any pattern; raise AddressError for a pattern without matches."""
    chosen: set[str] = set()
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise AddressError(
                f"A pattern must be a string, such as 'decoder.norm', not {pattern!r}. Pass each pattern separately."
            )
        matching = [address for address in known if matches(pattern, address)]
        if not matching:
            hint = did_you_mean(pattern, known, f"It has {len(known)} addresses.", cutoff=0.3)
            raise AddressError(f"No address of this model matches {pattern}. {hint}")
        chosen.update(matching)
    return [address for address in known if address in chosen]


def matches(pattern: str, address: str) -> bool:
    """Return True if an address matches a pattern of *, ** and {a,b}."""
    return _to_regex(pattern).fullmatch(address) is not None


@functools.cache
def _to_regex(pattern: str) -> re.Pattern[str]:
    if re.search(r"[{}]", re.sub(r"\{[^{}]*\}", "", pattern)):
        raise AddressError(f"The braces in {pattern} are not balanced. Write alternatives as in {{0,1}}.")
    parts = re.split(r"(\*\*\.|\*\*|\*|\{[^{}]*\})", pattern)
    return re.compile("".join(_part_to_regex(part) for part in parts))


def _part_to_regex(part: str) -> str:
    if part.startswith("{"):
        return "(?:" + "|".join(_to_regex(choice).pattern for choice in part[1:-1].split(",")) + ")"
    return {"**.": r"(?:.*\.)?", "**": ".*", "*": r"[^.]*"}.get(part, re.escape(part))
