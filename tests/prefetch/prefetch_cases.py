"""A reader that misbehaves by seed, whatever reader does the work, and models to run behind it."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache

from streaming_core import Settings, assemble
from streaming_core.errors import ReadError
from streaming_core.reading import Read, Reader, Ticket, Urgency, make_reader, native_available, native_missing
from streaming_core.settings import ReadSettings

NATIVE = pytest.param(
    "native", marks=pytest.mark.skipif(not native_available(), reason=f"not built: {native_missing()}")
)
READERS = ["threads", NATIVE]
MORE = 5
Call = tuple[int, int, int]  # prompt length, chunk, batch


def settings(**values: Any) -> Settings:
    return Settings().with_values({key.replace("__", "."): value for key, value in values.items()})


def run(model: nn.Module, length: int, chunk: int, batch: int) -> mx.array:
    """Logits of a prompt in chunks and of MORE tokens.  [B, length + MORE, V]"""
    tokens = np.random.default_rng(length).integers(0, 200, (batch, length + MORE))
    cache = make_prompt_cache(model)
    steps = [*range(0, length, chunk), *range(length, length + MORE)]
    out = []
    for start, end in zip(steps, [*steps[1:], length + MORE], strict=True):
        out.append(model(mx.array(tokens[:, start:end]), cache=cache))
        mx.eval(out)
    return mx.concatenate(out, axis=1)


@dataclass(frozen=True, kw_only=True)
class Manners:
    """How guesses fare.  Demand reads are slow now and then, and fail when `Unruly.demands_fail` says so."""

    polls: int = 0  # a guess begins when it was asked for `done` up to this often, or when it is waited for
    failing: float = 0.0  # the share of guesses that fail, with half of their bytes overwritten
    refused: float = 0.0  # the share of guesses that `submit` refuses


class HeldTicket:
    """A guess that begins late.  Asking whether it is done moves it on."""

    def __init__(self, inner: Reader, reads: Sequence[Read], polls: int, error: ReadError | None) -> None:
        self.inner, self.reads, self.polls, self.error = inner, reads, polls, error
        self.begun: Ticket | None = None
        self.cancelled_early = False
        self.waited = False

    @property
    def ended(self) -> bool:
        return self.cancelled_early or (self.begun is not None and self.begun.done)

    @property
    def done(self) -> bool:
        self.polls -= 1
        if self.polls < 0:
            self.begin()
        return self.ended

    @property
    def cancelled(self) -> bool:
        return self.cancelled_early or (self.begun is not None and self.begun.cancelled)

    def begin(self) -> None:
        if self.begun is not None or self.cancelled_early:
            return
        if self.error is not None:
            for view in self.reads[0].views[: 1 + len(self.reads[0].views) // 2]:
                view[:] = b"\xff" * len(view)
        self.begun = self.inner.submit([] if self.error else self.reads, Urgency.GUESS)

    def wait(self) -> None:
        if self.begun is not None:
            self.begun.wait()
        if self.error is not None and not self.cancelled_early:
            raise self.error


class Unruly:
    """A reader around another one.  The same seed and calls, the same manners."""

    def __init__(self, inner: Reader, manners: Manners, seed: int = 0) -> None:
        self.inner, self.manners = inner, manners
        self.demands_fail = False
        self.log: list[tuple[Urgency, str]] = []
        self.guesses: list[HeldTicket] = []
        self.refusals = self.failures = self.cancelled = self.most_under_way = 0
        self._rng = random.Random(seed)

    def submit(self, reads: Sequence[Read], urgency: Urgency = Urgency.DEMAND) -> Ticket:
        if urgency is Urgency.DEMAND:
            if self.demands_fail and reads:
                raise ReadError(f"{reads[0].label}: broken on purpose")
            self.log += [(urgency, read.label) for read in reads]
            return self.inner.submit(reads, urgency)
        if self._rng.random() < self.manners.refused:
            self.refusals += 1
            raise ReadError("refused on purpose")
        self.log += [(urgency, read.label) for read in reads]
        error = ReadError("broken on purpose") if self._rng.random() < self.manners.failing else None
        self.failures += error is not None
        ticket = HeldTicket(self.inner, reads, self._rng.randint(0, self.manners.polls), error)
        self.guesses = [*(guess for guess in self.guesses if not guess.ended), ticket]
        self.most_under_way = max(self.most_under_way, len(self.guesses))
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        if not isinstance(ticket, HeldTicket):
            self.inner.cancel(ticket)
        elif ticket.begun is not None:
            self.inner.cancel(ticket.begun)
        else:
            self.cancelled += 1
            ticket.cancelled_early = True

    def hurry(self, ticket: Ticket) -> None:
        if not isinstance(ticket, HeldTicket):
            self.inner.hurry(ticket)
        elif ticket.begun is not None:
            self.inner.hurry(ticket.begun)

    def wait(self, ticket: Ticket) -> None:
        if self._rng.random() < 0.05:
            time.sleep(self._rng.random() * 0.001)
        if isinstance(ticket, HeldTicket):
            ticket.waited = True
            ticket.begin()
            if ticket.begun is not None:
                self.inner.wait(ticket.begun)
            ticket.wait()
        else:
            self.inner.wait(ticket)

    def reset(self) -> None:
        for guess in self.guesses:
            self.cancel(guess)
        self.inner.reset()

    def close(self) -> None:
        self.inner.close()


PutIn = Callable[[Manners], list[Unruly]]


@pytest.fixture
def put_in(monkeypatch: pytest.MonkeyPatch) -> PutIn:
    """`put_in(manners)` -> a list to which every model loaded from now on adds its reader."""

    def put(manners: Manners) -> list[Unruly]:
        made: list[Unruly] = []

        def unruly(reading: ReadSettings) -> Unruly:
            made.append(Unruly(make_reader(reading), manners))
            return made[-1]

        monkeypatch.setattr(assemble, "make_reader", unruly)
        return made

    return put


def reader_threads() -> int:
    """Threads of any reader in this process; only Python's where the system names no others."""
    if sys.platform != "linux":
        return sum(thread.name.startswith("expert-reader") for thread in threading.enumerate())
    python = sum(thread.name.startswith("expert-reader") for thread in threading.enumerate())
    names = []
    for task in Path("/proc/self/task").iterdir():
        try:
            names.append((task / "comm").read_text())
        except OSError:  # it ended meanwhile
            continue
    return max(python, sum(name.startswith("expert-reader") for name in names))


def assert_no_reader_threads() -> None:
    deadline = time.monotonic() + 2  # the kernel takes a thread off the list a moment after it was joined
    while reader_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert reader_threads() == 0
