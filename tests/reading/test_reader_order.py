"""What every reader promises of order: demand reads first, each kind in turn, and cancelling."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reader_cases import (
    HEAVY,
    Make,
    Occupied,
    filled,
    views,
    wait_until_done,
)

from streaming_core.hardware import Machine
from streaming_core.reading import Read, RecordFile, Ticket, Urgency


def heavy_file(folder: Path, machine: Machine) -> RecordFile:
    path = folder / "sparse.bin"
    path.touch()
    os.truncate(path, 60 * HEAVY)
    return RecordFile(path, machine, bypass=False)


def heavy_read(file: RecordFile, times: int) -> Read:
    """`times` times as long as a heavy read, all of it into the same place."""
    return Read(file, 0, views(HEAVY) * times, "heavy")


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


@pytest.mark.parametrize("count", [1, 2])
def test_demand_reads_begin_before_anybody_waits(file: RecordFile, data: Path, make: Make, count: int) -> None:
    reader = make(2)
    wait_until_done(reader.submit([Read(file, 0, views(10), "first")]))  # its thread is idle from now on
    reads = [Read(file, n, views(100), f"read {n}") for n in range(count)]
    wait_until_done(reader.submit(reads), seconds=5)
    assert all(filled(read, data.read_bytes()) for read in reads)


def test_whoever_waits_never_carries_out_a_guess(
    file: RecordFile, tmp_path: Path, machine: Machine, make: Make
) -> None:
    reader = make(2)
    occupied = Occupied(tmp_path, machine, reader)  # the other thread
    guess = Read(file, 0, views(100), "guess")
    guessed = reader.submit([guess], Urgency.GUESS)
    reader.wait(reader.submit([Read(file, 0, views(100), "demand")]))
    assert not occupied.ticket.done and not guessed.done
    assert not any(guess.views[0])
    reader.cancel(occupied.ticket)


def test_no_more_threads_than_may_do_so_read_guesses(tmp_path: Path, machine: Machine, make: Make) -> None:
    reader = make(4, 1)
    file = heavy_file(tmp_path, machine)
    reads = [heavy_read(file, 8) for _ in range(5)]
    guesses, before, after = [], [], []
    for read in reads:
        before.append(time.perf_counter())
        guesses.append(reader.submit([read], Urgency.GUESS))
        after.append(time.perf_counter())
    wait_until_done(*guesses)
    # A ticket tells how long it queued, so that when its read began is known as closely as when it was submitted.
    ended = [at + guess.queue_s + guess.read_s for at, guess in zip(before, guesses, strict=True)]
    began = [at + guess.queue_s for at, guess in zip(after, guesses, strict=True)]
    assert all(end <= begin + 0.0005 for end, begin in zip(ended, began[1:], strict=False))


def test_a_hurried_guess_does_not_wait_for_the_thread_that_reads_guesses(
    tmp_path: Path, machine: Machine, make: Make
) -> None:
    reader = make(3, 1)
    file = heavy_file(tmp_path, machine)
    first = reader.submit([heavy_read(file, 60)], Urgency.GUESS)
    second = reader.submit([heavy_read(file, 1)], Urgency.GUESS)
    reader.hurry(second)
    reader.hurry(second)
    wait_until_done(second)
    assert not first.done
    reader.cancel(first)
    wait_until_done(first)


@pytest.mark.parametrize("demanded", [0, 1, 30])
def test_one_thread_serves_guesses_too_after_the_demand_reads(
    file: RecordFile, data: Path, make: Make, demanded: int
) -> None:
    reader, content = make(1), data.read_bytes()
    demands = [Read(file, n, views(1000), f"demand {n}") for n in range(demanded)]
    guesses = [Read(file, n, views(2000), f"guess {n}") for n in range(50)]
    tickets = [reader.submit([read]) for read in demands]
    tickets += [reader.submit([read], Urgency.GUESS) for read in guesses]
    wait_until_done(*tickets)  # nobody helps
    assert all(filled(read, content) for read in demands + guesses)


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
