"""Spaces of settings with a formula for the speed of every point, small enough to try them all.

They are real `Space`s over real settings.  What differs is how hard they are: effects that add up, effects that change
their sign with another knob, and a model of a token's time when experts are streamed from a disk.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from autotune.knobs import Param, Params
from autotune.space import Objective, Space, SpaceFacts, build_space
from streaming_core.layer_set import LayerSet
from streaming_core.settings import Settings

__all__ = ["SPACES", "FakeSpace", "additive", "interacting", "resident_layers", "slots_of", "streaming"]

_LAYERS = tuple(range(24))
_EXPERTS = 128
_TOP_K = 8
_BUDGET = 1024  # records; all experts of all layers are three times as many


@dataclass(slots=True)
class FakeSpace:
    """A space and the tokens per second of its points on a quiet machine."""

    name: str
    space: Space
    speed: Callable[[Settings], float]
    _speeds: dict[str, float] = field(default_factory=dict, repr=False)

    @property
    def speeds(self) -> dict[str, float]:
        """Of every point, by `Space.key`."""
        if not self._speeds:
            for params in self._points():
                self._speeds.setdefault(self.space.key(params), self.speed(self.space.settings(params)))
        return self._speeds

    @property
    def best(self) -> float:
        return max(self.speeds.values())

    def _points(self) -> Iterator[Params]:
        seen: set[tuple[tuple[str, Param], ...]] = set()
        options: list[list[Param]] = [
            list(range(len(knob.options))) if knob.ordinal else [str(each) for each in knob.options]
            for knob in self.space.knobs
        ]
        names = [knob.name for knob in self.space.knobs]
        for values in itertools.product(*options):
            params = self.space.canonical(dict(zip(names, values, strict=True)))
            if (key := tuple(params.items())) not in seen:
                seen.add(key)
                yield params


def resident_layers(settings: Settings) -> int:
    named = settings.residency.resident_layers
    if isinstance(named, int):
        return named
    return 0 if named == "auto" else sum(layer in LayerSet.parse(named) for layer in _LAYERS)


def slots_of(settings: Settings) -> int:
    """Per streamed layer, as many as fit where nothing is said."""
    slots = settings.residency.slots
    if isinstance(slots, int):
        return slots
    layers = resident_layers(settings)
    return min(_EXPERTS, (_BUDGET - layers * _EXPERTS) // max(1, len(_LAYERS) - layers))


def additive() -> FakeSpace:
    """Every knob has its best value, whatever the others are."""
    space = _space(
        "residency.slots",
        "residency.policy",
        "residency.half_life",
        "reading.threads",
        "reading.page_cache",
        "reading.reader",
        "store.layout",
    )

    def speed(settings: Settings) -> float:
        residency, reading = settings.residency, settings.reading
        loss = 0.06 * (math.log2(reading.threads) - 4.0) ** 2 + 0.25 * (slots_of(settings) / 42 - 0.5) ** 2
        loss += 0.10 if residency.policy == "lru" else 0.01 * (math.log2(residency.half_life) - 5.0) ** 2
        loss += 0.08 if reading.page_cache == "keep" else 0.0
        loss += 0.04 if reading.reader == "auto" else 0.0
        loss += 0.05 if settings.store.layout == "checkpoint" else 0.0
        return 20.0 * math.exp(-loss)

    return FakeSpace("additive", space, speed)


def interacting() -> FakeSpace:
    """Most effects have another sign, or another best value, at another value of a second knob."""
    space = _space(
        "residency.slots",
        "reading.threads",
        "reading.page_cache",
        "prefetch.backend",
        "predict.mult",
        "prefetch.per_layer",
        predict="gate_input",
    )

    def speed(settings: Settings) -> float:
        reading, prefetch = settings.reading, settings.prefetch
        share, threads = slots_of(settings) / 42, math.log2(reading.threads)
        bypass = reading.page_cache == "bypass"
        # Whoever keeps the page cache wants few slots, who goes past it many: one alone is a loss.
        gain = -0.6 * (share - 0.95) ** 2 - 0.02 if bypass else -0.5 * (share - 0.45) ** 2 - 0.12
        gain -= 0.03 * (threads - (4.0 if bypass else 2.0)) ** 2
        if prefetch.backend != "none":
            width = math.log2(settings.predict.mult) - (1.0 if prefetch.backend == "stage" else 0.0)
            gain += 0.16 if bypass else -0.08
            gain -= 0.05 * width**2 + 0.04 * (math.log2(prefetch.per_layer / 8) + 1 - width) ** 2
            gain += 0.04 * (threads - 3.0) + (0.05 if prefetch.backend == "slots" and share > 0.8 else 0.0)
        return 20.0 * math.exp(gain)

    return FakeSpace("interacting", space, speed)


def streaming() -> FakeSpace:
    """Computation, misses by a hit curve, a disk with a latency and a bandwidth, and guesses that hide some of it."""
    space = _space(
        "residency.resident_layers",
        "residency.slots",
        "residency.policy",
        "reading.threads",
        "reading.page_cache",
        "prefetch.backend",
        "predict.mult",
        predict="gate_input",
    )
    return FakeSpace("streaming", space, _streamed_tps)


def _streamed_tps(settings: Settings) -> float:
    streamed = len(_LAYERS) - resident_layers(settings)
    share = min(1.0, slots_of(settings) / _EXPERTS)
    skew = 0.62 if settings.residency.policy == "lfu" else 0.55
    missed = float(1.0 - share**skew)
    misses = _TOP_K * missed * (1.1 if share < 0.1 else 1.0)
    if settings.reading.page_cache == "keep":  # what the slots leave to the system it fills with records
        cached = 0.5 * (1.0 - share) ** 2
        read_s, copied_s = misses * (1.0 - cached), misses * cached * 0.25e-3
        busy = 1.35  # every read goes through the cache and is copied
    else:
        read_s, copied_s, busy = misses, 0.0, 1.0
    read_s *= busy * _read_s(settings.reading.threads)
    compute_s = 0.7e-3
    sync_s = 0.15e-3
    if settings.prefetch.backend == "none":
        return 1.0 / (len(_LAYERS) * compute_s + streamed * (sync_s + read_s + copied_s))
    recall = 1.0 - math.exp(-0.55 * settings.predict.mult)
    guesses = _TOP_K * settings.predict.mult * missed
    wasted = max(0.0, guesses - recall * misses)
    disk_s = (wasted + recall * misses) * busy * _read_s(settings.reading.threads)
    exposed_s = (1.0 - recall) * (read_s + copied_s) + max(0.0, disk_s - compute_s)
    guess_s = 0.10e-3 + (0.03e-3 * recall * misses if settings.prefetch.backend == "stage" else 0.0)
    if settings.prefetch.backend == "slots":  # a wrong guess throws out an expert
        exposed_s += 0.12 * wasted * (1.0 - share) * _read_s(settings.reading.threads)
    return 1.0 / (len(_LAYERS) * compute_s + streamed * (sync_s + guess_s + exposed_s))


def _read_s(threads: int) -> float:
    """A read of many under way: bound by latency, then by bandwidth, then by threads in each other's way."""
    return max(0.9e-3 / threads, 0.14e-3) + 0.004e-3 * threads


SPACES: tuple[Callable[[], FakeSpace], ...] = (additive, interacting, streaming)


def _space(*names: str, predict: str = "none") -> Space:
    """The real space of a made-up model, all but these knobs fixed."""
    facts = SpaceFacts(
        layers=_LAYERS,
        ranking=_LAYERS,
        experts=_EXPERTS,
        top_k=_TOP_K,
        backend="cpu",
        readers=("auto", "threads"),
        fits=_fits,
    )
    base = Settings().with_values({"predict.kind": predict})
    fixed = frozenset(Settings.keys()) - set(names)
    return build_space(base, facts, Objective.DECODE, fixed)


def _fits(settings: Settings) -> bool:
    layers = resident_layers(settings)
    wanted = settings.residency.resident_layers
    layers = len(_LAYERS) if wanted == "all" else layers
    slots = settings.residency.slots
    each = {"auto": _TOP_K, "all": _EXPERTS}[slots] if isinstance(slots, str) else slots
    return layers * _EXPERTS + (len(_LAYERS) - layers) * each <= _BUDGET
