"""Reads of guesses on their way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from streaming_core.errors import ReadError
from streaming_core.reading import Read, Reader, Ticket, Urgency
from streaming_core.residency.bank import Bank
from streaming_core.residency.table import SlotTable

__all__ = ["GuessReads", "PrefetchLayer"]


class PrefetchLayer(Protocol):
    """What a backend needs of a streamed layer."""

    number: int
    table: SlotTable
    bank: Bank

    def reads(self, expert: int, views: Sequence[memoryview]) -> list[Read]: ...

    def place(self, expert: int, slot: int) -> None:
        """Notes the slot in the layer's table; nothing unfinished reads that slot any more when it returns."""


class GuessReads:
    """At most `depth` guesses are queued or being read at once, over all layers: a long queue is soon out of date."""

    def __init__(self, reader: Reader, depth: int) -> None:
        self._reader = reader
        self._depth = depth
        self._begun: list[tuple[int, Ticket]] = []  # with the layer; not all of them done
        self._arrived: Counter[int] = Counter()

    @property
    def room(self) -> int:
        """How many may begin now."""
        self._settle()
        return max(0, self._depth - len(self._begun))

    def arrived(self, layer: int) -> int:
        """How many of the layer's were read to their end since this was asked before."""
        self._settle()
        return self._arrived.pop(layer, 0)

    def _settle(self) -> None:
        under_way = []
        for layer, ticket in self._begun:
            if not ticket.done:
                under_way.append((layer, ticket))
            elif not ticket.cancelled:
                self._arrived[layer] += 1
        self._begun = under_way

    def begin(self, layer: PrefetchLayer, expert: int, views: Sequence[memoryview]) -> Ticket | None:
        """None: it could not begin.  The router may never ask for it; if it does, the demand read says why."""
        try:
            ticket = self._reader.submit(layer.reads(expert, views), Urgency.GUESS)
        except ReadError:
            return None
        self._begun.append((layer.number, ticket))
        return ticket

    def came(self, ticket: Ticket) -> bool:
        """Waits for a guess that is wanted after all.  False, as above, if it did not come."""
        try:
            self._reader.wait(ticket)
        except ReadError:
            return False
        return not ticket.cancelled

    def cancel(self, ticket: Ticket) -> None:
        self._reader.cancel(ticket)

    def forget(self) -> None:
        """None is under way any more."""
        self._begun = []
