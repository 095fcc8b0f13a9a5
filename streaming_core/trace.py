"""What a run did: counters kept by the engine, and the values `stats()` gives out."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LayerCounters", "LayerStats", "Stats"]


@dataclass(slots=True)
class LayerCounters:
    """Mutable; owned by one streamed layer, written by the thread that runs the model."""

    calls: int = 0
    hits: int = 0
    misses: int = 0
    demand_bytes: int = 0
    wait_s: float = 0.0
    syncs: int = 0
    guessed: int = 0
    guesses_used: int = 0
    prefetch_bytes: int = 0

    def reset(self) -> None:
        self.calls = self.hits = self.misses = self.demand_bytes = self.syncs = 0
        self.guessed = self.guesses_used = self.prefetch_bytes = 0
        self.wait_s = 0.0


@dataclass(frozen=True, slots=True)
class LayerStats:
    """One streamed layer since the last reset."""

    layer: int
    hits: int  # asked experts that were in a slot
    misses: int
    demand_bytes: int  # read because the router asked
    wait_s: float  # time the model stood still for reads
    guessed: int = 0  # reads (or hints) begun on a guess
    guesses_used: int = 0  # of them, asked for by the router


@dataclass(frozen=True, slots=True)
class Stats:
    """A model since it was loaded or `reset_stats()` was called."""

    tokens: int  # prompt and generated tokens that went through the streamed layers
    passes: int  # forward passes they went in
    hits: int
    misses: int
    demand_bytes: int
    prefetch_bytes: int
    guessed: int  # reads (or hints) begun on a guess
    guesses_used: int  # of them, asked for by the router
    wait_s: float
    syncs: int  # times the host waited for the device because a router's choice was needed
    peak_bytes: int  # MLX's peak of allocated memory
    layers: tuple[LayerStats, ...]

    @property
    def hit_rate(self) -> float:
        """Of the experts asked for; 1.0 when none was."""
        asked = self.hits + self.misses
        return self.hits / asked if asked else 1.0
