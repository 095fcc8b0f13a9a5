"""The backends.  One small class each; the layer at hand is an argument, what is on its way is the backend's own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import numpy as np

from streaming_core.errors import ReadError
from streaming_core.reading import Read, Reader, Ticket, Urgency
from streaming_core.residency.bank import Bank, SlotBank
from streaming_core.residency.table import SlotTable

__all__ = ["AdvisePrefetch", "NoPrefetch", "Prefetch", "PrefetchLayer", "SlotPrefetch", "StagePrefetch"]

Views = list[memoryview]


class PrefetchLayer(Protocol):
    """What a backend needs of a streamed layer."""

    number: int
    table: SlotTable
    bank: Bank

    def reads(self, expert: int, views: Sequence[memoryview]) -> list[Read]: ...

    def place(self, expert: int, slot: int) -> None:
        """Notes the slot in the layer's table; nothing unfinished reads that slot any more when it returns."""


class Prefetch(Protocol):
    """Acts on guesses.  Used by the thread that runs the model."""

    def absent(self, layer: PrefetchLayer, expert: int) -> bool:
        """Whether a guess of it is news: neither resident nor on its way."""

    def fetch(self, layer: PrefetchLayer, experts: Sequence[int], likely: Collection[int]) -> int:
        """Begins to fetch; `likely` are guessed experts that must not make room for it.  Returns how many it began."""

    def expects(self, layer: PrefetchLayer, experts: Sequence[int]) -> list[int]:
        """The layer is called for these: which of them count as resident though their bytes may still be on the way.
        Makes sure that the others find room."""

    def collect(self, layer: PrefetchLayer, expected: Sequence[int]) -> list[int]:
        """Waits for them.  Returns those that did not come; they are forgotten."""

    def deliver(self, layer: PrefetchLayer, expert: int, views: Views) -> bool:
        """Fills the views of a missing expert from a side buffer, if it is there or on its way."""

    def holds(self, layer: PrefetchLayer, expert: int) -> bool:
        """Whether `deliver` has a chance."""

    def leave(self, layer: PrefetchLayer) -> None:
        """The layer's call is over; what was fetched for it and not used is free."""


class NoPrefetch:
    """Does nothing with guesses."""

    def absent(self, layer: PrefetchLayer, expert: int) -> bool:
        return expert not in layer.table

    def fetch(self, layer: PrefetchLayer, experts: Sequence[int], likely: Collection[int]) -> int:
        return 0

    def expects(self, layer: PrefetchLayer, experts: Sequence[int]) -> list[int]:
        return []

    def collect(self, layer: PrefetchLayer, expected: Sequence[int]) -> list[int]:
        return []

    def deliver(self, layer: PrefetchLayer, expert: int, views: Views) -> bool:
        return False

    def holds(self, layer: PrefetchLayer, expert: int) -> bool:
        return False

    def leave(self, layer: PrefetchLayer) -> None:
        return


class AdvisePrefetch(NoPrefetch):
    """Hints to the operating system, which reads into its own cache if it likes."""

    def __init__(self, advise: Callable[[int, int, int], None]) -> None:
        """`advise(fd, offset, nbytes)` returns at once."""
        self._advise = advise
        self._advised: dict[int, set[int]] = {}

    def absent(self, layer: PrefetchLayer, expert: int) -> bool:
        return expert not in layer.table and expert not in self._advised.get(layer.number, ())

    def fetch(self, layer: PrefetchLayer, experts: Sequence[int], likely: Collection[int]) -> int:
        views = layer.bank.destinations([0])[0]  # only their lengths matter
        for expert in experts:
            for read in layer.reads(expert, views):
                self._advise(read.file.fd, read.offset, sum(map(len, read.views)))
        self._advised.setdefault(layer.number, set()).update(experts)
        return len(experts)

    def leave(self, layer: PrefetchLayer) -> None:
        self._advised.pop(layer.number, None)


class SlotPrefetch(NoPrefetch):
    """Guessed experts are read straight into bank slots.  A slot on its way is held until its bytes are there."""

    def __init__(self, reader: Reader, keep_free: int) -> None:
        """`keep_free` slots of a layer are never on their way at once, so that a token always finds room."""
        self._reader = reader
        self._keep_free = keep_free
        self._arriving: dict[int, dict[int, Ticket]] = {}

    def fetch(self, layer: PrefetchLayer, experts: Sequence[int], likely: Collection[int]) -> int:
        arriving = self._arriving.setdefault(layer.number, {})
        self._settle(layer, [e for e, ticket in arriving.items() if ticket.done])
        room = layer.table.slots - self._keep_free - len(arriving)
        misses = layer.table.admit(experts[: max(0, room)], likely)
        views = layer.bank.destinations([miss.slot for miss in misses])
        for miss, view in zip(misses, views, strict=True):
            layer.place(miss.expert, miss.slot)
            arriving[miss.expert] = self._reader.submit(layer.reads(miss.expert, view), Urgency.GUESS)
        return len(misses)

    def expects(self, layer: PrefetchLayer, experts: Sequence[int]) -> list[int]:
        arriving = self._arriving.get(layer.number)
        if not arriving:
            return []
        expected = [e for e in experts if e in arriving]
        strangers = [e for e in arriving if e not in experts]
        if len(experts) + len(strangers) > layer.table.slots:
            for expert in strangers:
                self._reader.cancel(arriving[expert])
            self.collect(layer, strangers)
        return expected

    def collect(self, layer: PrefetchLayer, expected: Sequence[int]) -> list[int]:
        return self._settle(layer, expected)

    def _settle(self, layer: PrefetchLayer, experts: Sequence[int]) -> list[int]:
        """Waits for these, ends their hold, forgets and returns those that did not come."""
        arriving = self._arriving[layer.number] if experts else {}
        lost = []
        for expert in experts:
            ticket = arriving.pop(expert)
            try:
                self._reader.wait(ticket)
                came = not ticket.cancelled
            except ReadError:
                came = False  # the router may never ask for it; if it does, the demand read reports what is wrong
            layer.table.unhold(expert)
            if not came:
                layer.table.forget(expert)
                lost.append(expert)
        return lost

    def leave(self, layer: PrefetchLayer) -> None:
        arriving = self._arriving.get(layer.number)
        if arriving:
            self._settle(layer, [e for e, ticket in arriving.items() if ticket.done])


class StagePrefetch(NoPrefetch):
    """Guessed experts are read into side buffers and copied into a slot if the router asks for them."""

    def __init__(self, reader: Reader, buffers: SlotBank) -> None:
        """`buffers` has the geometry of every layer it is used for; its slots are the side buffers."""
        self._reader = reader
        self._buffers = buffers
        self._free = list(range(buffers.batch))
        self._staged: dict[int, dict[int, tuple[int, Ticket]]] = {}
        self._leaving: list[tuple[int, Ticket]] = []  # given up, but a read may still write into it

    def absent(self, layer: PrefetchLayer, expert: int) -> bool:
        return expert not in layer.table and not self.holds(layer, expert)

    def holds(self, layer: PrefetchLayer, expert: int) -> bool:
        return expert in self._staged.get(layer.number, ())

    def fetch(self, layer: PrefetchLayer, experts: Sequence[int], likely: Collection[int]) -> int:
        self._reclaim()
        staged = self._staged.setdefault(layer.number, {})
        begun = 0
        for expert in experts:
            if not self._free:
                break
            buffer = self._free.pop()
            views = self._buffers.destinations([buffer])[0]
            staged[expert] = (buffer, self._reader.submit(layer.reads(expert, views), Urgency.GUESS))
            begun += 1
        return begun

    def deliver(self, layer: PrefetchLayer, expert: int, views: Views) -> bool:
        buffer, ticket = self._staged[layer.number].pop(expert)
        try:
            self._reader.wait(ticket)
            came = not ticket.cancelled
        except ReadError:
            came = False  # the demand read that follows reports what is wrong
        if came:
            for source, view in zip(self._buffers.destinations([buffer])[0], views, strict=True):
                np.copyto(np.frombuffer(view, np.uint8), np.frombuffer(source, np.uint8))
        self._free.append(buffer)
        return came

    def leave(self, layer: PrefetchLayer) -> None:
        for buffer, ticket in self._staged.pop(layer.number, {}).values():
            self._reader.cancel(ticket)
            self._leaving.append((buffer, ticket))
        self._reclaim()

    def _reclaim(self) -> None:
        waiting = []
        for buffer, ticket in self._leaving:
            if ticket.done:
                self._free.append(buffer)
            else:
                waiting.append((buffer, ticket))
        self._leaving = waiting
