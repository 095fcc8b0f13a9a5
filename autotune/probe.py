"""What the machine can do at best: bytes per second from the disk, through the reader that trials use, and a ceiling.

A row is called cold only when the operating system counted nearly as many bytes from the device as were asked for.
Everything else came out of memory, whatever was intended.
"""

from __future__ import annotations

import mmap
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from autotune.trial import Counters, Measured
from streaming_core.hardware import Machine
from streaming_core.reading import Read, RecordFile, make_reader, reader_kind
from streaming_core.settings import ReadSettings
from streaming_core.units import round_up

__all__ = ["Ceiling", "DiskRow", "ProbePlan", "best_bandwidth", "ceiling_of", "probe_disk"]

_COLD = 0.95  # of the bytes asked for
_PAGE = 4096


@dataclass(frozen=True, slots=True)
class DiskRow:
    """One point of the table."""

    read_bytes: int  # of one read
    threads: int  # reads in flight
    page_cache: str  # keep or bypass, as in reading.page_cache
    bytes_per_s: float
    physical_share: float | None  # of the bytes asked for that came from the device; None: not known
    read_count: int
    reader: str = "threads"  # threads or native

    @property
    def state(self) -> str:
        if self.physical_share is None:
            return "unverified"
        return "cold" if self.physical_share >= _COLD else "cached"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "state": self.state}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbePlan:
    """Which points are measured.  `keep` is measured twice: after the cache was dropped, and the same reads again."""

    read_bytes: tuple[int, ...]
    threads: tuple[int, ...] = (1, 4, 16)
    reader: str = "auto"  # as in reading.reader
    page_caches: tuple[str, ...] = ("bypass", "keep")
    seconds: float = 0.3  # per point
    seed: int = 0

    @property
    def points(self) -> int:
        passes = sum(2 if page_cache == "keep" else 1 for page_cache in self.page_caches)
        return len(self.read_bytes) * len(self.threads) * passes


def probe_disk(
    files: Sequence[Path],
    machine: Machine,
    plan: ProbePlan,
    on_point: Callable[[int, int], None] = lambda done, of: None,
) -> list[DiskRow]:
    """Reads random records of `files`, each at most once per pass.  Raises ReadError, StoreInvalid."""
    rows: list[DiskRow] = []
    for page_cache in plan.page_caches:
        for read_bytes in plan.read_bytes:
            for threads in plan.threads:
                on_point(len(rows), plan.points)
                for path in files:
                    machine.drop_cached(path)
                point = _Point(round_up(read_bytes, _PAGE), threads, page_cache)
                rows.append(_measure(point, files, machine, plan))
                if page_cache == "keep":
                    rows.append(_measure(point, files, machine, plan, most=rows[-1].read_count))
    on_point(plan.points, plan.points)
    return rows


@dataclass(frozen=True, slots=True)
class _Point:
    read_bytes: int
    threads: int
    page_cache: str


def _measure(
    point: _Point, files: Sequence[Path], machine: Machine, plan: ProbePlan, most: int | None = None
) -> DiskRow:
    opened = [RecordFile(path, machine, bypass=point.page_cache == "bypass") for path in files]
    settings = ReadSettings(threads=point.threads, reader=plan.reader)
    reader = make_reader(settings)
    try:
        reads = _places(opened, point, plan.seed)[:most]
        buffers = _buffers(2 * point.threads, point.read_bytes, machine)
        before = machine.physical_read_bytes()
        start = time.perf_counter()
        asked = count = 0
        while count < len(reads) and time.perf_counter() - start < plan.seconds:
            batch = [
                Read(file, offset, [buffer[: min(point.read_bytes, file.size - offset)]], "probe")
                for buffer, (file, offset) in zip(buffers, reads[count:], strict=False)
            ]
            reader.wait(reader.submit(batch))
            count += len(batch)
            asked += sum(len(read.views[0]) for read in batch)
        elapsed = time.perf_counter() - start
        after = machine.physical_read_bytes()
    finally:
        reader.close()
        for file in opened:
            file.close()
    share = None if before is None or after is None or not asked else (after - before) / asked
    return DiskRow(
        point.read_bytes, point.threads, point.page_cache, asked / elapsed, share, count, reader_kind(settings)
    )


def _buffers(count: int, nbytes: int, machine: Machine) -> list[memoryview]:
    """Memory like that of the banks: in use, and on large pages where the system gives them."""
    room = np.frombuffer(mmap.mmap(-1, count * nbytes), np.uint8)
    room.fill(0)
    machine.join_pages(room.ctypes.data, room.nbytes)
    return [memoryview(cast(Any, room))[n * nbytes : (n + 1) * nbytes] for n in range(count)]


def _places(files: Sequence[RecordFile], point: _Point, seed: int) -> list[tuple[RecordFile, int]]:
    """Every record, shuffled; the same order for the same point."""
    places = [(file, n * point.read_bytes) for file in files for n in range(max(1, file.size // point.read_bytes))]
    random.Random(seed).shuffle(places)
    return places


def best_bandwidth(rows: Sequence[DiskRow], *, cold: bool) -> float | None:
    """Bytes per second of the fastest row; with `cold`, of those that came from the device."""
    return max((row.bytes_per_s for row in rows if not cold or row.state == "cold"), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """What settings would reach if every missed byte came at the probed bandwidth and nothing else was waited for."""

    tps: float
    compute_s: float  # per token
    read_s: float  # per token
    bytes_per_s: float | None  # None: nothing was read
    reads: str  # cold or cached: where the bytes came from in the trials
    compute: str  # "estimated": the token's time without the wait for reads; "measured": with nothing to read
    raised: bool = False  # the estimate was below what was measured, which is what tps then is


def ceiling_of(
    trials: Sequence[Measured], rows: Sequence[DiskRow], resident: Sequence[Measured] = ()
) -> Ceiling | None:
    """From trials of the same settings, and of the resident model where it fits: that is the time of computation.

    Never below what was measured.  None when the trials read, and no bandwidth is known.
    """
    if not trials:
        return None
    compute = "measured" if resident else "estimated"
    if resident:
        compute_s = statistics.median(1.0 / each.decode_tps for each in resident)
    else:
        compute_s = max(1e-9, statistics.median(1.0 / each.decode_tps - _per_token(each).wait_s for each in trials))
    best_tps = max(each.decode_tps for each in trials)
    missed = statistics.median(_per_token(each).missed_bytes for each in trials)
    if not missed:
        return Ceiling(
            tps=max(best_tps, 1.0 / compute_s),
            compute_s=compute_s,
            read_s=0.0,
            bytes_per_s=None,
            reads="none",
            compute=compute,
            raised=best_tps > 1.0 / compute_s,
        )
    cold = all(_was_cold(each.counters) for each in trials)
    bandwidth = best_bandwidth(rows, cold=cold)
    if bandwidth is None:
        return None
    read_s = missed / bandwidth
    return Ceiling(
        tps=max(best_tps, 1.0 / (compute_s + read_s)),
        compute_s=compute_s,
        read_s=read_s,
        bytes_per_s=bandwidth,
        reads="cold" if cold else "cached",
        compute=compute,
        raised=best_tps > 1.0 / (compute_s + read_s),
    )


@dataclass(frozen=True, slots=True)
class _PerToken:
    wait_s: float
    missed_bytes: float


def _per_token(trial: Measured) -> _PerToken:
    tokens = max(1, trial.counters.tokens)
    return _PerToken(trial.counters.wait_s / tokens, trial.counters.demand_bytes / tokens)


def _was_cold(counters: Counters) -> bool:
    return counters.physical_bytes is not None and counters.physical_bytes >= _COLD * counters.demand_bytes
