"""A reader whose clock is a number: reads take what a table says, and nothing is read.

Demand reads begin when they are submitted.  Guesses wait for one of the reader's guess threads and for demand reads
under way, first come, first served; one that is waited for before it began begins then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autotune.simulate.disk import DiskTable
from streaming_core.reading import NothingToRead, Read, Ticket, Urgency

__all__ = ["VirtualReader"]


class VirtualTicket:
    """Reads of one layer."""

    def __init__(self, reader: VirtualReader, nbytes: int, count: int) -> None:
        self.nbytes = nbytes
        self.count = count
        self.submitted_s = reader.now_s
        self.end_s: float | None = None  # None: not begun
        self.cancelled = False
        self.queue_s = self.read_s = 0.0
        self._reader = reader

    @property
    def done(self) -> bool:
        self._reader.begin_guesses()
        return self.cancelled or (self.end_s is not None and self.end_s <= self._reader.now_s)

    def wait(self) -> None:
        self._reader.wait(self)


class VirtualReader:
    """A reader.  With a table of zeros every read is done when it is submitted.

    Attributes:
        now_s: the clock; whoever computes moves it on.
        waited_s: how far waiting for reads moved it.
    """

    def __init__(self, disk: DiskTable, read_bytes: Mapping[int, int], guess_threads: int = 1) -> None:
        """`read_bytes`: layer -> bytes of one read."""
        self.now_s = 0.0
        self.waited_s = 0.0
        self._disk = disk
        self._read_bytes = read_bytes
        self._queue: list[VirtualTicket] = []
        self._free_s = [0.0] * guess_threads  # when each guess thread is
        self._demands_end_s = 0.0

    def submit(self, reads: Sequence[Read], urgency: Urgency = Urgency.DEMAND) -> Ticket:
        if not reads:
            return NothingToRead()
        ticket = VirtualTicket(self, self._read_bytes[reads[0].layer], len(reads))
        self.begin_guesses()  # those whose turn came before these reads
        if urgency is Urgency.GUESS:
            self._queue.append(ticket)
            self.begin_guesses()
        else:
            self._demand(ticket)
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        self.begin_guesses()
        if isinstance(ticket, VirtualTicket) and ticket.end_s is None and not ticket.cancelled:
            ticket.cancelled = True
            self._queue.remove(ticket)

    def hurry(self, ticket: Ticket) -> None:
        self.begin_guesses()
        if isinstance(ticket, VirtualTicket) and ticket in self._queue:
            self._queue.remove(ticket)
            self._demand(ticket)

    def wait(self, ticket: Ticket) -> None:
        self.hurry(ticket)
        if isinstance(ticket, VirtualTicket) and ticket.end_s is not None and ticket.end_s > self.now_s:
            self.waited_s += ticket.end_s - self.now_s
            self.now_s = ticket.end_s

    def reset(self) -> None:
        self._queue.clear()

    def close(self) -> None:
        return

    def begin_guesses(self) -> None:
        """Begins those whose turn has come by now."""
        while self._queue:
            thread = min(range(len(self._free_s)), key=self._free_s.__getitem__)
            ticket = self._queue[0]
            begin_s = max(self._free_s[thread], self._demands_end_s, ticket.submitted_s)
            if begin_s > self.now_s:
                return
            ticket.end_s = begin_s + self._disk.seconds(ticket.nbytes, ticket.count)
            self._free_s[thread] = ticket.end_s
            self._queue.pop(0)

    def _demand(self, ticket: VirtualTicket) -> None:
        """Shares the disk with the guesses under way."""
        beside = sum(free_s > self.now_s for free_s in self._free_s)
        begin_s = max(self.now_s, self._demands_end_s)
        ticket.end_s = begin_s + self._disk.seconds(ticket.nbytes, ticket.count + beside)
        self._demands_end_s = ticket.end_s
