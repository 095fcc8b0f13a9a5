"""One layer's slots: the MLX arrays that hold records, and the memory a reader writes into.

Legend: S rows of an array, one a slot unless a bank is shared.  A part of shape [...] per expert is one array [S, ...].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

import mlx.core as mx

from streaming_core.geometry import PAGE, RecordGeometry
from streaming_core.residency.arena import Arena
from streaming_core.units import round_up

__all__ = ["Bank", "RowBank", "SlotBank", "StagedBank"]


class Bank(Protocol):
    """Who writes: `destinations`, then reads into the views, then `commit`.  No graph that reads one of those slots may
    be unevaluated or running meanwhile; the caller sees to that."""

    geometry: RecordGeometry
    arrays: dict[str, mx.array]  # part name -> [S, ...]
    batch: int  # how many slots can be written between two commits
    shared: bool  # the views are the arrays' own memory

    def row(self, slot: int) -> int:
        """Where the slot lies in the arrays."""

    def destinations(self, slots: Sequence[int]) -> list[list[memoryview]]:
        """For each slot, one writable byte view per part, in the order of the geometry."""

    def exchange(self, slot: int, row: int) -> int | None:
        """The slot moves to `row`; returns the row it leaves.  None: slots of this bank stay where they are."""

    def commit(self, slots: Sequence[int]) -> None:
        """The views of the last `destinations(slots)` are filled; makes the arrays show it."""


class SlotBank:
    """Unified memory: the views are the arrays' own memory, so a read lands where the kernel looks for it."""

    def __init__(self, geometry: RecordGeometry, slots: int, arena: Arena | None = None) -> None:
        """Takes `room(geometry, slots)` bytes of the arena, or makes one of its own."""
        self.geometry = geometry
        self.batch = slots
        self.shared = True
        self.arrays: dict[str, mx.array] = {}
        self._pieces: list[tuple[memoryview, int]] = []  # a part's memory, and its bytes of one slot
        arena = arena or Arena(self.room(geometry, slots))
        for part in geometry.parts:
            memory = arena.take(part.nbytes * slots)
            self._pieces.append((memoryview(cast(Any, memory)), part.nbytes))
            dtype = getattr(mx, part.dtype)
            array = (memory if dtype == mx.uint8 else memory.view(dtype)).reshape(slots, *part.shape)
            mx.eval(array)
            self.arrays[part.name] = array

    @staticmethod
    def room(geometry: RecordGeometry, slots: int) -> int:
        """Bytes, in whole pages."""
        return sum(round_up(part.nbytes * slots, PAGE) for part in geometry.parts)

    def row(self, slot: int) -> int:
        return slot

    def destinations(self, slots: Sequence[int]) -> list[list[memoryview]]:
        return [[memory[s * n : (s + 1) * n] for memory, n in self._pieces] for s in slots]

    def exchange(self, slot: int, row: int) -> int | None:
        return None

    def commit(self, slots: Sequence[int]) -> None:
        return


class RowBank:
    """One layer's slots in the rows of a bank that it shares with other layers and with side buffers, so that what was
    read into a side buffer becomes a slot without being copied."""

    def __init__(self, whole: SlotBank, first: int, slots: int) -> None:
        """The rows from `first` on are this layer's to begin with."""
        self.geometry = whole.geometry
        self.arrays = whole.arrays
        self.batch = slots
        self.shared = True
        self.rows = list(range(first, first + slots))
        self._whole = whole

    def row(self, slot: int) -> int:
        return self.rows[slot]

    def destinations(self, slots: Sequence[int]) -> list[list[memoryview]]:
        return self._whole.destinations([self.rows[slot] for slot in slots])

    def exchange(self, slot: int, row: int) -> int | None:
        left = self.rows[slot]
        self.rows[slot] = row
        return left

    def commit(self, slots: Sequence[int]) -> None:
        return


class StagedBank:
    """Device memory apart from the host's (CUDA): reads land in a staging bank, a kernel copies them over.

    Host writes into memory that the GPU also reads make pages wander back and forth; measured 35 tokens/s against 63
    with banks that stay on the device (docs/log.md).
    """

    def __init__(self, geometry: RecordGeometry, slots: int, stage: SlotBank) -> None:
        """`stage` has the same geometry and may serve several banks, one fill at a time."""
        self.geometry = geometry
        self.batch = stage.batch
        self.shared = False
        self._stage = stage
        self.arrays = {
            part.name: mx.zeros((slots, *part.shape), dtype=getattr(mx, part.dtype)) for part in geometry.parts
        }
        mx.eval(self.arrays)

    def row(self, slot: int) -> int:
        return slot

    def destinations(self, slots: Sequence[int]) -> list[list[memoryview]]:
        return self._stage.destinations(range(len(slots)))

    def exchange(self, slot: int, row: int) -> int | None:
        return None

    def commit(self, slots: Sequence[int]) -> None:
        where = mx.array(list(slots), dtype=mx.uint32)
        for name, array in self.arrays.items():
            # With no other reference to the buffer MLX updates it in place; evaluated at once, because the next read
            # will overwrite the stage.
            array[where] = self._stage.arrays[name][: len(slots)]
        mx.eval(self.arrays)
