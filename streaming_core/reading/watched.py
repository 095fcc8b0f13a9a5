"""A reader that says what it is asked for, for whoever keeps statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from streaming_core.reading.reader import Read, Reader, Ticket, Urgency

__all__ = ["OnSubmit", "WatchedReader", "watch_nothing"]

OnSubmit = Callable[[Ticket, Sequence[Read], Urgency], None]


def watch_nothing(ticket: Ticket, reads: Sequence[Read], urgency: Urgency) -> None:
    """Ignores what is submitted."""


class WatchedReader:
    """`reader`; `on_submit` hears of every ticket right after it was made, in the thread that submits."""

    def __init__(self, reader: Reader, on_submit: OnSubmit = watch_nothing) -> None:
        self.on_submit = on_submit
        self._reader = reader
        # Straight to the reader: nothing is to be heard of these.
        self.cancel: Callable[[Ticket], None] = reader.cancel
        self.hurry: Callable[[Ticket], None] = reader.hurry
        self.wait: Callable[[Ticket], None] = reader.wait
        self.reset: Callable[[], None] = reader.reset
        self.close: Callable[[], None] = reader.close

    def submit(self, reads: Sequence[Read], urgency: Urgency = Urgency.DEMAND) -> Ticket:
        ticket = self._reader.submit(reads, urgency)
        self.on_submit(ticket, reads, urgency)
        return ticket
