"""The backends.  One small class each; the layer at hand is an argument, what is on its way is the backend's own."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence, Set
from typing import Protocol

import numpy as np

from streaming_core.errors import ReadError
from streaming_core.prefetch.reads import GuessReads, PrefetchLayer
from streaming_core.prefetch.side import SideBuffers
from streaming_core.reading import Ticket

__all__ = ["AdvisePrefetch", "NoPrefetch", "Prefetch", "SlotPrefetch", "StagePrefetch"]

Views = list[memoryview]


class Prefetch(Protocol):
    """Acts on guesses.  Used by the thread that runs the model."""

    def absent(self, layer: PrefetchLayer, expert: int) -> bool:
        """Whether a guess of it is news: neither resident nor on its way."""

    def fetch(self, layer: PrefetchLayer, experts: Sequence[int], likely: Set[int]) -> int:
        """Begins to fetch; `likely`, all of the guess, must not make room for it.  What an earlier guess named and this
        one does not is taken back if it has not begun.  Returns how many it began."""

    def expects(self, layer: PrefetchLayer, experts: Sequence[int]) -> list[int]:
        """The layer is called for these: which of them count as resident though their bytes may still be on the way.
        Makes sure that the others find room."""

    def collect(self, layer: PrefetchLayer, expected: Sequence[int]) -> list[int]:
        """Waits for them.  Returns those that did not come; they are forgotten."""

    def deliver(self, layer: PrefetchLayer, expert: int, slot: int, views: Views) -> bool:
        """Makes `slot`, whose memory `views` are, hold a missing expert, if it is there or on its way."""

    def holds(self, layer: PrefetchLayer, expert: int) -> bool:
        """Whether `deliver` has a chance."""

    def leave(self, layer: PrefetchLayer) -> None:
        """The layer's call is over; what was fetched for it and not used is free."""

    def arrived(self, layer: int) -> int:
        """How many guesses of a layer were read to their end (of hints: given) since this was asked before."""

    def forget(self, layer: PrefetchLayer) -> None:
        """A change of the layer was interrupted.  No read is under way; nothing of it is on its way or held for it."""


class NoPrefetch:
    """Does nothing with guesses."""

    def absent(self, layer: PrefetchLayer, expert: int) -> bool:
        return expert not in layer.table

    def fetch(self, layer: PrefetchLayer, experts: Sequence[int], likely: Set[int]) -> int:
        return 0

    def expects(self, layer: PrefetchLayer, experts: Sequence[int]) -> list[int]:
        return []

    def collect(self, layer: PrefetchLayer, expected: Sequence[int]) -> list[int]:
        return []

    def deliver(self, layer: PrefetchLayer, expert: int, slot: int, views: Views) -> bool:
        return False

    def holds(self, layer: PrefetchLayer, expert: int) -> bool:
        return False

    def leave(self, layer: PrefetchLayer) -> None:
        return

    def arrived(self, layer: int) -> int:
        return 0

    def forget(self, layer: PrefetchLayer) -> None:
        return


class AdvisePrefetch(NoPrefetch):
    """Hints to the operating system, which reads into its own cache if it likes."""

    def __init__(self, advise: Callable[[int, int, int], None]) -> None:
        """`advise(fd, offset, nbytes)` returns at once."""
        self._advise = advise
        self._advised: dict[int, set[int]] = {}
        self._given: Counter[int] = Counter()

    def absent(self, layer: PrefetchLayer, expert: int) -> bool:
        return expert not in layer.table and expert not in self._advised.get(layer.number, ())

    def fetch(self, layer: PrefetchLayer, experts: Sequence[int], likely: Set[int]) -> int:
        views = layer.bank.destinations([0])[0]  # only their lengths matter
        with contextlib.suppress(ReadError):  # the store is closed; the demand read says so
            for expert in experts:
                for read in layer.reads(expert, views):
                    self._advise(read.file.fd, read.offset, sum(map(len, read.views)))
        self._advised.setdefault(layer.number, set()).update(experts)
        self._given[layer.number] += len(experts)
        return len(experts)

    def leave(self, layer: PrefetchLayer) -> None:
        self._advised.pop(layer.number, None)

    forget = leave

    def arrived(self, layer: int) -> int:
        return self._given.pop(layer, 0)


class SlotPrefetch(NoPrefetch):
    """Guessed experts are read straight into bank slots.  A slot on its way is held until its bytes are there."""

    def __init__(self, reads: GuessReads) -> None:
        self._reads = reads
        self._arriving: dict[int, dict[int, Ticket]] = {}

    def fetch(self, layer: PrefetchLayer, experts: Sequence[int], likely: Set[int]) -> int:
        arriving = self._arriving.setdefault(layer.number, {})
        for expert in arriving.keys() - likely:
            self._reads.cancel(arriving[expert])
        self._settle(layer, [e for e, ticket in arriving.items() if ticket.done])
        room = min(layer.table.slots - len(arriving), self._reads.room)
        misses = layer.table.admit(experts[: max(0, room)], likely)
        views = layer.bank.destinations([miss.slot for miss in misses])
        begun = 0
        for miss, view in zip(misses, views, strict=True):
            layer.place(miss.expert, miss.slot)
            ticket = self._reads.begin(layer, miss.expert, view)
            if ticket is None:
                layer.table.unhold(miss.expert)
                layer.table.forget(miss.expert)
            else:
                arriving[miss.expert] = ticket
                begun += 1
        return begun

    def expects(self, layer: PrefetchLayer, experts: Sequence[int]) -> list[int]:
        arriving = self._arriving.get(layer.number)
        if not arriving:
            return []
        expected = [e for e in experts if e in arriving]
        strangers = [e for e in arriving if e not in experts]
        # Their time is over: what has not begun need not be read, and what cannot be taken back must find room.
        for expert in strangers:
            self._reads.cancel(arriving[expert])
        gone = (
            strangers
            if len(experts) + len(strangers) > layer.table.slots
            else [e for e in strangers if arriving[e].done]
        )
        self.collect(layer, gone)
        return expected

    def collect(self, layer: PrefetchLayer, expected: Sequence[int]) -> list[int]:
        return self._settle(layer, expected)

    def _settle(self, layer: PrefetchLayer, experts: Sequence[int]) -> list[int]:
        """Waits for these, ends their hold, forgets and returns those that did not come."""
        arriving = self._arriving[layer.number] if experts else {}
        lost = []
        for expert in experts:
            came = self._reads.came(arriving.pop(expert))
            layer.table.unhold(expert)
            if not came:
                layer.table.forget(expert)
                lost.append(expert)
        return lost

    def leave(self, layer: PrefetchLayer) -> None:
        arriving = self._arriving.get(layer.number)
        if arriving:
            self._settle(layer, [e for e, ticket in arriving.items() if ticket.done])

    def arrived(self, layer: int) -> int:
        return self._reads.arrived(layer)

    def forget(self, layer: PrefetchLayer) -> None:
        self._arriving.pop(layer.number, None)
        self._reads.forget()


class StagePrefetch(NoPrefetch):
    """Guessed experts are read into side buffers.  If the router asks for one, its buffer and a slot of the layer
    change places; where the bank cannot do that, it is copied."""

    def __init__(self, reads: GuessReads, buffers: SideBuffers) -> None:
        """`buffers` have the geometry of every layer they are used for."""
        self._reads = reads
        self._buffers = buffers
        self._staged: dict[int, dict[int, tuple[int, Ticket]]] = {}

    def absent(self, layer: PrefetchLayer, expert: int) -> bool:
        return expert not in layer.table and not self.holds(layer, expert)

    def holds(self, layer: PrefetchLayer, expert: int) -> bool:
        return expert in self._staged.get(layer.number, ())

    def fetch(self, layer: PrefetchLayer, experts: Sequence[int], likely: Set[int]) -> int:
        staged = self._staged.setdefault(layer.number, {})
        for expert in [e for e in staged if e not in likely]:
            self._give_up(*staged.pop(expert))
        begun = 0
        for expert in experts[: min(self._buffers.room, self._reads.room)]:
            row = self._buffers.take()
            ticket = self._reads.begin(layer, expert, self._buffers.views(row))
            if ticket is None:
                self._buffers.give(row)
            else:
                staged[expert] = (row, ticket)
                begun += 1
        return begun

    def deliver(self, layer: PrefetchLayer, expert: int, slot: int, views: Views) -> bool:
        row, ticket = self._staged[layer.number].pop(expert)
        came = self._reads.came(ticket)
        if came and (left := layer.bank.exchange(slot, row)) is not None:
            layer.place(expert, slot)
            row = left
        elif came:
            for source, view in zip(self._buffers.views(row), views, strict=True):
                np.copyto(np.frombuffer(view, np.uint8), np.frombuffer(source, np.uint8))
        self._buffers.give(row)
        return came

    def leave(self, layer: PrefetchLayer) -> None:
        for row, ticket in self._staged.pop(layer.number, {}).values():
            self._give_up(row, ticket)

    def arrived(self, layer: int) -> int:
        return self._reads.arrived(layer)

    def forget(self, layer: PrefetchLayer) -> None:
        self._staged.pop(layer.number, None)
        self._buffers.recount({row for staged in self._staged.values() for row, _ in staged.values()})
        self._reads.forget()

    def _give_up(self, row: int, ticket: Ticket) -> None:
        self._reads.cancel(ticket)
        self._buffers.give_up(row, ticket)
