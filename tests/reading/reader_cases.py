"""The readers under contract, and files, views and reads to try them with."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from streaming_core.hardware import Machine
from streaming_core.reading import (
    NativeReader,
    Read,
    Reader,
    RecordFile,
    ThreadReader,
    Ticket,
    native_available,
    native_missing,
)

SIZE = 300_000
READERS: dict[str, Callable[..., Reader]] = {"threads": ThreadReader, "native": NativeReader}
NATIVE = pytest.param(
    "native", marks=pytest.mark.skipif(not native_available(), reason=f"not built: {native_missing()}")
)
EVERY_READER = ["threads", NATIVE]
HEAVY = 8 << 20  # bytes of a read that takes a millisecond or so even from the page cache

Make = Callable[..., Reader]


def make_file(path: Path, nbytes: int = SIZE) -> bytes:
    content = random.Random(0).randbytes(nbytes)
    path.write_bytes(content)
    return content


def views(*sizes: int) -> list[memoryview]:
    return [memoryview(bytearray(n)) for n in sizes]


def filled(read: Read, content: bytes) -> bool:
    joined = b"".join(read.views)
    return joined == content[read.offset : read.offset + len(joined)]


class Occupied:
    """Keeps every thread of a reader busy, for a tenth of a second or so, with demand reads that nobody wants."""

    def __init__(self, folder: Path, machine: Machine, reader: Reader, reads: int = 100) -> None:
        path = folder / "heavy.bin"
        path.write_bytes(bytes(HEAVY))
        self.file = RecordFile(path, machine, bypass=False)
        (view,) = views(HEAVY)
        self.ticket = reader.submit([Read(self.file, 0, [view], "heavy") for _ in range(reads)])


def wait_until_done(*tickets: Ticket, seconds: float = 20.0) -> None:
    """As a caller that has better to do than to help."""
    deadline = time.monotonic() + seconds
    while not all(ticket.done for ticket in tickets):
        assert time.monotonic() < deadline, "reads did not end"
        time.sleep(0.001)


def system_threads() -> int:
    """Threads of this process, whoever made them; zero where the system does not say."""
    return len(os.listdir("/proc/self/task")) if sys.platform == "linux" else 0


def has_threads(count: int) -> bool:
    """Whether there are so many, soon: the kernel takes a thread off the list a moment after it was joined."""
    deadline = time.monotonic() + 2
    while system_threads() not in (count, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    return system_threads() in (count, 0)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd" if sys.platform == "linux" else "/dev/fd"))
