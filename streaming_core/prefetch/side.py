"""Side buffers: where guesses are read to until the router asks for them."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Protocol

from streaming_core.reading import Ticket
from streaming_core.residency.bank import RowBank

__all__ = ["SideBuffers"]


class Rows(Protocol):
    """Memory for so many records."""

    batch: int

    def destinations(self, slots: Sequence[int]) -> list[list[memoryview]]: ...


class SideBuffers:
    """Those rows of a bank that are no layer's slots."""

    def __init__(self, bank: Rows, layers: Sequence[RowBank] = ()) -> None:
        """`layers` have their slots in the same bank."""
        self._bank = bank
        self._layers = layers
        self._leaving: list[tuple[int, Ticket]] = []  # given up, but a read may still write into it
        self._free = self._rows()

    def _rows(self) -> list[int]:
        taken = {row for layer in self._layers for row in layer.rows}
        return [row for row in range(self._bank.batch) if row not in taken]

    @property
    def room(self) -> int:
        """How many are free."""
        waiting = []
        for row, ticket in self._leaving:
            if ticket.done:  # asked once: a moment later it may be
                self._free.append(row)
            else:
                waiting.append((row, ticket))
        self._leaving = waiting
        return len(self._free)

    def take(self) -> int:
        return self._free.pop()

    def views(self, row: int) -> list[memoryview]:
        return self._bank.destinations([row])[0]

    def give(self, row: int) -> None:
        """It is free."""
        self._free.append(row)

    def give_up(self, row: int, ticket: Ticket) -> None:
        """It is free when the read is done."""
        self._leaving.append((row, ticket))

    def recount(self, used: Set[int]) -> None:
        """Something was interrupted: free is what is neither used nor a slot.  No given-up read is under way."""
        self._leaving = []
        self._free = [row for row in self._rows() if row not in used]
