"""What every reader promises of a read that fails and of its own end: an error that says what and where."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from reader_cases import (
    SIZE,
    Make,
    Occupied,
    filled,
    has_threads,
    open_descriptors,
    system_threads,
    views,
    wait_until_done,
)

from streaming_core.errors import ReadError
from streaming_core.hardware import Machine
from streaming_core.reading import Read, RecordFile, ThreadReader, Urgency


@pytest.mark.parametrize("bypass", [False, True])
@pytest.mark.parametrize("start", [SIZE - 10, SIZE // 4096 * 4096, SIZE, SIZE + 9000])
def test_a_read_past_the_end_names_file_offset_and_expert(
    data: Path, machine: Machine, make: Make, bypass: bool, start: int
) -> None:
    file = RecordFile(data, machine, bypass=bypass)
    reader = make(2)
    (view,) = (memoryview(bytearray(3 * 4096))[:8192],)
    with pytest.raises(ReadError) as caught:
        reader.wait(reader.submit([Read(file, start, [view], "expert 5 of layer 3")]))
    assert str(caught.value) == (
        f"expert 5 of layer 3: reading 8192 bytes at {data}:{start}: the file ends at {SIZE}; "
        "check the disk, then run `mlx-autotune pack --verify`"
    )
    file.close()


@pytest.mark.skipif(sys.platform != "linux", reason="the file that always fails is Linux's")
def test_a_failing_disk_is_an_error_with_its_reason(machine: Machine, make: Make) -> None:
    file = RecordFile(Path("/proc/self/mem"), machine, bypass=False)  # nothing is mapped at its start
    reader = make(3)
    ticket = reader.submit([Read(file, 0, views(10), "expert 1 of layer 2") for _ in range(10)])
    for wait in (lambda: reader.wait(ticket), ticket.wait, lambda: reader.wait(ticket)):
        with pytest.raises(ReadError, match=r"^expert 1 of layer 2: reading 10 bytes at .*:0: Input/output error; "):
            wait()
    file.close()


def test_one_bad_read_spoils_its_ticket_but_no_other_read(file: RecordFile, data: Path, make: Make) -> None:
    reader = make(2)
    reads = [Read(file, SIZE - 50 if n == 3 else n, views(100), f"read {n}") for n in range(8)]
    with pytest.raises(ReadError, match=r"^read 3: "):
        reader.wait(reader.submit(reads))
    assert sum(filled(read, data.read_bytes()) for read in reads) == 7


def test_a_file_closed_before_is_an_error(data: Path, machine: Machine, make: Make) -> None:
    file = RecordFile(data, machine, bypass=False)
    file.close()
    reader = make(2)
    with pytest.raises(ReadError, match=r"^late: .*data\.bin:5: Bad file descriptor; "):
        reader.wait(reader.submit([Read(file, 5, views(10), "late")]))


@pytest.mark.parametrize("bypass", [False, True])
def test_a_file_cut_short_under_it_is_an_error_or_whole(data: Path, machine: Machine, make: Make, bypass: bool) -> None:
    file, content = RecordFile(data, machine, bypass=bypass), data.read_bytes()
    reader = make(4)
    reads = [Read(file, n * 1000, views(10_000), f"read {n}") for n in range(290)]
    tickets = [reader.submit([read]) for read in reads]
    with data.open("r+b") as writable:
        writable.truncate(150_000)
    for read, ticket in zip(reads, tickets, strict=True):
        try:
            reader.wait(ticket)
        except ReadError as err:
            assert "the file ends at 150000" in str(err)
        else:
            assert filled(read, content) or read.offset + 10_000 > 149_000
    file.close()


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


@pytest.mark.parametrize("threads", [1, 3])
def test_closing_ends_what_was_not_begun(tmp_path: Path, machine: Machine, make: Make, threads: int) -> None:
    reader = make(threads)
    occupied = Occupied(tmp_path, machine, reader)
    guessed = reader.submit([Read(occupied.file, 0, views(10), "guess")], Urgency.GUESS)
    started = time.monotonic()
    reader.close()
    reader.close()
    assert time.monotonic() - started < 1
    for ticket in (occupied.ticket, guessed):
        assert ticket.done and not ticket.cancelled
        with pytest.raises(ReadError, match=r"^(heavy|guess): the reader was closed before it was read"):
            ticket.wait()
        with pytest.raises(ReadError, match="closed"):
            reader.wait(ticket)
        reader.cancel(ticket)
    with pytest.raises(ReadError, match=r"^the reader is closed; load the model again$"):
        reader.submit([])


@pytest.mark.parametrize("threads", [1, 3])
def test_after_a_reset_nothing_is_under_way_and_the_reader_works(
    tmp_path: Path, machine: Machine, make: Make, threads: int
) -> None:
    before = system_threads()
    reader = make(threads)
    occupied = Occupied(tmp_path, machine, reader)
    guesses = [Read(occupied.file, 0, views(10), f"guess {n}") for n in range(64)]
    tickets = [reader.submit([guess], Urgency.GUESS) for guess in guesses]
    reader.reset()
    assert all(ticket.done for ticket in (occupied.ticket, *tickets))
    with pytest.raises(ReadError, match=r"^heavy: the reader was closed"):
        reader.wait(occupied.ticket)
    reader.cancel(tickets[0])
    reads = [Read(occupied.file, 0, views(10), "again") for _ in range(20)]
    wait_until_done(*(reader.submit([read], Urgency.GUESS) for read in reads))
    reader.wait(reader.submit(reads))
    reader.close()
    reader.reset()
    with pytest.raises(ReadError, match="closed"):
        reader.submit([])
    deadline = time.monotonic() + 2
    while system_threads() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert system_threads() <= before


def test_no_thread_and_no_file_is_left_behind(data: Path, machine: Machine, make: Make) -> None:
    threads, descriptors = system_threads(), open_descriptors()
    for count in (1, 2, 9):
        file = RecordFile(data, machine, bypass=True)
        reader = make(count)
        assert has_threads(threads + count - 1)
        reader.wait(reader.submit([Read(file, n, views(5000), "read") for n in range(20)]))
        reader.close()
        file.close()
    assert has_threads(threads)
    assert open_descriptors() == descriptors
