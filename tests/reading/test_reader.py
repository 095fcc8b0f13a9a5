"""What every reader promises of bytes: they all arrive, whatever the sizes and whoever asks."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest
from reader_cases import (
    SIZE,
    Make,
    filled,
    views,
)

from streaming_core.hardware import Machine
from streaming_core.reading import NullReader, Read, RecordFile, Urgency, files


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


# ---- times -----------------------------------------------------------------------------------------------------------


def test_a_ticket_knows_how_long_it_was_queued_and_read(file: RecordFile, make: Make) -> None:
    reader = make(1)  # nobody begins it before it is waited for
    clock = [time.perf_counter()]
    ticket = reader.submit([Read(file, n, views(100), f"read {n}") for n in range(3)])
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
