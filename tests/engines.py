"""Properties of every engine: whatever happens to other rows, each row gives the logits of the PyTorch model.

check_engine(factory, model)     factory(model, rows=…, capacity=…) → engine; raises AssertionError where a law breaks
check_rows(factory, model, …)    for engines that promise it: the number of rows changes no bit
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch

from chumoku.decoding.engines.base import Engine
from chumoku.models.model import EncoderDecoderModel, Model

Factory = Callable[..., Engine]
ROWS, CAPACITY = 7, 19


class Mirror:
    """An engine beside what its rows have read, so that every answer can be had from the model at once."""

    def __init__(self, factory: Factory, model: Model, *, seed: int, tolerance: float) -> None:
        self.model, self.tolerance, self.random = model, tolerance, random.Random(seed)
        self.engine = factory(model, rows=ROWS, capacity=CAPACITY)
        self.sourced = isinstance(model, EncoderDecoderModel)
        self.rows: list[list[int]] = []
        self.sources: list[list[int]] = []

    def tokens(self, least: int, most: int) -> list[int]:
        return [self.random.randrange(self.model.config.vocabulary) for _ in range(self.random.randint(least, most))]

    def plain(self, row: int) -> torch.Tensor:
        """The logits after every token of a row [T, V], without a cache."""
        with torch.inference_mode():
            read = torch.tensor([self.rows[row]], device=self.engine.device)
            if not self.sourced:
                return self.model.eval()(read).logits[0]
            return self.model.eval()(torch.tensor([self.sources[row]], device=self.engine.device), read).logits[0]

    def same(self, logits: torch.Tensor, first: int, news: list[int]) -> None:
        assert logits.shape[0] == len(news)
        for place, new in enumerate(news):
            expected = self.plain(first + place)[-new:].float()
            found = logits[place].reshape(-1, logits.shape[-1])[-new:].float()
            torch.testing.assert_close(found, expected, atol=self.tolerance, rtol=self.tolerance)
        self.counts()

    def counts(self) -> None:
        assert self.engine.lengths == list(map(len, self.rows))
        assert self.engine.live == len(self.rows)

    def add_rows(self) -> None:
        """New rows, which read at once: an empty row has nothing to say."""
        count = self.random.randint(1, ROWS - len(self.rows)) if len(self.rows) < ROWS else 0
        if not count:
            return
        first = len(self.rows)
        sources = [self.tokens(1, 11) for _ in range(count)] if self.sourced else None
        self.engine.add_rows(count, sources)
        self.sources += sources or []
        self.rows += [[] for _ in range(count)]
        self.counts()
        if not first and self.random.random() < 0.5:
            # As translations begin: nothing is read before the first step.
            self.append([self.tokens(1, 1) for _ in range(count)], step=True)
        else:
            self.prefill(first, [self.tokens(1, CAPACITY - 6) for _ in range(count)])

    def prefill(self, first: int, pieces: list[list[int]]) -> None:
        for row, piece in enumerate(pieces, start=first):
            self.rows[row] += piece
        self.same(self.engine.prefill(pieces, first=first), first, [1] * len(pieces))

    def prefill_more(self) -> None:
        """Some neighboring rows, as far as each has room; one may fill up to the last position."""
        roomy = [row for row, read in enumerate(self.rows) if len(read) < CAPACITY]
        if roomy:
            first = self.random.choice(roomy)
            end = first + 1
            while end in roomy and self.random.random() < 0.8:
                end += 1
            self.prefill(first, [self.tokens(1, CAPACITY - len(self.rows[row])) for row in range(first, end)])

    def extend(self, most: int = 4) -> None:
        count = self.random.randint(1, len(self.rows))
        room = CAPACITY - max(map(len, self.rows[:count]))
        if not room:
            return
        new = self.random.randint(1, min(most, room))
        self.append([self.tokens(new, new) for _ in range(count)], step=most == 1)

    def append(self, given: list[list[int]], *, step: bool) -> None:
        for row, piece in enumerate(given):
            self.rows[row] += piece
        tokens = torch.tensor(given, device=self.engine.device)
        logits = self.engine.step(tokens[:, 0]) if step else self.engine.extend(tokens)
        new = len(given[0])
        assert logits.shape == (len(given), *(() if step else (new,)), self.model.config.vocabulary)
        self.same(logits, 0, [new] * len(given))

    def step(self) -> None:
        self.extend(most=1)

    def truncate(self) -> None:
        least = [max(1, min(one, len(row))) for one, row in zip(self.engine.earliest, self.rows, strict=True)]
        lengths = [self.random.randint(one, len(row)) for one, row in zip(least, self.rows, strict=True)]
        self.engine.truncate(lengths)
        self.rows = [row[:length] for row, length in zip(self.rows, lengths, strict=True)]
        self.counts()

    def select_rows(self) -> None:
        """Fewer, more, twice the same, in any order."""
        chosen = [self.random.randrange(len(self.rows)) for _ in range(self.random.randint(1, ROWS))]
        if self.random.random() < 0.3:
            chosen = []
        self.engine.select_rows(chosen)
        self.rows = [list(self.rows[row]) for row in chosen]
        self.sources = [self.sources[row] for row in chosen] if self.sourced else []
        self.counts()


def check_engine(factory: Factory, model: Model, *, seed: int = 0, turns: int = 40, tolerance: float = 1e-9) -> None:
    """A random life of rows, every answer of which is the plain model's; its memory stays within bounds."""
    mirror = Mirror(factory, model, seed=seed, tolerance=tolerance)
    sizes = []
    for _ in range(turns):
        if not mirror.rows:
            mirror.add_rows()
        turn = mirror.random.choice(
            (mirror.add_rows, mirror.prefill_more, mirror.extend, mirror.step, mirror.truncate, mirror.select_rows)
        )
        if mirror.rows or turn == mirror.add_rows:
            turn()
        sizes.append(mirror.engine.nbytes)
    config = model.config
    positions = CAPACITY + (2 * 11 if mirror.sourced else 0)
    bound = config.decoder_depth * 2 * ROWS * config.key_heads * positions * config.key_width * 8
    assert 0 < max(sizes) <= bound


def check_rows(factory: Factory, model: Model, counts: Sequence[int]) -> None:
    """The result of a row does not depend on the number of rows, in any bit."""
    most, sourced = max(counts), isinstance(model, EncoderDecoderModel)
    numbers = [[3 + row, 7, 11 * row + 1] for row in range(most)]
    prompts = [[number % model.config.vocabulary for number in prompt] for prompt in numbers]
    engine, step = factory(model, rows=most, capacity=7), torch.full((most,), 9)

    def read(some: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        engine.select_rows([])
        engine.add_rows(len(some), some if sourced else None)
        return engine.prefill(some).clone(), engine.step(step[: len(some)])

    alone = [read([prompt]) for prompt in prompts]
    for count in counts:
        for found, expected in zip(read(prompts[:count]), zip(*alone[:count], strict=True), strict=True):
            assert torch.equal(found, torch.cat(expected)), count
