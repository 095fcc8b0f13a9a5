"""What every reader promises: bytes arrive whole or as an error that says what and where, and order, and an end."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reader_cases import (
    EVERY_READER,
    READERS,
    SIZE,
    Occupied,
    make_file,
    open_descriptors,
    system_threads,
    views,
    wait_until_done,
)

from streaming_core.errors import ReadError
from streaming_core.hardware import Machine
from streaming_core.reading import NullReader, Read, Reader, RecordFile, ThreadReader, Ticket, Urgency, files

Make = Callable[[int], Reader]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    make_file(tmp_path / "data.bin")
    return tmp_path / "data.bin"


@pytest.fixture(params=EVERY_READER)
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """`make(threads)` -> a reader that is closed when the test is over."""
    made: list[Reader] = []

    def make_reader(threads: int) -> Reader:
        made.append(READERS[request.param](threads))
        return made[-1]

    yield make_reader
    for reader in made:
        reader.close()


@pytest.fixture
def file(data: Path, machine: Machine, make: Make) -> Iterator[RecordFile]:
    opened = RecordFile(data, machine, bypass=False)
    yield opened
    opened.close()


def filled(read: Read, content: bytes) -> bool:
    joined = b"".join(read.views)
    return joined == content[read.offset : read.offset + len(joined)]


# ---- bytes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bypass", [False, True])
@pytest.mark.parametrize("threads", [1, 2, 8, 64])
def test_many_reads_of_odd_sizes_all_arrive(
    data: Path, machine: Machine, make: Make, bypass: bool, threads: int
) -> None:
    file = RecordFile(data, machine, bypass=bypass)
    reader = make(threads)
    rng = random.Random(1)
    reads = []
    for n in range(200):
        sizes = [rng.choice([0, 1, rng.randrange(9000), rng.randrange(40_000)]) for _ in range(rng.randrange(1, 6))]
        reads.append(Read(file, rng.randrange(0, SIZE - sum(sizes)), views(*sizes), f"read {n}"))
    reader.wait(reader.submit(reads))
    content = data.read_bytes()
    assert all(filled(read, content) for read in reads)
    file.close()


@pytest.mark.parametrize("bypass", [False, True])
@pytest.mark.parametrize("first", [0, 4096, 4097])
def test_reads_larger_than_the_system_takes_at_once_come_in_pieces(
    data: Path, machine: Machine, make: Make, monkeypatch: pytest.MonkeyPatch, bypass: bool, first: int
) -> None:
    monkeypatch.setattr(files, "LARGEST_READ", 8192)
    file = RecordFile(data, machine, bypass=bypass)
    read = Read(file, first, views(100_000, 3, 8192, 70_000), "large")
    reader = make(2)
    reader.wait(reader.submit([read]))
    assert filled(read, data.read_bytes())
    file.close()


@pytest.mark.parametrize("bypass", [False, True])
def test_a_read_may_have_more_parts_than_the_system_takes_at_once(
    data: Path, machine: Machine, make: Make, bypass: bool
) -> None:
    file = RecordFile(data, machine, bypass=bypass)
    read = Read(file, 17, views(*(n % 90 for n in range(5000))), "many parts")
    reader = make(2)
    reader.wait(reader.submit([read]))
    assert filled(read, data.read_bytes())
    file.close()


@pytest.mark.parametrize("bypass", [False, True])
def test_the_last_bytes_of_a_file_can_be_read(data: Path, machine: Machine, make: Make, bypass: bool) -> None:
    file = RecordFile(data, machine, bypass=bypass)
    reads = [Read(file, SIZE - n, views(n), "tail") for n in (1, 777, 4096, 50_000)]
    reader = make(2)
    reader.wait(reader.submit(reads))
    assert all(filled(read, data.read_bytes()) for read in reads)
    file.close()


def test_nothing_to_read_is_done_at_once(make: Make) -> None:
    for reader in (make(1), make(3), NullReader()):
        ticket = reader.submit([])
        assert ticket.done and not ticket.cancelled
        ticket.wait()
        reader.cancel(ticket)
        reader.wait(ticket)


def test_a_ticket_of_another_reader_is_waited_for_too(make: Make) -> None:
    make(2).wait(NullReader().submit([]))
    make(2).cancel(NullReader().submit([]))


def test_reads_whose_ticket_and_views_nobody_keeps_do_no_harm(file: RecordFile, make: Make) -> None:
    reader = make(4)
    for n in range(2000):
        urgency = Urgency.GUESS if n % 2 else Urgency.DEMAND
        reader.submit([Read(file, n, views(5000 + n), "forgotten") for _ in range(3)], urgency)


def test_several_threads_may_use_one_reader(file: RecordFile, data: Path, make: Make) -> None:
    reader, content = make(3), data.read_bytes()
    wrong: list[int] = []

    def use(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(100):
            reads = [Read(file, rng.randrange(1000), views(rng.randrange(20_000)), "shared") for _ in range(5)]
            reader.wait(reader.submit(reads, rng.choice(list(Urgency))))
            wrong.extend(seed for read in reads if not filled(read, content))

    users = [threading.Thread(target=use, args=(seed,)) for seed in range(4)]
    for user in users:
        user.start()
    for user in users:
        user.join()
    assert not wrong


# ---- order -----------------------------------------------------------------------------------------------------------


class Marks:
    """Tells in which order reads were carried out: all go to the start of one buffer, the first expected the longest.

    A read that comes later than it should overwrites the ends of those that should have come after it.
    """

    def __init__(self, folder: Path, machine: Machine, count: int) -> None:
        path = folder / "marks.bin"
        path.write_bytes(b"".join(bytes([n]) * count for n in range(count)))
        self.file = RecordFile(path, machine, bypass=False)
        self.count = count
        self.buffer = bytearray(count)

    def read(self, mark: int, place: int) -> Read:
        view = memoryview(self.buffer)[: self.count - place]
        return Read(self.file, mark * self.count, [view], f"mark {mark}")

    def order(self) -> list[int]:
        return list(reversed(self.buffer))


def test_demand_reads_overtake_guesses_and_each_kind_keeps_its_order(
    tmp_path: Path, machine: Machine, make: Make
) -> None:
    reader = make(2)
    occupied = Occupied(tmp_path, machine, reader)
    marks = Marks(tmp_path, machine, 40)
    urgency = {n: random.Random(n).choice(list(Urgency)) for n in range(40)}
    expected = sorted(urgency, key=lambda n: (urgency[n] is Urgency.GUESS, n))
    tickets = [reader.submit([marks.read(n, expected.index(n))], urgency[n]) for n in range(40)]
    assert not occupied.ticket.done, "the machine is too fast for this test"
    wait_until_done(*tickets)
    assert marks.order() == expected
    reader.wait(occupied.ticket)


def test_whoever_waits_never_carries_out_a_guess(file: RecordFile, make: Make) -> None:
    reader = make(1)
    guess = Read(file, 0, views(100), "guess")
    guessed = reader.submit([guess], Urgency.GUESS)
    reader.wait(reader.submit([Read(file, 0, views(100), "demand")]))
    assert not guessed.done
    assert not any(guess.views[0])


def test_a_guess_that_is_waited_for_becomes_a_demand(tmp_path: Path, machine: Machine, make: Make) -> None:
    reader = make(2)
    occupied = Occupied(tmp_path, machine, reader)
    guesses = [Read(occupied.file, 0, views(10), f"guess {n}") for n in range(50)]
    tickets = [reader.submit([guess], Urgency.GUESS) for guess in guesses]
    reader.wait(tickets[-1])
    assert tickets[-1].done and not tickets[0].done
    reader.wait(occupied.ticket)
    wait_until_done(*tickets)


def test_the_waiting_thread_works_while_the_others_are_busy(
    file: RecordFile, tmp_path: Path, machine: Machine, make: Make
) -> None:
    reader = make(2)
    occupied = Occupied(tmp_path, machine, reader)
    reader.wait(reader.submit([Read(file, n, views(10), f"read {n}") for n in range(20)]))
    assert not occupied.ticket.done
    reader.cancel(occupied.ticket)


# ---- times -----------------------------------------------------------------------------------------------------------


def test_a_ticket_knows_how_long_it_was_queued_and_read(file: RecordFile, make: Make) -> None:
    reader = make(1)  # nobody begins it before it is waited for
    clock = [time.perf_counter()]
    ticket = reader.submit([Read(file, n, views(100), f"read {n}") for n in range(3)], Urgency.GUESS)
    clock.append(time.perf_counter())
    time.sleep(0.001)
    clock.append(time.perf_counter())
    reader.wait(ticket)
    assert ticket.queue_s >= clock[2] - clock[1]
    assert 0 < ticket.read_s <= time.perf_counter() - clock[2]
    assert ticket.queue_s + ticket.read_s <= time.perf_counter() - clock[0]


def test_a_ticket_that_was_never_begun_took_no_time(file: RecordFile, make: Make) -> None:
    reader = make(1)
    ticket = reader.submit([Read(file, 0, views(100), "read")])
    reader.cancel(ticket)
    empty = reader.submit([])
    assert (ticket.queue_s, ticket.read_s, empty.queue_s, empty.read_s) == (0.0, 0.0, 0.0, 0.0)


# ---- cancelling ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("urgency", list(Urgency))
def test_cancelled_reads_end_quietly_and_touch_nothing(
    file: RecordFile, tmp_path: Path, machine: Machine, make: Make, urgency: Urgency
) -> None:
    reader = make(2)
    occupied = Occupied(tmp_path, machine, reader)
    reads = [Read(file, 0, views(100), f"read {n}") for n in range(10)]
    ticket = reader.submit(reads, urgency)
    after = reader.submit([Read(file, 0, views(100), "after")], urgency)
    reader.cancel(ticket)
    assert ticket.done and ticket.cancelled
    assert not any(any(view) for read in reads for view in read.views)
    ticket.wait()
    reader.wait(ticket)
    reader.cancel(occupied.ticket)
    wait_until_done(after)
    assert not after.cancelled


def test_cancelling_lets_what_is_under_way_go_on(tmp_path: Path, machine: Machine, make: Make) -> None:
    reader = make(3)
    occupied = Occupied(tmp_path, machine, reader)
    time.sleep(0.002)
    reader.cancel(occupied.ticket)
    reader.wait(occupied.ticket)
    assert occupied.ticket.done and occupied.ticket.cancelled


def test_cancelling_what_is_done_changes_nothing(file: RecordFile, make: Make) -> None:
    reader = make(2)
    ticket = reader.submit([Read(file, 0, views(100), "read")])
    reader.wait(ticket)
    reader.cancel(ticket)
    assert not ticket.cancelled


def test_without_threads_a_cancelled_read_still_ends(file: RecordFile, make: Make) -> None:
    reader = make(1)
    ticket = reader.submit([Read(file, 0, views(100), "read")])
    reader.cancel(ticket)
    ticket.wait()
    assert ticket.cancelled


STEPS = st.lists(
    st.tuples(st.sampled_from(["demand", "guess", "cancel", "wait", "ask", "pause"]), st.integers(0, 1 << 16)),
    max_size=60,
)


@given(steps=STEPS, threads=st.sampled_from([1, 2, 5, 64]))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_sequence_of_calls_ends_with_every_view_filled_or_untouched(
    data: Path, machine: Machine, make: Make, steps: list[tuple[str, int]], threads: int
) -> None:
    reader, content = make(threads), data.read_bytes()
    file = RecordFile(data, machine, bypass=len(steps) % 2 == 0)
    asked: list[tuple[Ticket, list[Read]]] = []
    for step, number in steps:
        if step in ("demand", "guess"):
            reads = [Read(file, number + n, views(number * 3 % 50_000, n), "read") for n in range(number % 7)]
            asked.append((reader.submit(reads, Urgency(step)), reads))
        elif step == "pause":
            time.sleep(number % 300 / 1e6)
        elif asked:
            ticket, reads = asked[number % len(asked)]
            if step == "cancel":
                reader.cancel(ticket)
            elif step == "wait":
                reader.wait(ticket)
                assert ticket.done
            elif ticket.done and not ticket.cancelled:
                assert all(filled(read, content) for read in reads)
    for ticket, reads in asked:
        reader.wait(ticket)
        assert all(filled(read, content) or (ticket.cancelled and not any(map(any, read.views))) for read in reads)
    reader.close()
    file.close()


# ---- errors ----------------------------------------------------------------------------------------------------------


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


# ---- the end ---------------------------------------------------------------------------------------------------------


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


def test_no_thread_and_no_file_is_left_behind(data: Path, machine: Machine, make: Make) -> None:
    threads, descriptors = system_threads(), open_descriptors()
    for count in (1, 2, 9):
        file = RecordFile(data, machine, bypass=True)
        reader = make(count)
        assert system_threads() in (threads + count - 1, 0)
        reader.wait(reader.submit([Read(file, n, views(5000), "read") for n in range(20)]))
        reader.close()
        file.close()
    deadline = time.monotonic() + 2  # the kernel takes a thread off the list a moment after it was joined
    while system_threads() > threads and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (system_threads(), open_descriptors()) == (threads, descriptors)


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
