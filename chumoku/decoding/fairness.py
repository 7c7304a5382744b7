"""Fair sharing of rows and prefill tokens between requests.

A free row goes to the client with the fewest rows, then to its request with the fewest, then to the oldest. A request
without a row takes one from the client or request with the most rows, if that one keeps at least as many as the new
request then has.

An owner is (client, request). A text whose row was taken keeps its tokens, waits, and continues later.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

Owner = tuple[Hashable, Hashable]


class Owned(Protocol):
    """A text with an owner. `number` grows with the time of arrival; `cost` is lost if its row is taken."""

    @property
    def number(self) -> int: ...

    @property
    def owner(self) -> Owner: ...

    @property
    def cost(self) -> int: ...


T = TypeVar("T", bound=Owned)


class WaitingQueue(Generic[T]):
    """Texts that have no row, one line for each owner."""

    def __init__(self) -> None:
        self._lines: dict[Owner, deque[T]] = {}
        self._count = 0  # read by other threads

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        return (text for line in self._lines.values() for text in line)

    def add(self, text: T) -> None:
        self._count += 1
        self._lines.setdefault(text.owner, deque()).append(text)

    def add_first(self, text: T) -> None:
        """Add a text that had a row already."""
        self._count += 1
        self._lines.setdefault(text.owner, deque()).appendleft(text)

    def remove(self, text: T) -> None:
        self._lines[text.owner].remove(text)
        self._count -= 1
        if not self._lines[text.owner]:
            del self._lines[text.owner]

    def clear(self) -> None:
        self._lines.clear()
        self._count = 0

    def in_order(self, rows: Sequence[T], *, without: Collection[Owner] = ()) -> list[T]:
        """The first text of each line, sorted by who gets the next row."""
        clients, owners = count_rows(rows)
        heads = [line[0] for owner, line in self._lines.items() if owner not in without]
        return sorted(heads, key=lambda text: (clients[text.owner[0]], owners[text.owner], text.number))


def count_rows(rows: Sequence[Owned]) -> tuple[Counter[Hashable], Counter[Owner]]:
    """How many rows each client and each owner has."""
    return Counter(text.owner[0] for text in rows), Counter(text.owner for text in rows)


def row_to_preempt(text: Owned, rows: Sequence[T], *, spared: Collection[T] = ()) -> T | None:
    """The row that this text takes over; None if the rows are shared fairly already."""
    clients, owners = count_rows(rows)
    if owners[text.owner]:
        return None
    client = text.owner[0]
    larger = [
        row
        for row in rows
        if row not in spared
        and (owners[row.owner] > 1 if row.owner[0] == client else clients[row.owner[0]] > clients[client] + 1)
    ]
    # Among equals, the one with the least to compute again.
    return max(larger, key=lambda row: (clients[row.owner[0]], owners[row.owner], -row.cost, row.number), default=None)


def split_evenly(wanted: Sequence[int], total: int) -> list[int]:
    """Divide `total` evenly: each gets at most what it wants, and at least 1."""
    given, left = [0] * len(wanted), total
    for place, index in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        given[index] = min(wanted[index], max(1, left // (len(wanted) - place)))
        left -= given[index]
    return given


def split_by_owner(owners: Sequence[Owner], wanted: Sequence[int], total: int) -> list[int]:
    """Divide `total` evenly between clients, then between the requests of each client."""
    clients: dict[Hashable, list[int]] = {}
    for place, owner in enumerate(owners):
        clients.setdefault(owner[0], []).append(place)
    given = [0] * len(wanted)
    parts = split_evenly([sum(wanted[place] for place in places) for places in clients.values()], total)
    for places, part in zip(clients.values(), parts, strict=True):
        for place, share in zip(places, split_evenly([wanted[place] for place in places], part), strict=True):
            given[place] = share
    return given


def keep_places(rows: Sequence[int], first: int) -> list[int]:
    """Order rows for the places from `first` on, so that as many as possible keep their place."""
    places = range(first, first + len(rows))
    staying = {*rows} & {*places}
    others = iter(sorted({*rows} - staying))
    return [place if place in staying else next(others) for place in places]
