"""Reads carried out by threads that never need Python's lock: a reader in C, where it was built.

A Python thread that has finished a read must take the lock back to say so, while the main thread builds graphs.  These
threads write a flag instead.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence

from streaming_core.errors import ReadError
from streaming_core.reading import files
from streaming_core.reading.reader import UNLIMITED, Read, Ticket, Urgency, reader_closed, reader_forked

try:
    import streaming_core.reading._native as _native
except ModuleNotFoundError:
    _missing: str | None = "it was not built when the package was installed"
except ImportError as err:
    _missing = str(err)
else:
    _missing = None

__all__ = ["NativeReader", "native_available", "native_missing"]


def native_missing() -> str | None:
    """Why there is no native reader here, in a few words; None where there is one."""
    return _missing


def native_available() -> bool:
    return _missing is None


class NativeTicket:
    """The ticket of a NativeReader."""

    __slots__ = ("_reads", "batch", "pool")

    def __init__(self, pool: _native.Pool, batch: _native.Batch, reads: Sequence[Read]) -> None:
        self.pool = pool
        self.batch = batch
        self._reads = reads

    @property
    def done(self) -> bool:
        return self.batch.done

    @property
    def cancelled(self) -> bool:
        return self.batch.cancelled

    @property
    def ended_ns(self) -> int:
        """When the last read ended, on the clock of `_native.now_ns`; nobody need have looked."""
        return self.batch.ended_ns

    @property
    def queue_s(self) -> float:
        batch = self.batch
        return (batch.began_ns - batch.submitted_ns) / 1e9 if batch.began_ns else 0.0

    @property
    def read_s(self) -> float:
        batch = self.batch
        return (batch.ended_ns - batch.began_ns) / 1e9 if batch.began_ns else 0.0

    def wait(self) -> None:
        self.finish(help_out=False)

    def finish(self, help_out: bool) -> None:
        """Blocks until every read has ended; with `help_out` this thread carries out those that nobody has begun."""
        try:
            self.pool.wait(self.batch, help_out)
        except RuntimeError as err:
            raise _gone(self.pool) from err
        if (failure := self.batch.failure) is not None:
            raise self._error(*failure)

    def _error(self, index: int, outcome: int, code: int) -> ReadError:
        read = self._reads[index]
        if outcome == _native.POOL_CLOSED:
            return reader_closed(read.label)
        if outcome == _native.FILE_ENDED:
            return read.file.ended(read.label, read.offset, read.views)
        return read.file.error(read.label, read.offset, read.views, os.strerror(code))


class NativeReader:
    """As ThreadReader: `threads` readers, of which the thread that waits is one; a guess finds a thread in any case.

    Raises ReadError where the extension is not built, or that many threads cannot be started.
    """

    def __init__(self, threads: int, guess_threads: int = UNLIMITED) -> None:
        if _missing is not None:
            raise ReadError(f"there is no native reader: {_missing}; use reading.reader=threads")
        self._count = threads
        self._guess_threads = guess_threads
        self._closed = False
        self._start()

    def _start(self) -> None:
        try:
            pool = _native.Pool(self._count - 1, self._guess_threads, files.LARGEST_READ)
        except OSError as err:
            reason = f"{self._count} reader threads cannot be started: {err.strerror}"
            raise ReadError(f"{reason}; lower reading.threads") from err
        # Also called at exit: nothing may be written to memory that is on its way out.
        self._close = weakref.finalize(self, pool.close)
        self._pool = pool

    def submit(self, reads: Sequence[Read], urgency: Urgency = Urgency.DEMAND) -> Ticket:
        wanted = [(read.file.fd, read.file.align, read.offset, read.views) for read in reads]
        try:
            batch = self._pool.submit(wanted, urgency is Urgency.GUESS)
        except RuntimeError as err:
            raise _gone(self._pool) from err
        return NativeTicket(self._pool, batch, reads)

    def cancel(self, ticket: Ticket) -> None:
        if isinstance(ticket, NativeTicket):
            ticket.pool.cancel(ticket.batch)

    def hurry(self, ticket: Ticket) -> None:
        if isinstance(ticket, NativeTicket):
            ticket.pool.hurry(ticket.batch)

    def wait(self, ticket: Ticket) -> None:
        if isinstance(ticket, NativeTicket):
            ticket.finish(help_out=True)
        else:
            ticket.wait()

    def reset(self) -> None:
        if self._pool.forked:
            raise reader_forked()
        if not self._closed:
            self._close()
            self._start()

    def close(self) -> None:
        self._closed = True
        self._close()


def _gone(pool: _native.Pool) -> ReadError:
    return reader_forked() if pool.forked else reader_closed()
