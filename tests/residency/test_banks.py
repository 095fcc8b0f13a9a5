"""Every bank shows what was written into their views, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import mlx.core as mx
import numpy as np
import pytest

from streaming_core.geometry import PAGE, RecordGeometry
from streaming_core.hardware import FakeMachine, Machine
from streaming_core.prefetch import SideBuffers
from streaming_core.reading import Ticket
from streaming_core.residency.bank import Bank, PinnedStage, RowBank, SlotBank, StagedBank

GEOMETRY = RecordGeometry.of(
    [("w", "uint32", (3, 5)), ("s", "bfloat16", (7,)), ("g", "float32", ()), ("b", "uint8", (2,))]
)
SLOTS = 6
BANKS: dict[str, Callable[[], Bank]] = {
    "unified": lambda: SlotBank(GEOMETRY, SLOTS),
    "rows": lambda: RowBank(SlotBank(GEOMETRY, SLOTS + 5), 2, SLOTS),
    "staged": lambda: staged(2),
}


def staged(batch: int) -> StagedBank:
    """With the host in the place of the device: it copies when what `fill` returned is evaluated, or never."""
    stage = PinnedStage(GEOMETRY, batch, FakeMachine().pin(PinnedStage.room(GEOMETRY, batch)))

    def fill(arrays: dict[str, mx.array], records: int) -> mx.array:
        rows = np.frombuffer(stage._memory.view, np.uint32)[:records].tolist()
        for part, at in zip(GEOMETRY.parts, stage.offsets, strict=True):
            held = np.array(arrays[part.name].reshape(SLOTS, -1).view(mx.uint8), copy=False)
            for number, row in enumerate(rows):
                first = at + number * part.nbytes
                held[row] = np.frombuffer(stage._memory.view[first : first + part.nbytes], np.uint8)
        return mx.array([1])

    return StagedBank(GEOMETRY, SLOTS, stage, fill)


def as_bytes(bank: Bank) -> dict[str, np.ndarray]:
    rows = mx.array([bank.row(slot) for slot in range(SLOTS)])
    return {name: np.array(mx.contiguous(a[rows]).reshape(SLOTS, -1).view(mx.uint8)) for name, a in bank.arrays.items()}


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


def test_a_slot_and_a_side_buffer_change_places_and_no_row_is_in_two_hands() -> None:
    whole = SlotBank(GEOMETRY, 12)
    layers = [RowBank(whole, 0, 4), RowBank(whole, 4, 4)]
    sides = SideBuffers(whole, layers)
    rng = np.random.default_rng(1)
    for number in range(60):
        layer, slot = layers[number % 2], int(rng.integers(4))
        row = sides.take()
        for view in sides.views(row):
            view[:] = bytes([number]) * len(view)
        left = layer.exchange(slot, row)
        assert left is not None
        sides.give(left)
        assert layer.row(slot) == row
        assert all(bytes(view) == bytes([number]) * len(view) for view in layer.destinations([slot])[0])
        assert sides.room == 4
        assert len({*layers[0].rows, *layers[1].rows}) == 8


def test_a_given_up_row_comes_free_once_however_its_read_ends() -> None:
    class Ending:
        """Done from the second time on that somebody asks."""

        asked = 0

        @property
        def done(self) -> bool:
            self.asked += 1
            return self.asked > 1

    sides = SideBuffers(SlotBank(GEOMETRY, 3))
    for _ in range(3):
        sides.give_up(sides.take(), cast(Ticket, Ending()))
    assert [sides.room, sides.room, sides.room] == [0, 3, 3]
    assert {sides.take() for _ in range(3)} == {0, 1, 2}


def test_after_an_interruption_free_is_what_is_neither_used_nor_a_slot() -> None:
    whole = SlotBank(GEOMETRY, 9)
    layer = RowBank(whole, 0, 4)
    sides = SideBuffers(whole, [layer])
    taken = [sides.take() for _ in range(3)]
    layer.exchange(1, taken[0])  # and the row it left is lost on the way
    sides.recount({taken[1]})
    assert sides.room == 9 - 4 - 1
    assert {sides.take() for _ in range(4)} == set(range(9)) - {*layer.rows, taken[1]}


def test_the_slots_of_a_unified_bank_begin_on_pages_when_their_size_allows_direct_reads() -> None:
    bank = SlotBank(RecordGeometry.of([("w", "uint32", (1024,)), ("s", "float32", (2048,))]), 3)
    for views in bank.destinations(range(3)):
        assert all(np.frombuffer(view, np.uint8).ctypes.data % PAGE == 0 for view in views)


def test_a_stage_gives_every_part_room_of_its_own_that_begins_on_a_page() -> None:
    memory = FakeMachine().pin(PinnedStage.room(GEOMETRY, 3))
    stage = PinnedStage(GEOMETRY, 3, memory)
    assert all(offset % PAGE == 0 for offset in stage.offsets)
    stage.name_rows([7, 8, 9])
    for slot, views in enumerate(stage.destinations(range(3))):
        for number, view in enumerate(views):
            view[:] = bytes([16 * slot + number]) * len(view)
    assert np.frombuffer(memory.view, np.uint32)[:3].tolist() == [7, 8, 9]
    for slot, views in enumerate(stage.destinations(range(3))):
        for number, (view, part) in enumerate(zip(views, GEOMETRY.parts, strict=True)):
            assert bytes(view) == bytes([16 * slot + number]) * part.nbytes


def test_a_bank_may_be_larger_than_an_axis_of_mlx(machine: Machine) -> None:
    available = machine.memory().available_bytes
    if available is None or available < 6 << 30:
        pytest.skip("needs 6 GiB of free memory")
    slots = 5
    bank = SlotBank(RecordGeometry.of([("w", "uint32", (1 << 27,)), ("s", "bfloat16", (3,))]), slots)
    assert bank.arrays["w"].shape == (slots, 1 << 27)
    last = bank.destinations([slots - 1])[0][0]
    assert len(last) == 1 << 29
    last[-4:] = (77).to_bytes(4, "little")
    assert bank.arrays["w"][slots - 1, -1].item() == 77
