"""What a run did: counters kept by the engine, and the values `stats()` gives out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from typing import Any

__all__ = ["LayerCounters", "LayerStats", "Stats", "added"]


@dataclass(slots=True)
class LayerCounters:
    """Mutable; owned by one streamed layer, written by the thread that runs the model."""

    calls: int = 0
    hits: int = 0
    misses: int = 0
    demand_bytes: int = 0
    wait_s: float = 0.0
    sync_s: float = 0.0
    elapsed_s: float = 0.0
    syncs: int = 0
    guessed: int = 0
    guesses_used: int = 0
    guesses_read: int = 0
    prefetch_bytes: int = 0

    def reset(self) -> None:
        self.calls = self.hits = self.misses = self.demand_bytes = self.syncs = 0
        self.guessed = self.guesses_used = self.guesses_read = self.prefetch_bytes = 0
        self.wait_s = self.sync_s = self.elapsed_s = 0.0

    @property
    def wasted_bytes(self) -> int:
        """Read on a guess and not asked for by the call it was made for; a later call may still find it in a slot."""
        return _unused_bytes(self)


@dataclass(frozen=True, slots=True)
class LayerStats:
    """One streamed layer since the last reset.

    `elapsed_s` is made of `wait_s`, `sync_s` and `host_s`.  It lasts from the end of the streamed layer before (for the
    first one: from the start of the pass) to the end of this one, so the layers between two streamed ones are in it.
    """

    layer: int
    hits: int  # asked experts that were in a slot
    misses: int
    demand_bytes: int  # read because the router asked
    wait_s: float  # time the model stood still for reads
    guessed: int = 0  # reads (or hints) begun on a guess
    guesses_used: int = 0  # of them, asked for by the call they were made for
    guesses_read: int = 0  # of them, read to the end by now (or hinted): not taken back, not on their way
    prefetch_bytes: int = 0  # of those
    sync_s: float = 0.0  # time in the evaluation of the router's choice: computation the host waits for, guesses' too
    elapsed_s: float = 0.0

    @property
    def host_s(self) -> float:
        """The rest: building graphs, planning, acting on guesses."""
        return max(0.0, self.elapsed_s - self.wait_s - self.sync_s)

    @property
    def wasted_bytes(self) -> int:
        """Read on a guess and not asked for by the call it was made for; a later call may still find it in a slot."""
        return _unused_bytes(self)


def _unused_bytes(row: LayerCounters | LayerStats) -> int:
    unused = max(0, row.guesses_read - row.guesses_used)
    return row.prefetch_bytes * unused // row.guesses_read if unused else 0


@dataclass(frozen=True, slots=True)
class Stats:
    """A model since it was loaded or `reset_stats()` was called."""

    tokens: int  # prompt and generated tokens that went through the streamed layers
    passes: int  # forward passes they went in
    hits: int
    misses: int
    demand_bytes: int
    prefetch_bytes: int  # of guesses read to the end by now, or hinted; what was taken back before is not in it
    guessed: int  # reads (or hints) begun on a guess
    guesses_used: int  # of them, asked for by the router
    wait_s: float
    syncs: int  # times the host waited for the device because a router's choice was needed
    peak_bytes: int  # MLX's peak of allocated memory
    layers: tuple[LayerStats, ...]  # those that are streamed
    sync_s: float = 0.0

    @property
    def hit_rate(self) -> float:
        """Of the experts asked for; 1.0 when none was."""
        asked = self.hits + self.misses
        return self.hits / asked if asked else 1.0

    @property
    def wasted_bytes(self) -> int:
        return sum(row.wasted_bytes for row in self.layers)


def added(parts: Sequence[Stats]) -> Stats:
    """Several stretches of one model's run as one; the peak is the highest.  At least one part."""
    return reduce(_add, parts)


def _add(one: Stats, other: Stats) -> Stats:
    rows = zip(one.layers, other.layers, strict=True)
    sums = _sums(one, other, without=("layers", "peak_bytes"))
    layers = tuple(LayerStats(layer=a.layer, **_sums(a, b, without=("layer",))) for a, b in rows)
    return Stats(**sums, layers=layers, peak_bytes=max(one.peak_bytes, other.peak_bytes))


def _sums(one: Stats | LayerStats, other: Stats | LayerStats, without: Iterable[str]) -> dict[str, Any]:
    names = {each.name for each in fields(one)} - set(without)
    return {name: getattr(one, name) + getattr(other, name) for name in names}
