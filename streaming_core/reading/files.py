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
MOST_VIEWS = 64  # in one call; systems take 1024


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
                self._fill_through(bounce, offset, views)
            else:
                self._fill_straight(offset, views)
        except EOFError as err:
            raise self.ended(label, offset, views) from err
        except (OSError, ValueError) as err:
            reason = err.strerror if isinstance(err, OSError) and err.strerror else str(err)
            raise self.error(label, offset, views, reason) from err

    def error(self, label: str, offset: int, views: Sequence[memoryview], reason: str) -> ReadError:
        """The error of a read that failed."""
        return ReadError(
            f"{label}: reading {sum(map(len, views))} bytes at {self.path}:{offset}: {reason}; "
            "check the disk, then run `mlx-autotune pack --verify`"
        )

    def ended(self, label: str, offset: int, views: Sequence[memoryview]) -> ReadError:
        """The error of a read that wants more than the file has."""
        try:
            size = os.fstat(self.fd).st_size
        except OSError:  # closed since
            size = self.size
        return self.error(label, offset, views, f"the file ends at {size}")

    def _aligned(self, offset: int, views: Sequence[memoryview]) -> bool:
        mask = self.align - 1
        if offset & mask:
            return False
        return not any(len(v) & mask or np.frombuffer(v, np.uint8).ctypes.data & mask for v in views)

    def _fill_straight(self, offset: int, views: Sequence[memoryview]) -> None:
        left = [v for v in views if len(v)]
        position = offset
        while left:
            if position % self.align:
                raise EOFError  # only the end of the file cuts a direct read short of a block
            got = self._read_some(position, _one_call(left))
            position += got
            left = _after(left, got)

    def _read_some(self, offset: int, views: Sequence[memoryview]) -> int:
        got = os.preadv(self.fd, views, offset)
        if got == 0:
            raise EOFError
        return got

    def _fill_through(self, bounce: Bounce, offset: int, views: Sequence[memoryview]) -> None:
        if not any(map(len, views)):
            return
        lead = offset % self.align
        wanted = lead + sum(map(len, views))
        room = bounce.take(round_up(wanted, max(self.align, PAGE)))
        have = 0
        while have < wanted:
            # A direct read ends short at the end of the file, which need not be aligned.
            have += self._read_some(offset - lead + have, [room[have : have + LARGEST_READ]])
            if have < wanted and have % self.align:
                raise EOFError
        source = np.frombuffer(room, np.uint8)
        for view in views:
            # numpy lets other threads run while it copies; slice assignment on a memoryview does not.
            np.copyto(np.frombuffer(view, np.uint8), source[lead : lead + len(view)])
            lead += len(view)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _one_call(views: Sequence[memoryview]) -> Sequence[memoryview]:
    """The first views, as many as one call to the system takes; nearly always all."""
    room = LARGEST_READ
    for count, view in enumerate(views[:MOST_VIEWS]):
        room -= len(view)
        if room < 0:
            return views[:count] or [views[0][:LARGEST_READ]]
    return views[:MOST_VIEWS]


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
