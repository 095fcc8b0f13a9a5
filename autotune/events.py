"""What the tuner tells whoever watches.  Plain values: a screen draws them, `--json` prints them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from autotune.trial import Stage

__all__ = [
    "BestChanged",
    "NoiseMeasured",
    "Notice",
    "OnEvent",
    "PhaseStarted",
    "ResultReady",
    "TrialFinished",
    "TrialProgressed",
    "TrialStarted",
    "TuneEvent",
    "event_to_json",
]


@dataclass(frozen=True, slots=True)
class PhaseStarted:
    """probe, default, search, race or verdict."""

    phase: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class TrialStarted:
    number: int  # from 1, over the whole study
    of: int | None  # how many are planned; None: as many as the time allows
    purpose: str
    changes: Mapping[str, Any]  # settings that differ from the default


@dataclass(frozen=True, slots=True)
class TrialProgressed:
    stage: Stage


@dataclass(frozen=True, slots=True)
class TrialFinished:
    number: int
    kind: str  # measured, infeasible, crashed or timed_out
    decode_tps: float | None
    ratio: float | None  # against the default so far, by the objective
    detail: str  # why it failed, or which constraint it broke; empty: nothing to say
    duration_s: float


@dataclass(frozen=True, slots=True)
class NoiseMeasured:
    sigma: float
    credible_gain: float
    measurements: int


@dataclass(frozen=True, slots=True)
class BestChanged:
    """A single noisy measurement, not yet proven."""

    decode_tps: float
    ratio: float
    changes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Notice:
    """Something the user should know and need not act on."""

    text: str


@dataclass(frozen=True, slots=True)
class ResultReady:
    result: Mapping[str, Any]


TuneEvent = (
    PhaseStarted | TrialStarted | TrialProgressed | TrialFinished | NoiseMeasured | BestChanged | Notice | ResultReady
)
OnEvent = Callable[[TuneEvent], None]


def event_to_json(event: TuneEvent) -> dict[str, Any]:
    """The kind of the event, in lower_snake, beside its fields."""
    return {"event": re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower(), **asdict(event)}
