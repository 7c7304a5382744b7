"""Taps: every tensor worth looking at has an address.

    with record(model, "decoder.blocks.*.attention.weights") as tape:
        model(tokens)
    tape["decoder.blocks.0.attention.weights"]

A module names its tensors in `TAPS` and passes each through `tap(self, name, tensor)`; the address is the module's
own path in the model plus that name. When nobody records, a tap is one look at an empty list. A tape keeps what it
saw and changes nothing: attention weights, which the fused kernel never forms, are computed beside it. Who wants to
change something says so: `edit` hands a module another tensor than it computed.

In a pattern, * stands for one part of an address, ** for any number, {a,b} for either.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

from chumoku.errors import AddressError
from chumoku.nn.record_check import compare_with_unrecorded, debug_enabled, recording_suspended

# Replaced as a whole, never changed in place: other threads may be going through it.
_tapes: tuple[Tape, ...] = ()
_lock = threading.Lock()
_eager: object | None = None


class Tape(Mapping[str, Tensor]):
    """What was recorded: address → tensor (the latest; `history` has all, one per forward pass)."""

    def __init__(self, model: nn.Module, wanted: frozenset[str]) -> None:
        self.history: dict[str, list[Tensor]] = {}
        self._paths = {module: path for path, module in model.named_modules()}
        self._wanted = wanted
        self._thread = threading.get_ident()

    # Two tapes are never "equal": what a mapping compares would be tensors.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @property
    def here(self) -> bool:
        """Whether it is this thread that is recorded."""
        return self._thread == threading.get_ident()

    def wants(self, module: nn.Module, name: str) -> bool:
        return not recording_suspended() and self.concerns(module, name)

    def concerns(self, module: nn.Module, name: str) -> bool:
        return self.here and self._address(module, name) in self._wanted

    def observes(self, model: nn.Module) -> bool:
        return not recording_suspended() and self.here and model in self._paths

    def keep(self, module: nn.Module, name: str, tensor: Tensor) -> Tensor:
        """Keep a copy; what goes on is the tensor itself."""
        self.history.setdefault(self._address(module, name), []).append(tensor.detach().clone())
        return tensor

    def _address(self, module: nn.Module, name: str) -> str:
        # A module of some other model has no path here, and "?" is in no address.
        path = self._paths.get(module, "?")
        return f"{path}.{name}" if path else name

    def __getitem__(self, address: str) -> Tensor:
        if address not in self.history:
            near = difflib.get_close_matches(address, self.history, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"It holds {len(self.history)} addresses."
            raise AddressError(f"Nothing was recorded at {address}. {hint}")
        return self.history[address][-1]

    def __contains__(self, address: object) -> bool:
        return address in self.history

    def __iter__(self) -> Iterator[str]:
        return iter(self.history)

    def __len__(self) -> int:
        return len(self.history)


class Edits(Tape):
    """The one tape that keeps nothing and hands on something else."""

    def __init__(self, model: nn.Module, changes: Mapping[str, Callable[[Tensor], Tensor]]) -> None:
        super().__init__(model, frozenset(changes))
        self._changes = changes

    # What is put in is no looking: it is there in an unseen pass too.
    wants = Tape.concerns

    def observes(self, model: nn.Module) -> bool:
        return self.here and model in self._paths

    def keep(self, module: nn.Module, name: str, tensor: Tensor) -> Tensor:
        return self._changes[self._address(module, name)](tensor)


def tap(module: nn.Module, name: str, tensor: Tensor) -> Tensor:
    """Show a tensor to whoever records, and hand it on."""
    if _tapes and not torch.compiler.is_compiling():
        for tape in _tapes:
            if tape.wants(module, name):
                tensor = tape.keep(module, name, tensor)
    return tensor


def is_recording() -> bool:
    """Whether anyone records what this thread computes: ask before computing what leaves no trace."""
    return any(tape.here for tape in _tapes)


def is_editing() -> bool:
    """Whether somebody edits what this thread computes."""
    return any(tape.here for tape in _tapes if isinstance(tape, Edits))


def observed(model: nn.Module) -> bool:
    """Whether this thread records or edits this model now; inside `unseen`, whether it edits it."""
    return any(tape.observes(model) for tape in _tapes)


def is_recorded(module: nn.Module, *names: str) -> bool:
    """Whether someone records one of these: ask before computing what only a viewer needs."""
    if not _tapes or torch.compiler.is_compiling():
        return False
    return any(tape.wants(module, name) for tape in _tapes for name in names)


@contextlib.contextmanager
def record(model: nn.Module, *patterns: str, debug: bool | None = None) -> Iterator[Tape]:
    """Record the tensors whose addresses match any of the patterns (all of them when none is given).

    Only forward passes of this model in this thread are recorded. While anyone records, models compiled before run
    uncompiled, so that their insides exist to be seen; their last digits are then those of eager mode. In debug mode
    every pass is first made unseen, and must be the same to the last bit.
    """
    model = getattr(model, "_orig_mod", model)
    tape = Tape(model, frozenset(select(addresses(model), patterns or ("**",))))
    _open(tape)
    try:
        with compare_with_unrecorded(model) if debug_enabled(debug) else contextlib.nullcontext():
            yield tape
    finally:
        _close(tape)


@contextlib.contextmanager
def edit(model: nn.Module, changes: Mapping[str, Callable[[Tensor], Tensor]]) -> Iterator[None]:
    """Put the tensors at each pattern through a function, in forward passes of this model in this thread.

    A tape opened inside sees what was put in, one opened outside what was there. Tensors that are computed for the eye
    alone go nowhere, and neither does what is put in their place: `probe.editing` knows which.
    """
    model = getattr(model, "_orig_mod", model)
    known = addresses(model)
    edits = Edits(model, {address: changes[one] for one in changes for address in select(known, (one,))})
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
    """The last to leave switches compilation on again."""
    global _tapes, _eager
    with _lock:
        _tapes = tuple(other for other in _tapes if other is not tape)
        if not _tapes and _eager is not None:
            torch.compiler.set_stance("default")
            _eager = None


def addresses(model: nn.Module) -> list[str]:
    """All addresses inside a model, in the order of its modules."""
    found = []
    for path, module in model.named_modules():
        for name in getattr(module, "TAPS", ()):
            # A tap named after a submodule that this model does without is not there either.
            if getattr(module, name, ...) is not None:
                found.append(f"{path}.{name}" if path else name)
    return found


def select(known: list[str], patterns: tuple[str, ...]) -> list[str]:
    """The addresses that match any pattern; a pattern that matches none is an error with a suggestion."""
    chosen: set[str] = set()
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise AddressError(
                f"A pattern is text, such as 'decoder.norm'; {pattern!r} is not. Give each one by itself."
            )
        matching = [address for address in known if matches(pattern, address)]
        if not matching:
            near = difflib.get_close_matches(pattern, known, n=1, cutoff=0.3)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise AddressError(f"No address of this model matches {pattern}.{hint}")
        chosen.update(matching)
    return [address for address in known if address in chosen]


def matches(pattern: str, address: str) -> bool:
    """Whether an address fits a pattern of *, ** and {a,b}."""
    return _compiled(pattern).fullmatch(address) is not None


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    if re.search(r"[{}]", re.sub(r"\{[^{}]*\}", "", pattern)):
        raise AddressError(f"The braces in {pattern} do not pair up; they stand around alternatives, as in {{0,1}}.")
    parts = re.split(r"(\*\*\.|\*\*|\*|\{[^{}]*\})", pattern)
    return re.compile("".join(_translated(part) for part in parts))


def _translated(part: str) -> str:
    if part.startswith("{"):
        return "(?:" + "|".join(_compiled(choice).pattern for choice in part[1:-1].split(",")) + ")"
    return {"**.": r"(?:.*\.)?", "**": ".*", "*": r"[^.]*"}.get(part, re.escape(part))
