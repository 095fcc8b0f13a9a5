"""A trial as a value: what is to be measured, and the four ways it can end.

Everything here crosses a process border and a journal, so each class has a plain JSON form and reads it back.
"""

from __future__ import annotations

import math
import statistics
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from autotune.errors import StudyInvalid
from autotune.workload import Workload

__all__ = [
    "Counters",
    "Crashed",
    "Engine",
    "Infeasible",
    "LayerCost",
    "Measured",
    "Outcome",
    "PageState",
    "Procedure",
    "Stage",
    "TimedOut",
    "TrialSpec",
    "is_hopeless",
    "outcome_from_json",
    "outcome_to_json",
]

T = TypeVar("T")


class Engine(Enum):
    """Who decodes."""

    STREAMED = "streamed"  # streaming_core with the trial's settings
    RESIDENT = "resident"  # mlx-lm alone, every expert in memory: the yardstick


class PageState(Enum):
    """What the operating system's cache of the store's files holds when a repeat starts."""

    AS_FOUND = "as_found"  # as in daily use: whatever the repeat before left there
    COLD = "cold"  # dropped before every repeat


@dataclass(frozen=True, slots=True, kw_only=True)
class Procedure:
    """How a trial is measured."""

    repeats: int = 3
    pages: PageState = PageState.AS_FOUND
    repeat_limit_s: float | None = None  # timed decoding longer than this is cut short: the trial has lost anyway
    hopeless_tps: float | None = None  # decoding the first passage slower than this: the others are not run
    silence_s: float = 300.0  # a worker that says nothing for so long hangs


def is_hopeless(first_tps: float, procedure: Procedure) -> bool:
    """Whether the first passage of a trial says enough about the others."""
    return procedure.hopeless_tps is not None and procedure.repeats > 1 and first_tps < procedure.hopeless_tps


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSpec:
    """One trial.  `settings` are nested plain values, as `Settings.to_mapping` gives them."""

    model: str
    settings: Mapping[str, Any]
    workload: Workload
    cache_dir: Path
    procedure: Procedure = Procedure()
    engine: Engine = Engine.STREAMED

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "settings": dict(self.settings),
            "workload": self.workload.to_json(),
            "cache_dir": str(self.cache_dir),
            "procedure": {**asdict(self.procedure), "pages": self.procedure.pages.value},
            "engine": self.engine.value,
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> TrialSpec:
        procedure = dict(raw["procedure"])
        return cls(
            model=raw["model"],
            settings=raw["settings"],
            workload=Workload.from_json(raw["workload"]),
            cache_dir=Path(raw["cache_dir"]),
            procedure=Procedure(**{**procedure, "pages": PageState(procedure["pages"])}),
            engine=Engine(raw["engine"]),
        )


@dataclass(frozen=True, slots=True)
class Stage:
    """How far a trial has come."""

    name: str
    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCost:
    """What one streamed MoE layer cost over the timed tokens."""

    layer: int
    misses: int
    wait_s: float
    guessed: int = 0  # reads begun on a guess
    guesses_used: int = 0  # of them, asked for by the call they were made for


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Sums over the timed tokens of all repeats."""

    tokens: int = 0
    hits: int = 0
    misses: int = 0
    demand_bytes: int = 0
    prefetch_bytes: int = 0
    physical_bytes: int | None = None  # as the operating system counts them; None: it does not
    wait_s: float = 0.0
    syncs: int = 0
    layers: tuple[LayerCost, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The trial ran to its end."""

    samples: tuple[float, ...]  # decoded tokens per second, one a repeat; repeat i replays passage i
    prefill_s: tuple[float, ...]  # time to the first token, one a repeat
    prompt_tokens: int  # over all repeats
    token_p50_s: float
    token_p99_s: float
    load_s: float
    base_rss_bytes: int  # after importing mlx_lm, before the model
    peak_rss_bytes: int
    mlx_peak_bytes: int
    needed_bytes: int  # what the budget is about: memory beyond importing mlx_lm
    tokens_hash: str  # of the token the model itself would have chosen at every step
    effective: Mapping[str, Any]  # settings as the runtime resolved them, no "auto" left
    unread: tuple[str, ...] = ()  # keys of settings that made no difference beside the others
    counters: Counters = Counters()
    swap_in_bytes: int | None = None  # read back from swap by the whole machine meanwhile; None: not known
    partial: bool = False  # a repeat was cut short at the limit, or repeats are missing
    hopeless: bool = False  # the first passage was so slow that the others were not run

    def __post_init__(self) -> None:
        """Raises StudyInvalid: what is computed from such numbers would be none."""
        numbers = (*self.samples, *self.prefill_s, self.token_p50_s, self.token_p99_s)
        if not self.samples or not all(math.isfinite(each) and each > 0 for each in numbers):
            raise StudyInvalid(f"speeds and times must be positive numbers, got {self.samples} tok/s")

    @property
    def decode_tps(self) -> float:
        return statistics.median(self.samples)

    @property
    def first_token_s(self) -> float:
        return statistics.median(self.prefill_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasible:
    """The plan does not fit, or the machine has run out of memory."""

    reason: str
    excess_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Crashed:
    """An error or a signal ended the trial."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOut:
    """Nothing was heard from the worker for too long; it was killed."""

    after_s: float


Outcome = Measured | Infeasible | Crashed | TimedOut
_KINDS: dict[str, type[Any]] = {
    "measured": Measured,
    "infeasible": Infeasible,
    "crashed": Crashed,
    "timed_out": TimedOut,
}


def outcome_to_json(outcome: Outcome) -> dict[str, Any]:
    kind = next(name for name, cls in _KINDS.items() if type(outcome) is cls)
    return {"kind": kind, **asdict(outcome)}


def outcome_from_json(raw: Mapping[str, Any]) -> Outcome:
    """Raises StudyInvalid on an unknown kind, a missing or an unknown key."""
    values = dict(raw)
    kind = values.pop("kind", None)
    if kind not in _KINDS:
        raise StudyInvalid(f"unknown trial outcome {kind!r}; known: {', '.join(_KINDS)}")
    outcome: Outcome = _build(_KINDS[kind], values)
    return outcome


def _build(cls: type[T], values: Mapping[str, Any]) -> T:
    """A dataclass from its `asdict` form, nested dataclasses and tuples included."""
    hints = typing.get_type_hints(cls)
    known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
    if unknown := sorted(values.keys() - known):
        raise StudyInvalid(f"{cls.__name__}: unknown key {unknown[0]!r}; known: {', '.join(sorted(known))}")
    try:
        return cls(**{name: _convert(hints[name], value) for name, value in values.items()})
    except TypeError as err:
        raise StudyInvalid(f"{cls.__name__}: {err}") from err


def _convert(hint: Any, value: Any) -> Any:
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        return tuple(_convert(item, each) for each in value)
    if isinstance(hint, type) and not isinstance(hint, types.GenericAlias) and is_dataclass(hint):
        return _build(hint, value)
    return value
