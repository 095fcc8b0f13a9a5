"""Readers fill what they are given, whole or with an error that says what and where."""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from streaming_core.errors import ReadError
from streaming_core.hardware import Machine
from streaming_core.reading import NullReader, Read, RecordFile, ThreadReader
from streaming_core.reading.files import Bounce

SIZE = 300_000


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.bin"
    path.write_bytes(random.Random(0).randbytes(SIZE))
    return path


def views(*sizes: int) -> list[memoryview]:
    return [memoryview(bytearray(n)) for n in sizes]


@pytest.mark.parametrize("bypass", [False, True])
@pytest.mark.parametrize("threads", [1, 4])
def test_many_reads_of_odd_sizes_all_arrive(data: Path, machine: Machine, bypass: bool, threads: int) -> None:
    file = RecordFile(data, machine, bypass=bypass)
    reader = ThreadReader(threads)
    rng = random.Random(1)
    reads = []
    for n in range(200):
        sizes = [rng.randrange(1, 9000) for _ in range(rng.randrange(1, 5))]
        reads.append(Read(file, rng.randrange(0, SIZE - sum(sizes)), views(*sizes), f"read {n}"))
    reader.wait(reader.submit(reads))
    content = data.read_bytes()
    for read in reads:
        joined = b"".join(read.views)
        assert joined == content[read.offset : read.offset + len(joined)]
    reader.close()
    file.close()


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


@pytest.mark.parametrize("bypass", [False, True])
def test_a_read_past_the_end_names_file_offset_and_expert(data: Path, machine: Machine, bypass: bool) -> None:
    file = RecordFile(data, machine, bypass=bypass)
    reader = ThreadReader(2)
    with pytest.raises(ReadError, match=rf"expert 5 of layer 3.*data\.bin:\d+.*the file ends at {SIZE}"):
        reader.wait(reader.submit([Read(file, SIZE - 10, views(20), "expert 5 of layer 3")]))
    reader.close()
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


def test_closing_ends_the_threads_and_what_was_not_begun(
    data: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.preadv

    def slow(fd: int, buffers: Sequence[Any], offset: int) -> int:
        time.sleep(0.02)
        return whole(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", slow)
    file = RecordFile(data, machine, bypass=False)
    before = threading.active_count()
    reader = ThreadReader(3)
    ticket = reader.submit([Read(file, 0, views(10), f"read {n}") for n in range(100)])
    started = time.monotonic()
    reader.close()
    reader.close()
    assert time.monotonic() - started < 1
    assert threading.active_count() == before
    with pytest.raises(ReadError, match="closed"):
        ticket.wait()
    with pytest.raises(ReadError, match="closed"):
        reader.submit([])
    file.close()


def test_nothing_to_read_is_done_at_once() -> None:
    for reader in (ThreadReader(1), NullReader()):
        reader.wait(reader.submit([]))
        reader.close()


def test_whatever_a_read_raises_is_reported_and_costs_no_thread(
    data: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.preadv

    def exhausted(fd: int, buffers: Sequence[Any], offset: int) -> int:
        raise MemoryError("none left")

    monkeypatch.setattr(os, "preadv", exhausted)
    file = RecordFile(data, machine, bypass=False)
    reader = ThreadReader(3)
    threads = threading.active_count()
    ticket = reader.submit([Read(file, 0, views(10), "expert 1 of layer 2") for _ in range(10)])
    with pytest.raises(ReadError, match="expert 1 of layer 2: MemoryError: none left"):
        reader.wait(ticket)
    monkeypatch.setattr(os, "preadv", whole)
    reader.wait(reader.submit([Read(file, 0, views(10), "again") for _ in range(10)]))
    assert threading.active_count() == threads
    reader.close()
    file.close()
