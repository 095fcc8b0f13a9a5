"""What a tuning came to: the settings to use, and everything that speaks for them or against them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from autotune.probe import Ceiling, DiskRow
from autotune.statistics import Interval, Noise
from autotune.trial import Measured
from streaming_core.settings import Settings

__all__ = ["Side", "Status", "TrialRow", "TuneResult", "rounded"]


class Status(Enum):
    """How far it got."""

    PROVEN = "proven"  # the winner beat the default in the race
    DEFAULT_KEPT = "default_kept"  # nothing did
    INTERRUPTED = "interrupted"  # the best so far, not proven


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two that were compared."""

    changes: Mapping[str, Any]  # settings that differ from the default's
    decode_tps: float  # median
    first_token_s: float  # median
    token_p99_s: float  # median over trials
    samples: tuple[tuple[float, ...], ...]  # tokens per second: trials x repeats
    needed_bytes: int  # the most any trial took
    missed_bytes_per_token: float

    @classmethod
    def of(cls, changes: Mapping[str, Any], trials: Sequence[Measured]) -> Side:
        return cls(
            changes=changes,
            decode_tps=statistics.median(each.decode_tps for each in trials),
            first_token_s=statistics.median(each.first_token_s for each in trials),
            token_p99_s=statistics.median(each.token_p99_s for each in trials),
            samples=tuple(each.samples for each in trials),
            needed_bytes=max(each.needed_bytes for each in trials),
            missed_bytes_per_token=statistics.median(
                each.counters.demand_bytes / max(1, each.counters.tokens) for each in trials
            ),
        )


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One line of the table of all trials."""

    number: int
    purpose: str
    changes: Mapping[str, Any]
    kind: str
    decode_tps: float | None
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneResult:
    """`settings` can always be used: the winner if proven, the best so far if interrupted, or the default."""

    status: Status
    reason: str  # one line: why this and not another
    settings: Settings
    default: Side
    tuned: Side | None  # None: nothing was ahead of the default
    interval: Interval | None  # tuned to default, from the pairs
    needed_gain: float
    noise: Noise
    ceiling: Ceiling | None  # of tuned, else of default
    disk: tuple[DiskRow, ...] = ()
    trials: tuple[TrialRow, ...] = ()
    search: Mapping[str, Any] = field(default_factory=dict)  # trials, failures, why it ended, seed, seconds
    workload: Mapping[str, Any] = field(default_factory=dict)
    budget_bytes: int | None = None  # that every trial had
    fixed: Mapping[str, Any] = field(default_factory=dict)  # settings that the user fixed, the default's too

    def to_json(self) -> dict[str, Any]:
        plain = asdict(self)
        plain.update(
            status=self.status.value,
            settings=self.settings.to_mapping(),
            disk=[row.to_json() for row in self.disk],
        )
        found: dict[str, Any] = {**rounded(plain), "fixed": dict(self.fixed)}  # settings are never rounded
        return found

    def evidence(self) -> dict[str, Any]:
        """What goes into the profile: everything but the single trials, which are in the journal."""
        plain = self.to_json()
        for key in ("settings", "disk", "trials"):
            plain.pop(key)
        return {key: value for key, value in plain.items() if value is not None}


def rounded(value: Any) -> Any:
    """Plain data with floats at five significant digits, and tuples as lists."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, Mapping):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(each) for each in value]
    return value
