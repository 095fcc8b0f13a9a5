"""A machine that is not there: `FakeRunner` turns settings into times by a formula, with everything that goes wrong."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from autotune.runner import ignore
from autotune.trial import (
    Counters,
    Crashed,
    Infeasible,
    LayerCost,
    Measured,
    Outcome,
    Stage,
    TimedOut,
    TrialSpec,
    is_hopeless,
)
from streaming_core.settings import Settings

__all__ = ["FakeRunner", "Weather", "hang", "killed", "out_of_memory"]

Speed = Callable[[Settings], float | Outcome]
"""Tokens per second of a configuration on a quiet machine, or how it fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """What a real machine adds to a number."""

    noise: float = 0.03  # standard deviation of the logarithm of a sample
    outliers: float = 0.0  # how many samples in one are slowed down by about a third
    drift: float = 0.0  # how much slower it gets as it heats up
    drift_trials: float = 15.0  # trials until two thirds of that
    crashes: float = 0.0  # how many trials in one die
    hangs: float = 0.0  # how many fall silent


@dataclass(slots=True)
class FakeRunner:
    """A `Runner` without a process.  `now` is its clock, moved by what trials would take."""

    speed: Speed
    weather: Weather = Weather()
    seed: int = 0
    trial_s: float = 10.0
    interrupt_at: int | None = None  # the trial, from 0, during which Ctrl-C is pressed
    first_token_s: Callable[[Settings], float] = lambda settings: 0.5
    tokens_hash: Callable[[Settings], str] = lambda settings: "same"
    needed_bytes: Callable[[Settings], int] = lambda settings: 100 << 20
    in_force: Callable[[Settings], Settings] = lambda settings: settings
    unread: Callable[[Settings], tuple[str, ...]] = lambda settings: ()
    guess_recall: Callable[[int], float] = lambda layer: 0.5  # of the guesses for a layer, how many are used
    layers: Sequence[int] = range(4)
    now: float = 0.0
    specs: list[TrialSpec] = field(default_factory=list)
    closed: bool = False
    _rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)

    def clock(self) -> float:
        return self.now

    def run(self, spec: TrialSpec, on_stage: Callable[[Stage], None] = ignore) -> Outcome:
        if self.interrupt_at == len(self.specs):
            raise KeyboardInterrupt
        settings = Settings.from_mapping(spec.settings)
        on_stage(Stage("decoding", 1, 1))
        speed = self._accident() or self.speed(settings)
        self.now += self.trial_s
        self.specs.append(spec)
        if isinstance(speed, (int, float)):
            return self._measured(spec, settings, float(speed))
        if isinstance(speed, TimedOut):
            self.now += speed.after_s
        return speed

    def close(self) -> None:
        self.closed = True

    def _accident(self) -> Outcome | None:
        weather = self.weather
        if not weather.crashes + weather.hangs:
            return None
        fate = self._rng.random()
        if fate < weather.crashes:
            return killed()
        return hang() if fate < weather.crashes + weather.hangs else None

    def _measured(self, spec: TrialSpec, settings: Settings, speed: float) -> Measured:
        weather = self.weather
        warm = 1.0 - math.exp(-len(self.specs) / weather.drift_trials)
        samples = []
        for _ in range(spec.procedure.repeats):
            log = self._rng.gauss(0.0, weather.noise) + math.log1p(-weather.drift * warm)
            if self._rng.random() < weather.outliers:
                log -= self._rng.expovariate(1 / 0.3)
            samples.append(speed * math.exp(log))
        hopeless = is_hopeless(samples[0], spec.procedure)
        samples = samples[:1] if hopeless else samples
        tokens = spec.workload.decode_tokens * len(samples)
        guessed = 0 if settings.prefetch.backend == "none" else tokens
        layers = tuple(
            LayerCost(
                layer=n,
                misses=tokens,
                wait_s=(n % 5) / speed,
                guessed=guessed,
                guesses_used=round(guessed * self.guess_recall(n)),
            )
            for n in self.layers
        )
        return Measured(
            samples=tuple(samples),
            prefill_s=(self.first_token_s(settings),) * len(samples),
            prompt_tokens=spec.workload.prompt_tokens * len(samples),
            token_p50_s=1 / speed,
            token_p99_s=2 / speed,
            load_s=1.0,
            base_rss_bytes=100 << 20,
            peak_rss_bytes=200 << 20,
            mlx_peak_bytes=50 << 20,
            needed_bytes=self.needed_bytes(settings),
            tokens_hash=self.tokens_hash(settings),
            effective=self.in_force(settings).to_mapping(),
            unread=self.unread(settings),
            partial=hopeless,
            hopeless=hopeless,
            counters=Counters(tokens=tokens, misses=tokens, demand_bytes=tokens << 10, wait_s=0.1, layers=layers),
        )


def out_of_memory(excess_bytes: int = 1 << 30) -> Infeasible:
    return Infeasible(reason="the plan exceeds the budget", excess_bytes=excess_bytes)


def killed() -> Crashed:
    return Crashed(reason="the worker ended with SIGKILL")


def hang(after_s: float = 60.0) -> TimedOut:
    return TimedOut(after_s=after_s)
