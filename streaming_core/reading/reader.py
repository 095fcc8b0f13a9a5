"""The seam between who wants bytes and who fetches them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from streaming_core.errors import ReadError
from streaming_core.reading.files import RecordFile

__all__ = ["NullReader", "Read", "Reader", "Ticket"]


@dataclass(frozen=True, slots=True)
class Read:
    """`len(views)` consecutive byte ranges of `file` from `offset` on, each into one writable view."""

    file: RecordFile
    offset: int
    views: Sequence[memoryview]  # format "B"
    label: str  # who wants it, for messages: "expert 5 of layer 3"


class Ticket:
    """Some reads on their way.  Made by a reader; waited for by the thread that submitted them."""

    __slots__ = ("_done", "_error", "_left", "_lock")

    def __init__(self, count: int) -> None:
        self._left = count
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._error: ReadError | None = None
        if count == 0:
            self._done.set()

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def finish_one(self, error: ReadError | None = None) -> None:
        """Called by a reader, once per read, from any thread.  The first error is kept."""
        with self._lock:
            self._error = self._error or error
            self._left -= 1
            if self._left == 0:
                self._done.set()

    def wait(self) -> None:
        """Blocks until every read has ended.  Raises the first ReadError."""
        self._done.wait()
        if self._error is not None:
            raise self._error


class Reader(Protocol):
    """Fetches.  `submit` never blocks; the views must stay alive and unread until the ticket is waited for."""

    def submit(self, reads: Sequence[Read]) -> Ticket: ...

    def wait(self, ticket: Ticket) -> None:
        """Blocks until the ticket's reads have ended; may carry some of them out in the calling thread."""

    def close(self) -> None:
        """Ends the threads; reads not begun end with an error.  Idempotent."""


class NullReader:
    """Reads nothing and says it has: the cost of everything but reading, and a test double."""

    def submit(self, reads: Sequence[Read]) -> Ticket:
        return Ticket(0)

    def wait(self, ticket: Ticket) -> None:
        ticket.wait()

    def close(self) -> None:
        return
