"""Reads carried out by Python threads: always there, on every system."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Sequence

from streaming_core.errors import ReadError
from streaming_core.reading.files import Bounce
from streaming_core.reading.reader import UNLIMITED, Read, Ticket, Urgency, reader_closed, reader_forked

__all__ = ["ThreadReader"]


class ThreadTicket:
    """The ticket of a ThreadReader.  It keeps the reads not begun; whoever takes one off carries it out."""

    __slots__ = (
        "_all_ended", "_began_at", "_cancelled", "_ended_at", "_error", "_left", "_lock", "_not_begun", "_submitted_at",
        "demanded",
    )  # fmt: skip

    def __init__(self, reads: Sequence[Read], demanded: bool) -> None:
        self.demanded = demanded
        self._not_begun = deque(reads)
        self._left = len(reads)
        self._lock = threading.Lock()
        self._all_ended = threading.Event()
        self._error: ReadError | None = None
        self._cancelled = False
        self._submitted_at = time.perf_counter()
        self._began_at = self._ended_at = 0.0  # 0: not yet
        if not reads:
            self._all_ended.set()

    @property
    def done(self) -> bool:
        return self._all_ended.is_set()

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    @property
    def queue_s(self) -> float:
        return self._began_at - self._submitted_at if self._began_at else 0.0

    @property
    def read_s(self) -> float:
        return self._ended_at - self._began_at if self._began_at else 0.0

    @property
    def not_begun(self) -> int:
        return len(self._not_begun)

    def take(self) -> Read | None:
        """The next read to carry out; None when all are begun.  From any thread."""
        try:
            return self._not_begun.popleft()
        except IndexError:
            return None

    def begin_one(self) -> None:
        """A read taken is carried out now.  Two threads may both be the first; either's time will do."""
        if not self._began_at:
            self._began_at = time.perf_counter()

    def finish_one(self, error: ReadError | None = None, *, cancelled: bool = False) -> None:
        """Once per read taken, from any thread.  The first error is kept."""
        with self._lock:
            self._error = self._error or error
            self._cancelled = self._cancelled or cancelled
            self._left -= 1
            if self._left == 0:
                self._ended_at = time.perf_counter()
                self._all_ended.set()

    def wait(self) -> None:
        self._all_ended.wait()
        if self._error is not None:
            raise self._error


class ThreadReader:
    """`threads` readers; the thread that waits is one of them, so a single read costs no hand-over.

    With one thread there is nobody else, and reads begin when they are waited for; but nobody waits for a guess, so
    the first one starts a thread.
    """

    def __init__(self, threads: int, guess_threads: int = UNLIMITED) -> None:
        # One entry per read, naming the ticket to take a read from.  Entries outlive reads that the waiting thread took
        # or that were cancelled; whoever meets such an entry drops it.  Nothing here needs a lock of ours.
        self._demands: deque[ThreadTicket] = deque()
        self._guesses: deque[ThreadTicket] = deque()
        self._bounce = Bounce()
        self._closed = False
        self._process = os.getpid()
        self._threads: list[threading.Thread] = []
        self._count = threads - 1
        self._guess_threads = guess_threads
        self._start(self._count)

    def _start(self, count: int) -> None:
        """Raises ReadError where that many threads cannot be started."""
        self._halted = False  # reads not begun end with an error
        self._may_guess = threading.Semaphore(self._guess_threads)
        self._wakes: queue.SimpleQueue[bool] = queue.SimpleQueue()  # True: there is something to do; False: end
        for n in range(count):
            work = threading.Thread(target=self._work, args=(self._wakes,), name=f"expert-reader-{n}", daemon=True)
            self._threads.append(work)  # before it starts: Ctrl-C may come between
            try:
                work.start()
            except RuntimeError as err:
                self._stop()
                reason = f"{count + 1} reader threads cannot be started: {err}"
                raise ReadError(f"{reason}; lower reading.threads") from err

    def submit(self, reads: Sequence[Read], urgency: Urgency = Urgency.DEMAND) -> Ticket:
        if self._forked:
            raise reader_forked()
        if self._closed:
            raise reader_closed()
        if urgency is Urgency.GUESS and not self._threads:
            self._start(1)
        ticket = ThreadTicket(reads, urgency is Urgency.DEMAND)
        self._enter(self._demands if ticket.demanded else self._guesses, ticket, len(reads))
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        # In the child of a fork a lock of the ticket may be held by a thread that is not there.
        if isinstance(ticket, ThreadTicket) and not self._forked:
            while ticket.take() is not None:
                ticket.finish_one(cancelled=True)

    def hurry(self, ticket: Ticket) -> None:
        if isinstance(ticket, ThreadTicket) and not ticket.demanded and not self._forked:
            ticket.demanded = True
            self._enter(self._demands, ticket, ticket.not_begun)

    def wait(self, ticket: Ticket) -> None:
        if self._forked:
            raise reader_forked()
        if isinstance(ticket, ThreadTicket):
            self.hurry(ticket)
            while (read := ticket.take()) is not None:
                self._carry_out(read, ticket)
        ticket.wait()

    @property
    def _forked(self) -> bool:
        return os.getpid() != self._process

    def _enter(self, entries: deque[ThreadTicket], ticket: ThreadTicket, count: int) -> None:
        while entries and not entries[0].not_begun:  # without threads nobody else drops these
            self._next(entries)
        entries.extend([ticket] * count)
        if self._threads:
            for _ in range(count):
                self._wakes.put(True)

    def _work(self, wakes: queue.SimpleQueue[bool]) -> None:
        # Until nothing is left, not one read a wake: entries made before there was a thread have no wake of theirs.
        while wakes.get():
            while self._work_on(self._next(self._demands)) or self._guess():
                pass

    def _work_on(self, ticket: ThreadTicket | None) -> bool:
        if ticket is not None and (read := ticket.take()) is not None:
            self._carry_out(read, ticket)
        return ticket is not None

    def _guess(self) -> bool:
        """Works on one guess, if there is one and enough threads do not do so already; they look again after theirs."""
        may_guess = self._may_guess
        if not self._guesses or not may_guess.acquire(blocking=False):
            return False
        try:
            return self._work_on(self._next(self._guesses))
        finally:
            may_guess.release()

    @staticmethod
    def _next(*queues: deque[ThreadTicket]) -> ThreadTicket | None:
        for entries in queues:
            try:
                return entries.popleft()
            except IndexError:
                continue
        return None

    def _carry_out(self, read: Read, ticket: ThreadTicket) -> None:
        if self._halted:
            ticket.finish_one(reader_closed(read.label))
            return
        ticket.begin_one()
        try:
            read.file.fill(read.offset, read.views, self._bounce, read.label)
        except ReadError as err:
            ticket.finish_one(err)
        except BaseException as err:
            # The waiting thread must hear of it, whatever it was, or it waits for ever.
            ticket.finish_one(ReadError(f"{read.label}: {type(err).__name__}: {err}"))
            if not isinstance(err, Exception):  # Ctrl-C; anything else must not cost a thread
                raise
        else:
            ticket.finish_one()

    def reset(self) -> None:
        if self._forked:
            raise reader_forked()
        if not self._closed:
            self._stop()
            self._start(self._count)

    def close(self) -> None:
        self._closed = True
        if not self._forked:
            self._stop()

    def _stop(self) -> None:
        self._halted = True
        for _ in self._threads:
            self._wakes.put(False)
        while self._threads:
            if self._threads[-1].ident is not None:  # it was started
                self._threads[-1].join()
            self._threads.pop()
        while (ticket := self._next(self._demands, self._guesses)) is not None:
            while (read := ticket.take()) is not None:
                self._carry_out(read, ticket)
