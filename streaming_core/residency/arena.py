"""The buffers that banks live in: they start on pages, and the system is asked for large pages behind them.

A record is read into one piece per part.  The scattered 4 KiB pages of an ordinary buffer make that many pieces more
for the device: a virtual disk read 2 to 2.5 times as fast into large pages (docs/log.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import mlx.core as mx
import numpy as np

from streaming_core.geometry import PAGE
from streaming_core.units import round_up

__all__ = ["Arena", "JoinPages", "arenas"]

_WORD = 8
JoinPages = Callable[[int, int], None]  # (address, bytes): memory in use, see Machine.join_pages

# Banks smaller than this share a buffer: large pages are 2 MiB, and the ends of a buffer seldom fill one.
_SHARED_BYTES = 64 << 20


class Arena:
    """One MLX buffer, given out in pieces that start on pages.  MLX's own CPU buffers do not start on one."""

    def __init__(self, nbytes: int, join_pages: JoinPages | None = None) -> None:
        """Room for pieces whose sizes, each rounded up to whole pages, sum up to `nbytes`."""
        # In words of 8 bytes: MLX allows no axis of 2^31 elements.
        self._room = mx.zeros((round_up(nbytes + PAGE, _WORD) // _WORD,), dtype=mx.uint64)
        mx.eval(self._room)
        address = np.array(self._room, copy=False).ctypes.data
        self._next = -address % PAGE
        if join_pages is not None:
            join_pages(address, self._room.nbytes)

    def take(self, nbytes: int) -> mx.array:
        """uint64 [nbytes / 8, rounded up] that shares the buffer."""
        piece = self._room[self._next // _WORD : (self._next + nbytes + _WORD - 1) // _WORD]
        assert piece.nbytes >= nbytes, "the arena was made too small"
        mx.eval(piece)
        self._next += round_up(nbytes, PAGE)
        return piece


def arenas(sizes: Sequence[int], join_pages: JoinPages) -> Iterator[Arena]:
    """For each of `sizes`, bytes in whole pages, the arena to take them from; made when the first of them is due."""
    first = 0
    while first < len(sizes):
        after, total = first + 1, sizes[first]
        while after < len(sizes) and total < _SHARED_BYTES:
            total += sizes[after]
            after += 1
        arena = Arena(total, join_pages)
        for _ in range(first, after):
            yield arena
        del arena  # a bank that is gone must not be kept by the next one's buffer
        first = after
