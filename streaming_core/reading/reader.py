"""The seam between who wants bytes and who fetches them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from streaming_core.errors import ReadError
from streaming_core.reading.files import RecordFile

__all__ = [
    "UNLIMITED",
    "NothingToRead",
    "NullReader",
    "Read",
    "Reader",
    "Ticket",
    "Urgency",
    "reader_closed",
    "reader_forked",
]


UNLIMITED = 4096  # threads that may read guesses: more than there can be


class Urgency(Enum):
    """Which reads begin first; within one urgency the first asked for is the first begun."""

    DEMAND = "demand"  # somebody waits for it, or is about to
    GUESS = "guess"  # may turn out useless: begins only when no demand read is left to begin


@dataclass(frozen=True, slots=True)
class Read:
    """`len(views)` consecutive byte ranges of `file` from `offset` on, each into one writable view."""

    file: RecordFile  # stays open until the read has ended
    offset: int
    views: Sequence[memoryview]  # format "B"
    label: str  # who wants it, for messages: "expert 5 of layer 3"
    layer: int = -1  # whose expert it is, for statistics


class Ticket(Protocol):
    """Some reads on their way.  Made by a reader; waited for by the thread that submitted them."""

    @property
    def done(self) -> bool:
        """Whether every read has ended, well or not.  Takes no lock, so it can be asked at any time."""
        ...

    @property
    def cancelled(self) -> bool:
        """Whether a read of it was cancelled before it was done; its views hold what they held, or half of it."""
        ...

    @property
    def queue_s(self) -> float:
        """From the submission to the begin of the first read.  Of a done ticket; 0 if no read of it was begun."""
        ...

    @property
    def read_s(self) -> float:
        """From the begin of the first read to the end of the last.  Of a done ticket; 0 if no read of it was begun."""
        ...

    def wait(self) -> None:
        """Blocks until every read has ended.  Raises the first ReadError; a cancelled read is no error.

        It only waits: a reader without threads begins nothing until `Reader.wait` is called.
        """


class Reader(Protocol):
    """Fetches.  The views must stay alive and unread until their ticket is done.

    Of its threads a limited number carries out guesses at once: a demand read never waits behind many of them, and
    those at the end of the queue can still be taken back.
    """

    def submit(self, reads: Sequence[Read], urgency: Urgency = Urgency.DEMAND) -> Ticket:
        """Never blocks.  Raises ReadError when the reader is closed, or belongs to the process that forked this one."""
        ...

    def cancel(self, ticket: Ticket) -> None:
        """Reads of the ticket that were not begun end now, untouched; those under way go on, or break off half filled.
        Never blocks."""

    def hurry(self, ticket: Ticket) -> None:
        """Guesses of the ticket not begun become demand reads.  Never blocks."""

    def wait(self, ticket: Ticket) -> None:
        """Blocks until the ticket's reads have ended; raises the first ReadError.

        Whoever waits demands: guesses of the ticket become demand reads.  The calling thread may carry out reads of
        this ticket, and of no other.
        """

    def reset(self) -> None:
        """For a caller that lost track of its tickets: when it returns, no read submitted before is under way.

        Reads not begun end with an error; tickets made before may only be asked or waited for if they are done.
        """

    def close(self) -> None:
        """Ends the threads; reads not begun end with an error, those under way are finished.  Idempotent."""


class NothingToRead:
    """A ticket that was done before it was made."""

    done = True
    cancelled = False
    queue_s = 0.0
    read_s = 0.0

    def wait(self) -> None:
        return


class NullReader:
    """Reads nothing and says it has: the cost of everything but reading, and a test double."""

    def submit(self, reads: Sequence[Read], urgency: Urgency = Urgency.DEMAND) -> Ticket:
        return NothingToRead()

    def cancel(self, ticket: Ticket) -> None:
        return

    def hurry(self, ticket: Ticket) -> None:
        return

    def wait(self, ticket: Ticket) -> None:
        ticket.wait()

    def reset(self) -> None:
        return

    def close(self) -> None:
        return


def reader_closed(label: str | None = None) -> ReadError:
    """The error of a read that comes after `close`, or that `close` found not begun."""
    if label is None:
        return ReadError("the reader is closed; load the model again")
    return ReadError(f"{label}: the reader was closed before it was read; load the model again")


def reader_forked() -> ReadError:
    """The error of a reader in the child of a fork, where it has no threads."""
    return ReadError("the reader belongs to the process that forked this one; load the model in this process")
