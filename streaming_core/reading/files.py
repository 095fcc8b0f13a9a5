"""Open files that hold expert bytes, and one blocking read from them."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from streaming_core.errors import ReadError
from streaming_core.geometry import PAGE
from streaming_core.hardware import Machine
from streaming_core.units import round_up

__all__ = ["Bounce", "RecordFile"]

# macOS refuses a single read of 2 GiB or more, and Linux cuts it short a page below that.
LARGEST_READ = 1 << 30


class Bounce(threading.local):
    """A page-aligned buffer per thread, for direct reads whose target is not aligned.  Grows to the largest read."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None

    def take(self, nbytes: int) -> memoryview:
        if self._memory is None or len(self._memory) < nbytes:
            self._memory = mmap.mmap(-1, round_up(nbytes, 1 << 16))
        return memoryview(self._memory)[:nbytes]


class RecordFile:
    """One file of a store, opened once.  Reads may come from any number of threads."""

    def __init__(self, path: Path, machine: Machine, *, bypass: bool) -> None:
        """Raises StoreInvalid when the file is not there, ReadError when it cannot be opened that way."""
        self.path = path
        self.fd = machine.open_for_read(path, bypass)
        self.align = machine.direct_alignment if bypass else 1
        self.size = os.fstat(self.fd).st_size

    def fill(self, offset: int, views: Sequence[memoryview], bounce: Bounce, label: str) -> None:
        """Fills the views with the bytes from `offset` on.  Raises ReadError with file, offset and label."""
        try:
            if self.align > 1 and not self._aligned(offset, views):
                self._fill_through(bounce, offset, views, label)
            else:
                self._fill_straight(offset, views, label)
        except (OSError, ValueError) as err:
            if isinstance(err, ReadError):
                raise
            reason = err.strerror if isinstance(err, OSError) and err.strerror else str(err)
            raise self._error(label, offset, sum(map(len, views)), reason) from err

    def _error(self, label: str, offset: int, nbytes: int, reason: str) -> ReadError:
        return ReadError(
            f"{label}: reading {nbytes} bytes at {self.path}:{offset}: {reason}; "
            "check the disk, then run `mlx-autotune pack --verify`"
        )

    def _aligned(self, offset: int, views: Sequence[memoryview]) -> bool:
        mask = self.align - 1
        if offset & mask:
            return False
        return not any(len(v) & mask or np.frombuffer(v, np.uint8).ctypes.data & mask for v in views)

    def _fill_straight(self, offset: int, views: Sequence[memoryview], label: str) -> None:
        left = [v for v in views if len(v)]
        if len(left) <= 64 and sum(map(len, left)) < LARGEST_READ:  # one call, as nearly always
            left = _after(left, self._read_some(offset, left, label))
        position = offset + sum(map(len, views)) - sum(map(len, left))
        while left:
            got = self._read_some(position, [left[0][:LARGEST_READ]], label)
            position += got
            left = _after(left, got)

    def _read_some(self, offset: int, views: Sequence[memoryview], label: str) -> int:
        got = os.preadv(self.fd, views, offset)
        if got == 0:
            raise self._error(label, offset, sum(map(len, views)), f"the file ends at {os.fstat(self.fd).st_size}")
        return got

    def _fill_through(self, bounce: Bounce, offset: int, views: Sequence[memoryview], label: str) -> None:
        lead = offset % self.align
        wanted = lead + sum(map(len, views))
        room = bounce.take(round_up(wanted, max(self.align, PAGE)))
        have = 0
        while have < wanted:
            # A direct read ends short at the end of the file, which need not be aligned.
            have += self._read_some(offset - lead + have, [room[have : have + LARGEST_READ]], label)
            if have < wanted and have % self.align:
                raise self._error(label, offset, wanted, f"the file ends at {os.fstat(self.fd).st_size}")
        source = np.frombuffer(room, np.uint8)
        for view in views:
            # numpy lets other threads run while it copies; slice assignment on a memoryview does not.
            np.copyto(np.frombuffer(view, np.uint8), source[lead : lead + len(view)])
            lead += len(view)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _after(views: Sequence[memoryview], got: int) -> list[memoryview]:
    """What is left of the views once their first `got` bytes are filled."""
    left = []
    for view in views:
        if got >= len(view):
            got -= len(view)
        else:
            left.append(view[got:])
            got = 0
    return left
