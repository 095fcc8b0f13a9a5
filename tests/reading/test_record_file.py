"""One blocking read from a file, in Python."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from reader_cases import SIZE, make_file, views

from streaming_core.errors import ReadError
from streaming_core.hardware import Machine
from streaming_core.reading import Read, RecordFile, ThreadReader
from streaming_core.reading.files import Bounce


@pytest.fixture
def data(tmp_path: Path) -> Path:
    make_file(tmp_path / "data.bin")
    return tmp_path / "data.bin"


def test_the_last_bytes_of_a_file_can_be_read_past_the_page_cache(data: Path, machine: Machine) -> None:
    file = RecordFile(data, machine, bypass=True)
    (view,) = views(777)
    file.fill(SIZE - 777, [view], Bounce(), "tail")
    assert bytes(view) == data.read_bytes()[-777:]
    file.close()


def test_short_reads_are_completed(data: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.preadv

    def short(fd: int, buffers: Sequence[Any], offset: int) -> int:
        return whole(fd, [memoryview(buffers[0])[: max(1, len(buffers[0]) // 3)]], offset)

    monkeypatch.setattr(os, "preadv", short)
    file = RecordFile(data, machine, bypass=False)
    got = views(1000, 1, 5000)
    file.fill(123, got, Bounce(), "short")
    assert b"".join(got) == data.read_bytes()[123 : 123 + 6001]
    file.close()


def test_a_failing_disk_is_an_error_with_its_reason(
    data: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(fd: int, buffers: Sequence[Any], offset: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", broken)
    file = RecordFile(data, machine, bypass=False)
    reader = ThreadReader(3)
    ticket = reader.submit([Read(file, 0, views(10), "expert 1 of layer 2") for _ in range(10)])
    with pytest.raises(ReadError, match=r"expert 1 of layer 2.*Input/output error"):
        reader.wait(ticket)
    reader.close()
    file.close()
