"""What is asked of the tuner, and what that amounts to."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from autotune.errors import RequestInvalid
from autotune.journal import StudyIdentity
from autotune.race import RacePlan
from autotune.space import Objective, Space, SpaceFacts, build_space
from autotune.trial import PageState, Procedure
from autotune.workload import Workload
from streaming_core.settings import Settings

__all__ = ["LEAST_RACE", "RACE_SHARE", "Subject", "TuneRequest", "first_space", "race_plan"]

RACE_SHARE = 0.45  # of the time, at most, unless even the smallest race takes longer
_FEW_TRIALS = 16
_LARGEST_SEED = (1 << 31) - 1  # NumPy and Optuna take 32 bits, of which the number of a trial needs a few
_RACES = (
    RacePlan(finalists=3, rounds=3, pairs=8),
    RacePlan(finalists=2, rounds=2, pairs=6),
    RacePlan(finalists=1, rounds=1, pairs=4),
    RacePlan(finalists=1, rounds=0, pairs=4),
)
LEAST_RACE = _RACES[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The model and the machine, as far as the tuner needs them."""

    model: str  # its name in profiles
    asked: str  # what the user called it: what a worker loads
    fingerprint: str
    hardware: str  # profile name of the machine
    facts: SpaceFacts
    budget_of: Callable[[Settings], int | None]  # the memory budget these settings mean now


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneRequest:
    """What to tune and how long.  `fixed` settings keep the value they have in `base`."""

    base: Settings
    workload: Workload
    fixed: frozenset[str] = frozenset()
    objective: Objective = Objective.DECODE
    trials: int | None = 40  # of the search, the default's included, earlier runs of the same study too
    time_s: float | None = None  # for everything
    seed: int = 0
    repeats: int = 3
    pages: PageState = PageState.AS_FOUND
    fresh: bool = False  # set earlier results aside
    priors: tuple[Settings, ...] = ()
    version: str = ""
    storage: str | None = None  # address of a database, for a study that several machines share

    def __post_init__(self) -> None:
        if self.trials is None and self.time_s is None:
            raise RequestInvalid("give a number of trials, a time, or both")
        if self.trials is not None and self.trials < 1:
            raise RequestInvalid(f"trials must be at least 1, got {self.trials}")
        if self.time_s is not None and not (math.isfinite(self.time_s) and self.time_s > 0):
            raise RequestInvalid(f"time must be positive, got {self.time_s:g} s")
        if self.repeats < 1:
            raise RequestInvalid(f"repeats must be at least 1, got {self.repeats}")
        if not 0 <= self.seed <= _LARGEST_SEED:
            raise RequestInvalid(f"seed must be from 0 to {_LARGEST_SEED}, got {self.seed}")
        if self.fresh and self.storage is not None:
            raise RequestInvalid("--fresh would leave out what other machines found; name another database instead")
        self.workload.check_room(self.base.memory.context)

    def procedure(self) -> Procedure:
        return Procedure(repeats=self.repeats, pages=self.pages)

    def fixed_values(self) -> dict[str, Any]:
        """What the user fixed, as YAML has it: the default that is measured is the built-in one with these."""
        plain = self.base.to_mapping()
        return {key: plain[key.partition(".")[0]][key.partition(".")[2]] for key in sorted(self.fixed)}

    def workload_facts(self) -> dict[str, Any]:
        """How speed was measured, for a result; the texts themselves stay out."""
        lengths = {key: value for key, value in asdict(self.workload).items() if key != "passages"}
        return {
            **lengths,
            "hash": self.workload.content_hash,
            "passages": len(self.workload.passages),
            "repeats": self.repeats,
            "pages": self.pages.value,
            "objective": self.objective.value,
        }

    def identity(self, subject: Subject) -> StudyIdentity:
        return StudyIdentity(
            model=subject.model,
            fingerprint=subject.fingerprint,
            hardware=subject.hardware,
            workload=self.workload.content_hash,
            version=self.version,
            objective=self.objective.value,
            procedure={"repeats": self.repeats, "pages": self.pages.value},
            base=self.base.to_mapping(),
            fixed=tuple(sorted(self.fixed)),
        )


def first_space(request: TuneRequest, subject: Subject, budget_bytes: int | None) -> Space:
    """The space before anything is measured: layers are ranked as they come."""
    return build_space(_pinned(request.base, budget_bytes), subject.facts, request.objective, request.fixed)


def race_plan(request: TuneRequest, trial_s: float, left_s: float = math.inf) -> RacePlan:
    """The most thorough race that leaves the search enough of the time."""
    plans = _RACES[1:] if request.trials is not None and request.trials < _FEW_TRIALS else _RACES
    for plan in plans:
        if plan.trials(plan.finalists) * trial_s <= RACE_SHARE * left_s:
            return replace(plan, seed=request.seed)
    return replace(LEAST_RACE, seed=request.seed)


def _pinned(base: Settings, budget_bytes: int | None) -> Settings:
    return base if budget_bytes is None else base.with_values({"memory.budget": budget_bytes})
