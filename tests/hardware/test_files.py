"""What systems share of dropping a file from the page cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from streaming_core.errors import StoreInvalid
from streaming_core.hardware._files import drop_cached


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Descriptors that were written through to the disk."""
    heard: list[int] = []
    monkeypatch.setattr(os, "fsync", heard.append)
    return heard


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


@pytest.mark.parametrize("dropped", [True, False])
def test_a_file_is_written_through_then_dropped_and_closed(tmp_path: Path, synced: list[int], dropped: bool) -> None:
    path = tmp_path / "store"
    path.write_bytes(b"x")

    def drop(fd: int) -> bool:
        assert synced == [fd] and is_open(fd)
        return dropped

    assert drop_cached(path, drop) is dropped
    assert not is_open(synced[0])


def test_a_system_that_refuses_dropped_nothing_and_keeps_nothing_open(tmp_path: Path, synced: list[int]) -> None:
    path = tmp_path / "store"
    path.write_bytes(b"x")

    def refuse(fd: int) -> bool:
        raise OSError("not supported")

    assert drop_cached(path, refuse) is False
    assert not is_open(synced[0])


def test_what_is_no_file_is_a_fault_of_the_store(tmp_path: Path) -> None:
    with pytest.raises(StoreInvalid, match="does not exist"):
        drop_cached(tmp_path / "none", lambda fd: True)
    with pytest.raises(StoreInvalid, match="is not a regular file"):
        drop_cached(tmp_path, lambda fd: True)
