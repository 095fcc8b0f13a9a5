"""What a live view shows of a tuning, as lines of text.  Knows events and time, no terminal."""

from __future__ import annotations

import math

from autotune.events import (
    BestChanged,
    NoiseMeasured,
    PhaseStarted,
    TrialFinished,
    TrialProgressed,
    TrialStarted,
    TuneEvent,
)
from autotune.trial import Stage
from autotune.wording import changes_text, gain_text, seconds_text, tps_text

__all__ = ["Board"]


class Board:
    """Hears every event; `lines` may be asked for at any time, from any thread."""

    def __init__(self) -> None:
        self._phase = ""
        self._trial: TrialStarted | None = None
        self._stage = Stage("")
        self._default_tps: float | None = None
        self._best: BestChanged | None = None
        self._noise: NoiseMeasured | None = None
        self._durations: list[float] = []
        self._failed = 0
        self._started: float | None = None

    def hear(self, event: TuneEvent) -> None:
        match event:
            case PhaseStarted(phase=phase):
                self._phase = phase
            case TrialStarted():
                self._trial, self._stage = event, Stage("starting")
            case TrialProgressed(stage=stage):
                self._stage = stage
            case TrialFinished():
                self._finish(event)
            case BestChanged():
                self._best = event
            case NoiseMeasured():
                self._noise = event
            case _:
                return

    def lines(self, now: float) -> list[str]:
        if not self._phase:
            return []
        self._started = now if self._started is None else self._started
        lines = [f"{self._phase}  {seconds_text(now - self._started)}{self._left()}"]
        if self._trial is not None:
            of = f"/{self._trial.of}" if self._trial.of else ""
            stage = (
                f"{self._stage.name} {self._stage.done}/{self._stage.total}" if self._stage.total else self._stage.name
            )
            lines.append(f"trial {self._trial.number}{of} {stage}: {changes_text(self._trial.changes)}")
        if self._default_tps is not None:
            failed = f"  {self._failed} failed" if self._failed else ""
            lines.append(f"default {tps_text(self._default_tps)} tok/s{self._noise_text()}{failed}")
        if self._best is not None:
            lines.append(f"best {tps_text(self._best.decode_tps)} tok/s {gain_text(self._best.ratio)}{self._range()}")
            lines.append(f"     {changes_text(self._best.changes)}")
        return lines

    def _finish(self, event: TrialFinished) -> None:
        self._durations.append(event.duration_s)
        if event.decode_tps is None:
            self._failed += 1
        elif self._trial is not None and not self._trial.changes:
            self._default_tps = event.decode_tps

    def _left(self) -> str:
        if self._trial is None or not self._trial.of or not self._durations:
            return ""
        typical = sorted(self._durations)[len(self._durations) // 2]
        return f", about {seconds_text(typical * max(1, self._trial.of - self._trial.number + 1))} left"

    def _noise_text(self) -> str:
        if self._noise is None:
            return ""
        return f"  noise {self._noise.sigma:.1%}" if self._noise.measurements > 1 else "  noise unknown"

    def _range(self) -> str:
        """What one noisy trial against the default allows, at 95 %."""
        if self._best is None or self._noise is None or self._noise.measurements < 2:
            return ""
        factor = math.exp(1.96 * math.sqrt(2.0) * self._noise.sigma)
        return f" ({gain_text(self._best.ratio / factor)} to {gain_text(self._best.ratio * factor)})"
