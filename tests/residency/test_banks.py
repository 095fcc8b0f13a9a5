"""Both banks show what was written into their views, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest

from streaming_core.geometry import PAGE, RecordGeometry
from streaming_core.residency.arena import Arena
from streaming_core.residency.bank import Bank, SlotBank, StagedBank

GEOMETRY = RecordGeometry.of(
    [("w", "uint32", (3, 5)), ("s", "bfloat16", (7,)), ("g", "float32", ()), ("b", "uint8", (2,))]
)
SLOTS = 6
BANKS: dict[str, Callable[[], Bank]] = {
    "unified": lambda: SlotBank(GEOMETRY, SLOTS),
    "staged": lambda: StagedBank(GEOMETRY, SLOTS, SlotBank(GEOMETRY, 2)),
}


def as_bytes(bank: Bank) -> dict[str, np.ndarray]:
    return {name: np.array(mx.contiguous(a).reshape(SLOTS, -1).view(mx.uint8)) for name, a in bank.arrays.items()}


@pytest.mark.parametrize("make", BANKS.values(), ids=BANKS)
def test_what_is_written_into_a_slot_is_what_the_arrays_hold(make: Callable[[], Bank]) -> None:
    bank = make()
    rng = np.random.default_rng(0)
    expected = as_bytes(bank)
    for _ in range(40):
        slots = rng.choice(SLOTS, size=rng.integers(1, bank.batch + 1), replace=False).tolist()
        for slot, views in zip(slots, bank.destinations(slots), strict=True):
            for part, view in zip(GEOMETRY.parts, views, strict=True):
                assert len(view) == part.nbytes
                fresh = rng.integers(0, 256, part.nbytes, dtype=np.uint8)
                view[:] = fresh.tobytes()
                expected[part.name][slot] = fresh
        bank.commit(slots)
        for name, held in as_bytes(bank).items():
            assert np.array_equal(held, expected[name]), name


def test_the_slots_of_a_unified_bank_begin_on_pages_when_their_size_allows_direct_reads() -> None:
    bank = SlotBank(RecordGeometry.of([("w", "uint32", (1024,)), ("s", "float32", (2048,))]), 3)
    for views in bank.destinations(range(3)):
        assert all(np.frombuffer(view, np.uint8).ctypes.data % PAGE == 0 for view in views)


def test_no_slot_begins_on_a_page_where_direct_reads_must_not_go() -> None:
    geometry = RecordGeometry.of([("w", "uint32", (1024,)), ("s", "float32", (2048,)), ("b", "uint8", (5,))])
    bank = SlotBank(geometry, 3, Arena(SlotBank.room(geometry, 3), migrates=True))
    for views in bank.destinations(range(3)):
        assert all(np.frombuffer(view, np.uint8).ctypes.data % PAGE for view in views[:2])
