"""The scheduler: continuous batching. Requests enter and leave one batch at any step.

    waiting  →  prefilling  →  decoding  →  finished           rows of the engine:   decoding … | prefilling … | kept …

    step     prefill about `chunk` tokens of prompts, shared by all prefilling rows, so that a long prompt delays nobody
             sample a token for every decoding row, report it, and remove finished rows
             compute the next logits of the remaining rows

Memory is bounded by the rows and positions of the engine, and the queue by `queue`. `fairness` decides how rows and
prefill tokens are shared; a request that loses its row is prefilled again later and goes on. The text of a request
does not depend on other requests: its row attends to no other row, and it has its own random numbers. Rows of finished
requests are kept while no request needs their place, for `prefix_cache`. On a GPU, the next step starts before the
sampled tokens have arrived at the host (`read_ahead`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import torch
from torch import Tensor

from chumoku.decoding.batch import compact_rows, upload
from chumoku.decoding.batch_sampling import INVALID, BatchSampler
from chumoku.decoding.engines.base import Engine
from chumoku.decoding.fairness import Owner, WaitingQueue, keep_places, row_to_preempt, split_by_owner
from chumoku.decoding.logprobs import Likelihood, Logprobs
from chumoku.decoding.prefix_cache import CachedRow, find_prefix, keep_row, will_be_cached
from chumoku.decoding.read_ahead import HostTokens, NextLogits, arrive_later
from chumoku.decoding.requests import ActiveRequest, check_request
from chumoku.decoding.requests import Event as Event
from chumoku.decoding.requests import Request as Request
from chumoku.errors import BusyError


class Scheduler:
    """Runs requests on an engine, which must not be used elsewhere at the same time.

    queue     most requests that may wait for a row
    chunk     prefill tokens per step
    reuse     start a text from the cache of a row that begins with the same tokens; not for encoder-decoders
    """

    def __init__(self, engine: Engine, *, queue: int = 1024, chunk: int = 512, reuse: bool = False) -> None:
        self.engine, self.queue, self.chunk = engine, queue, chunk
        self.reuse = reuse and engine.model.config.kind == "decoder"
        engine.select_rows([])
        self._sampler = BatchSampler(engine.vocabulary, engine.device)
        self._waiting: WaitingQueue[ActiveRequest] = WaitingQueue()
        self._decoding: list[ActiveRequest] = []  # rows 0 …
        self._prefilling: list[ActiveRequest] = []  # the rows behind them
        self._kept: list[CachedRow] = []  # the rows behind those
        self._logits: NextLogits | None = None  # of the decoding rows
        self._events: list[Event] = []  # to be returned by the next step
        self._submitted = 0

    @property
    def idle(self) -> bool:
        return not (self._waiting or self._decoding or self._prefilling or self._events)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def started(self) -> set[int]:
        """The numbers of unfinished requests for which something was computed."""
        return {request.number for request in (*self._waiting, *self._prefilling, *self._decoding) if request.started}

    @property
    def active_tokens(self) -> int:
        """The number of tokens in the cache for unfinished requests."""
        return sum(self.engine.lengths[: len(self._decoding) + len(self._prefilling)])

    @property
    def nbytes(self) -> int:
        return self.engine.nbytes

    def submit(self, request: Request, owner: Owner = (None, None)) -> int:
        """Add a request and return its number, which its events carry. Rows are shared fairly between owners."""
        if len(self._waiting) >= self.queue:
            raise BusyError(f"{self.queue} requests are waiting already. Try again when some are finished.")
        check_request(request, self.engine)
        number, self._submitted = self._submitted, self._submitted + 1
        limit = min(request.max_new_tokens, self.engine.capacity - len(request.prompt))
        active = ActiveRequest(number, request, owner, limit=limit, vocabulary=self.engine.vocabulary)
        if limit:
            self._waiting.add(active)
        else:
            self._events.append(Event(number, None, "length"))
        return number

    def cancel(self, number: int) -> bool:
        """Cancel a request. True if it was unfinished; its last event then comes with the next step."""
        known = (*self._waiting, *self._decoding, *self._prefilling)
        request = next((request for request in known if request.number == number and request.finished is None), None)
        if request is None:
            return False
        request.finished = "cancelled"
        if request not in self._decoding and request not in self._prefilling:
            self._waiting.remove(request)
        self._events.append(Event(number, None, "cancelled"))
        return True

    def close(self) -> None:
        """Drop all requests and empty the engine."""
        self._waiting.clear()
        self._decoding, self._prefilling, self._kept, self._logits, self._events = [], [], [], None, []
        self._sampler.select_rows([])
        self.engine.select_rows([])

    @torch.inference_mode()
    def step(self) -> list[Event]:
        """Prefill, sample, compute: one token for each decoding request."""
        events, self._events = self._events, []
        self._remove_before_step()
        self._prefill()
        if self._logits is None:
            return events
        requests = list(self._decoding)
        logprobs = Logprobs(self._logits.values, [request.request.logprobs for request in requests])
        sampled = self._sampler.sample(*self._logits)
        tokens, late = HostTokens(sampled), arrive_later(sampled)
        if not late:
            events += self._make_events(requests, tokens.wait(), logprobs.of(sampled))
        for request in requests:
            # The limit is known before the token arrives: samplers count their tokens.
            if request.finished is None and request.sampler.generated >= request.limit:
                request.finished = "length"
        self._advance(sampled)
        if late:
            events += self._make_events(requests, tokens.wait(), logprobs.of(sampled))
        return events

    def _make_events(
        self, requests: Sequence[ActiveRequest], tokens: Sequence[int], likely: dict[int, Likelihood]
    ) -> list[Event]:
        events = []
        for row, (request, token) in enumerate(zip(requests, tokens, strict=True)):
            if token == INVALID or token in request.sampler.end:
                request.finished = "failed" if token == INVALID else "end"
                events.append(Event(request.number, None, request.finished, cached=request.cached))
            else:
                over = request.sampler.generated >= request.limit
                request.tokens.append(token)
                if request.sampler.constraint is not None:
                    request.sampler.constraint.advance(token)
                request.computed += 1  # by the next engine step
                events.append(Event(request.number, token, "length" if over else None, likely.get(row), request.cached))
        return events

    def _advance(self, sampled: Tensor) -> None:
        """Compute the next logits of the rows that are not known to be finished."""
        staying = self._remove_rows()
        if not staying:
            self._logits = None
            return
        if len(staying) < len(sampled):
            sampled = sampled[upload(staying, sampled.device)]
        logits = self.engine.step(sampled)
        self._logits = NextLogits(logits, self.engine.most_likely)

    def _remove_rows(self, paused: Collection[ActiveRequest] = ()) -> list[int]:
        """Remove finished and paused rows; the previous row of each decoding row that stays."""
        count = len(self._decoding)
        leaving = {request for request in (*self._decoding, *self._prefilling) if request.finished or request in paused}
        if not leaving:
            return list(range(count))
        staying = [row for row, request in enumerate(self._decoding) if request not in leaving]
        order = list(range(count)) if len(staying) == count else compact_rows(staying)
        prefilling = [row for row, request in enumerate(self._prefilling, start=count) if request not in leaving]
        prefilling = keep_places(prefilling, len(order))
        self._select_rows([*order, *prefilling], self._rows_to_keep(paused))
        self._prefilling = [self._prefilling[row - count] for row in prefilling]
        if len(order) < count:
            self._sampler.select_rows(order)
            self._decoding = [self._decoding[row] for row in order]
        return order

    def _rows_to_keep(self, paused: Collection[ActiveRequest]) -> dict[int, CachedRow]:
        """The kept rows and those of finished requests."""
        requests = [*self._decoding, *self._prefilling]
        kept = dict(enumerate(self._kept, start=len(requests)))
        for row, request in enumerate(requests):
            if self.reuse and request not in paused and request.finished not in (None, "failed"):
                keep_row(kept, row, self._cached_row(row, request))
        return kept

    def _cached_row(self, row: int, request: ActiveRequest) -> CachedRow:
        return CachedRow(request.tokens[: self.engine.lengths[row]], request.cache_key, request.number)

    def _select_rows(self, rows: Sequence[int], kept: dict[int, CachedRow]) -> None:
        """Select rows of the engine; behind them the kept ones, of which as many as possible stay in place."""
        order = keep_places(list(kept), len(rows))
        self.engine.select_rows([*rows, *order])
        self._kept = [kept[row] for row in order]

    def _remove_before_step(self, paused: Collection[ActiveRequest] = ()) -> None:
        """Remove paused rows, and rows that finished since the last step."""
        before = len(self._decoding)
        order = self._remove_rows(paused)
        if self._logits is not None and len(order) < before:
            self._logits = self._logits.select_rows(order) if order else None

    def _prefill(self) -> None:
        """Compute about `chunk` tokens of prompts; rows whose prompt is complete start decoding."""
        planned = self._plan_prefill()
        if not planned:
            return
        entering = [request for request in planned if request not in self._prefilling]
        if entering:
            self._enter(entering)
        pieces = [
            request.tokens[request.computed : request.computed + planned[request]] for request in self._prefilling
        ]
        for request, piece in zip(self._prefilling, pieces, strict=True):
            request.computed += len(piece)
        logits = self.engine.prefill(pieces, first=len(self._decoding))
        self._start_decoding(logits)

    def _enter(self, entering: Sequence[ActiveRequest]) -> None:
        """Give requests rows behind the prefilling ones: copies of rows with the same beginning, or empty ones."""
        requests = [*self._decoding, *self._prefilling]
        first = len(requests)
        cached = [*(self._cached_row(row, request) for row, request in enumerate(requests)), *self._kept]
        earliest = self.engine.earliest
        prefixes = {
            request: prefix
            for request in entering
            if self.reuse and (prefix := find_prefix(request.tokens, request.cache_key, cached, earliest)) is not None
        }
        new = [request for request in entering if request not in prefixes]
        end = first + len(prefixes)
        room = self.engine.rows - first - len(entering)
        if prefixes or len(self._kept) > room:
            newest = sorted(range(first, first + len(self._kept)), key=lambda row: -cached[row].request_number)[:room]
            rows = [*range(first), *(prefix.row for prefix in prefixes.values())]
            self._select_rows(rows, {row: cached[row] for row in newest})
            lengths = [*self.engine.lengths]
            lengths[first:end] = [prefix.length for prefix in prefixes.values()]
            self.engine.truncate(lengths)
        if new:
            sources = [request.request.source for request in new if request.request.source is not None]
            self.engine.add_rows(len(new), sources or None, [request.request.adapter for request in new])
            if self._kept:
                kept = dict(enumerate(self._kept, start=end))
                self._select_rows([*range(end), *range(end + len(kept), self.engine.live)], kept)
        for request, prefix in prefixes.items():
            request.use_prefix(prefix.length)
        for request in entering:
            request.started = True
        self._prefilling += [*prefixes, *new]

    def _start_decoding(self, logits: Tensor) -> None:
        """Move rows whose prompt is complete behind the decoding rows."""
        first = len(self._decoding)
        complete = [first + row for row, request in enumerate(self._prefilling) if not request.remaining]
        if not complete:
            return
        partial = [first + row for row, request in enumerate(self._prefilling) if request.remaining]
        complete, partial = keep_places(complete, first), keep_places(partial, first + len(complete))
        if partial and [*complete, *partial] != sorted([*complete, *partial]):
            kept = dict(enumerate(self._kept, start=first + len(self._prefilling)))
            self._select_rows([*range(first), *complete, *partial], kept)
        new = logits[upload([row - first for row in complete], logits.device)]
        self._logits = NextLogits(new) if self._logits is None else self._logits.append(new)
        requests, self._prefilling = self._prefilling, [self._prefilling[row - first] for row in partial]
        self._decoding += [requests[row - first] for row in complete]
        self._sampler.add_rows([requests[row - first].sampler for row in complete])

    def _plan_prefill(self) -> dict[ActiveRequest, int]:
        """How many tokens of which requests are prefilled in this step; new ones are removed from the queue."""
        new = self._admit()
        requests = [*self._prefilling, *new]
        given = split_by_owner(
            [request.owner for request in requests], [request.remaining for request in requests], self.chunk
        )
        planned = dict(zip(requests, given, strict=True))
        left, rows = self.chunk - sum(given), [*self._decoding, *requests]
        while left > 0 and len(rows) < self.engine.rows:  # all others are prefilled completely
            request = next(
                (one for one in self._waiting.in_order(rows) if not self._waits_for_prefix(one, planned)), None
            )
            if request is None:
                break
            self._waiting.remove(request)
            rows.append(request)
            planned[request] = min(left, request.remaining)
            left -= planned[request]
        return planned

    def _waits_for_prefix(self, request: ActiveRequest, prefilling: Iterable[ActiveRequest]) -> bool:
        """Whether the beginning of this request is being computed for another one, and can be copied soon."""
        own = [one for one in prefilling if self.reuse and one.cache_key == request.cache_key and one is not request]
        return any(will_be_cached(request.tokens, one.tokens, one.computed) for one in own)

    def _admit(self) -> list[ActiveRequest]:
        """One waiting request of each owner without a prefilling row, while a row is free or can be preempted."""
        rows = [*self._decoding, *self._prefilling]
        new: list[ActiveRequest] = []
        paused: list[ActiveRequest] = []
        owners = {request.owner for request in self._prefilling}
        while self._waiting and len(owners) < self.chunk:
            for request in self._waiting.in_order(rows, without=owners):
                if self._waits_for_prefix(request, [*self._prefilling, *new]):
                    continue
                other = None if len(rows) < self.engine.rows else row_to_preempt(request, rows, spared=new)
                if other is not None or len(rows) < self.engine.rows:
                    break
            else:
                break
            if other is not None:
                rows.remove(other)
                paused.append(other)
            self._waiting.remove(request)
            owners.add(request.owner)
            rows.append(request)
            new.append(request)
        for request in paused:
            request.pause()
        if paused:
            self._remove_before_step(paused)
        for request in reversed(paused):
            self._waiting.add_first(request)
        return new
