"""Reads carried out by Python threads: always there, on every system."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence

from streaming_core.errors import ReadError
from streaming_core.reading.files import Bounce
from streaming_core.reading.reader import Read, Ticket

__all__ = ["ThreadReader"]


class ThreadReader:
    """`threads` readers; the thread that waits is one of them, so a single read costs no hand-over."""

    def __init__(self, threads: int) -> None:
        self._queue: queue.SimpleQueue[tuple[Read, Ticket] | None] = queue.SimpleQueue()
        self._bounce = Bounce()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"expert-reader-{n}", daemon=True) for n in range(threads - 1)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, reads: Sequence[Read]) -> Ticket:
        if self._closed:
            raise ReadError("the reader is closed; load the model again")
        ticket = Ticket(len(reads))
        for read in reads:
            self._queue.put((read, ticket))
        return ticket

    def wait(self, ticket: Ticket) -> None:
        while not ticket.done:
            try:
                job = self._queue.get_nowait()
            except queue.Empty:
                break
            if job is None:
                self._queue.put(None)  # it was meant for a thread
                break
            self._carry_out(*job)
        ticket.wait()

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            self._carry_out(*job)

    def _carry_out(self, read: Read, ticket: Ticket) -> None:
        if self._closed:
            ticket.finish_one(ReadError(f"{read.label}: the reader was closed before it was read"))
            return
        try:
            read.file.fill(read.offset, read.views, self._bounce, read.label)
        except ReadError as err:
            ticket.finish_one(err)
        except BaseException as err:
            # The waiting thread must hear of it, whatever it was, or it waits for ever.
            ticket.finish_one(ReadError(f"{read.label}: {type(err).__name__}: {err}"))
            raise
        else:
            ticket.finish_one()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        while True:  # whatever nobody began
            try:
                job = self._queue.get_nowait()
            except queue.Empty:
                return
            if job is not None:
                self._carry_out(*job)
