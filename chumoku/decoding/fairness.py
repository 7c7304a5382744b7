"""Who gets a row and how much of a step is spent on reading, when several requests want both.

The rule: a free row goes to the client with the fewest rows, then to its request with the fewest, then to whoever came
first; and a request without a row takes one from the client or request with the most rows, if that one keeps at least
as many as the newcomer then has.

An owner is (client, request). A text whose row was taken waits with what it has written, and goes on from there.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

Owner = tuple[Hashable, Hashable]


class Owned(Protocol):
    """A text that somebody asked for; `number` rises with the time at which it came, `cost` with what it has read."""

    @property
    def number(self) -> int: ...

    @property
    def owner(self) -> Owner: ...

    @property
    def cost(self) -> int: ...


T = TypeVar("T", bound=Owned)


class Waiting(Generic[T]):
    """Texts that have no row, each owner's in a line of their own."""

    def __init__(self) -> None:
        self._lines: dict[Owner, deque[T]] = {}
        self._count = 0  # other threads may ask how many wait

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        return (text for line in self._lines.values() for text in line)

    def add(self, text: T) -> None:
        self._count += 1
        self._lines.setdefault(text.owner, deque()).append(text)

    def add_first(self, text: T) -> None:
        """For one that had a row already."""
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
        """The first text of each line, whoever is to have the next row first."""
        clients, owners = counted(rows)
        heads = [line[0] for owner, line in self._lines.items() if owner not in without]
        return sorted(heads, key=lambda text: (clients[text.owner[0]], owners[text.owner], text.number))


def counted(rows: Sequence[Owned]) -> tuple[Counter[Hashable], Counter[Owner]]:
    """How many rows each client and each owner has."""
    return Counter(text.owner[0] for text in rows), Counter(text.owner for text in rows)


def gives_way(text: Owned, rows: Sequence[T], *, spared: Collection[T] = ()) -> T | None:
    """Which of the rows has to make room for this text; None where all rows are shared fairly already."""
    clients, owners = counted(rows)
    if owners[text.owner]:
        return None
    client = text.owner[0]
    larger = [
        row
        for row in rows
        if row not in spared
        and (owners[row.owner] > 1 if row.owner[0] == client else clients[row.owner[0]] > clients[client] + 1)
    ]
    # The one that loses least by being read again.
    return max(larger, key=lambda row: (clients[row.owner[0]], owners[row.owner], -row.cost, row.number), default=None)


def shares(wanted: Sequence[int], total: int) -> list[int]:
    """A total divided evenly: to each no more than is wanted, and 1 at least."""
    given, left = [0] * len(wanted), total
    for place, index in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        given[index] = min(wanted[index], max(1, left // (len(wanted) - place)))
        left -= given[index]
    return given


def shares_of_owners(owners: Sequence[Owner], wanted: Sequence[int], total: int) -> list[int]:
    """The same among clients first, and then among the requests of each."""
    clients: dict[Hashable, list[int]] = {}
    for place, owner in enumerate(owners):
        clients.setdefault(owner[0], []).append(place)
    given = [0] * len(wanted)
    whole = shares([sum(wanted[place] for place in places) for places in clients.values()], total)
    for places, part in zip(clients.values(), whole, strict=True):
        for place, share in zip(places, shares([wanted[place] for place in places], part), strict=True):
            given[place] = share
    return given


def settled(rows: Sequence[int], first: int) -> list[int]:
    """Rows in an order in which, from place `first` on, as many as can be stand where they stood."""
    places = range(first, first + len(rows))
    staying = {*rows} & {*places}
    others = iter(sorted({*rows} - staying))
    return [place if place in staying else next(others) for place in places]
