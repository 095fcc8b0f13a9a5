"""What the router asked for and what was guessed, pass by pass: kept and counted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from streaming_core.reading import Read, Ticket, Urgency
from streaming_core.route_trace import Asked, Guessed, PassRecord, Routes

__all__ = [
    "GuessRecord",
    "NullRecorder",
    "ReadTimes",
    "Recorder",
    "RouteRecorder",
]

Rows = np.ndarray[Any, Any]


class Recorder(Protocol):
    """Told by the engine what happens."""

    def begins_pass(self, tokens: int) -> None: ...

    def guessed(self, layer: int, ranked: Sequence[tuple[int, float]], at: int) -> None:
        """A guess for `layer` is about to be acted upon, in the call of layer `at`."""

    def asked(self, layer: int, experts: Sequence[int], rows: Rows) -> None:
        """`experts` are the distinct ones of `rows`, the expert of every row of the call."""

    def submitted(self, ticket: Ticket, reads: Sequence[Read], urgency: Urgency) -> None: ...


class NullRecorder:
    """Keeps nothing."""

    def begins_pass(self, tokens: int) -> None:
        return

    def guessed(self, layer: int, ranked: Sequence[tuple[int, float]], at: int) -> None:
        return

    def asked(self, layer: int, experts: Sequence[int], rows: Rows) -> None:
        return

    def submitted(self, ticket: Ticket, reads: Sequence[Read], urgency: Urgency) -> None:
        return


@dataclass(slots=True)
class GuessRecord:
    """How one layer's guesses did, in passes of one token."""

    asked: int = 0  # experts asked for in passes that had a guess
    ranks: list[int] = field(default_factory=list)  # place in the guess, from 0, of each asked expert that was in it
    windows_s: list[float] = field(default_factory=list)  # from acting on a guess to the call it was made for

    def recall(self, width: int) -> float | None:
        """Share of the asked experts among the first `width` candidates; None if there was no guess."""
        return sum(rank < width for rank in self.ranks) / self.asked if self.asked else None


@dataclass(slots=True)
class ReadTimes:
    """How long tickets took: all reads of one demand, or one guessed expert.  Cancelled ones are not counted."""

    tickets: int = 0
    queue_s: float = 0.0  # sum of the times from submission to begin
    queue_max_s: float = 0.0
    read_s: float = 0.0  # sum of the times from begin to end
    read_max_s: float = 0.0

    def add(self, ticket: Ticket) -> None:
        self.tickets += 1
        self.queue_s += ticket.queue_s
        self.queue_max_s = max(self.queue_max_s, ticket.queue_s)
        self.read_s += ticket.read_s
        self.read_max_s = max(self.read_max_s, ticket.read_s)


@dataclass(frozen=True, slots=True)
class _Pending:
    """A guess whose layer has not been called yet."""

    candidates: list[int]
    at: int  # made in the call of this layer; of a later one than its own: for the next pass
    made_at: float


class RouteRecorder:
    """Keeps every choice, and in passes of one token the times of reads and how the choice compares with the guess.

    A prompt's chunk asks for so many experts that neither would say anything about decoding.

    Attributes:
        counting: passes that begin now are part of what the caller counts; kept with each of them.
    """

    def __init__(self) -> None:
        self.passes: list[PassRecord] = []
        self.counting = True
        self.guesses: dict[int, GuessRecord] = {}
        self._pending: dict[int, _Pending] = {}
        self._decodes = False
        self._reads: dict[tuple[int, Urgency], ReadTimes] = {}
        self._tickets: list[tuple[int, Urgency, Ticket]] = []  # not counted yet

    @property
    def routes(self) -> Routes:
        return [{asked.layer: list(asked.experts) for asked in step.asked} for step in self.passes]

    def begins_pass(self, tokens: int) -> None:
        self.passes.append(PassRecord(tokens, self.counting))
        self._pending = {layer: guess for layer, guess in self._pending.items() if guess.at > layer}
        self._decodes = tokens == 1
        self._count_tickets()

    def submitted(self, ticket: Ticket, reads: Sequence[Read], urgency: Urgency) -> None:
        if self._decodes and reads:
            self._tickets.append((reads[0].layer, urgency, ticket))

    def read_times(self, layer: int, urgency: Urgency) -> ReadTimes:
        """Of the reads of `layer` that began as `urgency` and have ended."""
        self._count_tickets()
        return self._reads.get((layer, urgency), ReadTimes())

    def _count_tickets(self) -> None:
        under_way = []
        for layer, urgency, ticket in self._tickets:
            if not ticket.done:
                under_way.append((layer, urgency, ticket))
            elif not ticket.cancelled:
                self._reads.setdefault((layer, urgency), ReadTimes()).add(ticket)
        self._tickets = under_way

    def guessed(self, layer: int, ranked: Sequence[tuple[int, float]], at: int) -> None:
        if self.passes:
            self.passes[-1].guessed.append(Guessed(at, layer, tuple(ranked)))
        if self._decodes:
            self._pending[layer] = _Pending([expert for expert, _ in ranked], at, time.perf_counter())

    def asked(self, layer: int, experts: Sequence[int], rows: Rows) -> None:
        if self.passes:
            self.passes[-1].asked.append(Asked(layer, tuple(experts), _row_counts(experts, rows)))
        pending = self._pending.pop(layer, None)
        if pending is None or not self._decodes:
            return
        record = self.guesses.setdefault(layer, GuessRecord())
        record.asked += len(experts)
        place = {expert: rank for rank, expert in enumerate(pending.candidates)}
        record.ranks += [place[expert] for expert in experts if expert in place]
        record.windows_s.append(time.perf_counter() - pending.made_at)


def _row_counts(experts: Sequence[int], rows: Rows) -> tuple[int, ...]:
    """How many rows asked for each; () when it was one each."""
    if rows.size == len(experts):
        return ()
    found, counts = np.unique(rows, return_counts=True)
    count_of = dict(zip(found.tolist(), counts.tolist(), strict=True))
    return tuple(count_of[expert] for expert in experts)
