"""The machine whose readings are set by hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from streaming_core.errors import ReadError, StoreInvalid
from streaming_core.hardware import Conditions, FakeMachine, Machine, MemoryState, ProcessMemory, default_budget_bytes
from streaming_core.units import GIB


def test_every_reading_can_be_set_and_changed(tmp_path: Path) -> None:
    fake = FakeMachine()
    machine: Machine = fake
    fake.memory_reading = MemoryState(5, 6, "critical")
    fake.process_reading = ProcessMemory(1, 2, 3)
    fake.conditions_reading = Conditions("battery", True, "serious", 9.5)
    fake.physical_read, fake.swap_in, fake.free_disk, fake.can_drop = 7, 8, 9, False
    fake.direct_alignment = 512
    assert machine.memory().pressure == "critical" and machine.process_memory().footprint_bytes == 3
    assert machine.conditions().thermal == "serious" and machine.direct_alignment == 512
    assert (machine.physical_read_bytes(), machine.swap_in_bytes(), machine.free_disk_bytes(tmp_path)) == (7, 8, 9)
    assert machine.drop_cached(tmp_path) is False and fake.dropped == [tmp_path]


def test_files_are_opened_for_real(tmp_path: Path) -> None:
    path = tmp_path / "store"
    path.write_bytes(b"abc")
    fd = FakeMachine().open_for_read(path, bypass=True)
    assert os.read(fd, 9) == b"abc"
    os.close(fd)
    with pytest.raises(StoreInvalid):
        FakeMachine().open_for_read(tmp_path / "none", bypass=False)


def test_a_file_system_that_cannot_bypass_is_refused_and_not_worked_around(tmp_path: Path) -> None:
    path = tmp_path / "store"
    path.write_bytes(b"abc")
    fake = FakeMachine(can_bypass=False)
    with pytest.raises(ReadError, match=r"store: its file system cannot bypass .* set reading\.page_cache=keep"):
        fake.open_for_read(path, bypass=True)
    os.close(fake.open_for_read(path, bypass=False))


@pytest.mark.parametrize("gib", [8, 16, 24, 36, 64, 128])
def test_a_fake_mac_leaves_room_for_its_system(gib: int) -> None:
    mac = FakeMachine.mac("Apple M4", gib * GIB)
    assert 0 < default_budget_bytes(mac.hardware(), mac.memory()) < 0.82 * gib * GIB
    assert mac.hardware().profile_name() == f"m4-{gib}g"
