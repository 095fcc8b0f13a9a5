"""One layer's slots: the MLX arrays that hold records, and the memory a reader writes into.

Legend: S rows of an array, one a slot unless a bank is shared.  A part of shape [...] per expert is one array [S, ...].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Protocol, cast

import mlx.core as mx
import numpy as np

from streaming_core.geometry import PAGE, RecordGeometry
from streaming_core.hardware import PinnedMemory
from streaming_core.residency.arena import Arena
from streaming_core.units import round_up

__all__ = ["Bank", "PinnedStage", "RowBank", "SlotBank", "StagedBank"]

Arrays = dict[str, mx.array]


class Bank(Protocol):
    """Who writes: `destinations`, then reads into the views, then `commit`.  No graph that reads one of those slots may
    be unevaluated or running meanwhile; the caller sees to that."""

    geometry: RecordGeometry
    arrays: dict[str, mx.array]  # part name -> [S, ...]
    batch: int  # how many slots can be written between two commits

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
        self.arrays: dict[str, mx.array] = {}
        self._pieces: list[tuple[memoryview, int]] = []  # a part's memory, and its bytes of one slot
        arena = arena or Arena(self.room(geometry, slots))
        for part in geometry.parts:
            memory = arena.take(part.nbytes * slots)
            self._pieces.append((memoryview(cast(Any, memory)).cast("B")[: part.nbytes * slots], part.nbytes))
            count = slots * math.prod(part.shape)
            array = memory.view(getattr(mx, part.dtype))[:count].reshape(slots, *part.shape)
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


class PinnedStage:
    """Records on their way to a device with memory of its own, in memory of the host's that the device reads.

    The first words name the rows that the records go to; each part's records lie together, from a page on.
    """

    def __init__(self, geometry: RecordGeometry, batch: int, memory: PinnedMemory) -> None:
        """`memory` has `room(geometry, batch)` bytes."""
        self.batch = batch
        self.offsets = self._offsets(geometry, batch)
        self.pending: mx.array | None = None  # there once the device has read what was last put here
        self._memory = memory
        self._rows = np.frombuffer(memory.view, np.uint32)[:batch]
        self._pieces = [(memory.view[at : at + part.nbytes * batch], part.nbytes)
                        for part, at in zip(geometry.parts, self.offsets, strict=True)]  # fmt: skip

    @staticmethod
    def _offsets(geometry: RecordGeometry, batch: int) -> list[int]:
        sizes = [4 * batch, *(part.nbytes * batch for part in geometry.parts)]
        return list(accumulate(round_up(size, PAGE) for size in sizes))[:-1]

    @classmethod
    def room(cls, geometry: RecordGeometry, batch: int) -> int:
        """Bytes, in whole pages."""
        return cls._offsets(geometry, batch)[-1] + round_up(geometry.parts[-1].nbytes * batch, PAGE)

    @property
    def address(self) -> int:
        return self._memory.address

    def destinations(self, slots: Sequence[int]) -> list[list[memoryview]]:
        """As a bank's."""
        return [[memory[s * n : (s + 1) * n] for memory, n in self._pieces] for s in slots]

    def settle(self) -> None:
        """The device has read everything when it returns."""
        if self.pending is not None:
            mx.eval(self.pending)
            self.pending = None

    def name_rows(self, rows: Sequence[int]) -> None:
        self._rows[: len(rows)] = rows


class StagedBank:
    """Device memory apart from the host's (CUDA): reads land in a stage, a kernel copies them over.

    Reads that land in memory which migrates cost ten times as much as both (docs/log.md).
    """

    def __init__(
        self, geometry: RecordGeometry, slots: int, stage: PinnedStage, fill: Callable[[Arrays, int], mx.array]
    ) -> None:
        """`stage` has the same geometry and may serve several banks, one fill at a time; `fill(arrays, n)` copies its
        first n records to the rows it names, and returns what is there when that is done."""
        self.geometry = geometry
        self.batch = stage.batch
        self._stage = stage
        self._fill = fill
        self.arrays = {
            part.name: mx.zeros((slots, *part.shape), dtype=getattr(mx, part.dtype)) for part in geometry.parts
        }
        mx.eval(self.arrays)

    def row(self, slot: int) -> int:
        return slot

    def destinations(self, slots: Sequence[int]) -> list[list[memoryview]]:
        self._stage.settle()
        return self._stage.destinations(range(len(slots)))

    def exchange(self, slot: int, row: int) -> int | None:
        return None

    def commit(self, slots: Sequence[int]) -> None:
        self._stage.name_rows(slots)
        self._stage.pending = self._fill(self.arrays, len(slots))
        # Begun at once: work begun later sees it, work of one graph might not.
        mx.async_eval(self._stage.pending)  # type: ignore[no-untyped-call]
