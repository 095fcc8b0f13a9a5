"""What a run would do, without doing it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from autotune.journal import known_repeat_s
from autotune.prepare import Place, plan_of
from autotune.request import Subject, TuneRequest, first_space, race_plan
from autotune.wording import seconds_text
from streaming_core.models.outline import ModelOutline
from streaming_core.residency.memory import MemoryPlan

__all__ = ["Estimate", "estimate"]

# Rough speeds for want of a measurement: enough to tell minutes from hours, and said to be rough.
_DISK_BYTES_PER_S = 1.5e9
_START_S = 2.0  # of a trial, beside the bytes it loads
_LAYER_S = {"cpu": 4e-3, "metal": 0.5e-3, "cuda": 0.5e-3}  # a layer and token; the CPU's is that of the demo model
_PROMPT_SHARE = {"cpu": 0.7, "metal": 0.25, "cuda": 0.25}  # of a decoded token's time: prompts share experts
_UNSURE = 2.0  # the true time is likely within this factor, either way
_UNSURE_MEASURED = 1.25  # likewise, when an earlier run of the model on this machine was timed


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A dry run."""

    model: str
    hardware: str
    memory: Mapping[str, int]
    memory_total_bytes: int
    budget_bytes: int | None
    knobs: Mapping[str, list[Any]]
    combinations: int
    search_trials: int | None
    race_trials: int  # at most
    trial_s: float  # rough
    total_s: float  # rough
    least_s: float  # of the range that total_s is the middle of
    most_s: float  # never more than --time
    timed: bool  # from an earlier run, rather than guessed

    @property
    def summary(self) -> str:
        trials = "as many trials as fit" if self.search_trials is None else f"{self.search_trials} trials"
        return f"{self.model}: {trials}, then up to {self.race_trials} of the race; {self.range_text}"

    @property
    def range_text(self) -> str:
        source = "by an earlier run's timings" if self.timed else "a guess: nothing was timed yet"
        return f"{_span(self.least_s, self.most_s)} ({source})"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def estimate(request: TuneRequest, subject: Subject, outline: ModelOutline, place: Place) -> Estimate:
    """Raises BudgetTooSmall when not even the default fits."""
    plan = plan_of(outline, request.base, place)
    space = first_space(request, subject, plan.budget_bytes)
    timed_s = known_repeat_s(place.cache_dir / "studies", subject.fingerprint, subject.hardware)
    unsure = _UNSURE if timed_s is None else _UNSURE_MEASURED
    backend = subject.facts.backend
    trial_s = _trial_s(request, outline, plan, backend) if timed_s is None else timed_s * request.repeats
    race = race_plan(request, trial_s, float("inf") if request.time_s is None else request.time_s)
    race_trials = race.trials(race.finalists)
    planned = None if request.trials is None else (request.trials + race_trials) * trial_s
    total, least, most = (
        min(each for each in (planned and planned * factor, request.time_s) if each is not None)
        for factor in (1.0, 1 / unsure, unsure)
    )
    return Estimate(
        model=outline.name,
        hardware=subject.hardware,
        memory=dict(plan.terms),
        memory_total_bytes=plan.total_bytes,
        budget_bytes=plan.budget_bytes,
        knobs={knob.name: list(knob.options) for knob in space.knobs},
        combinations=space.size,
        search_trials=request.trials,
        race_trials=race_trials,
        trial_s=trial_s,
        total_s=total,
        least_s=least,
        most_s=most,
        timed=timed_s is not None,
    )


def _trial_s(request: TuneRequest, outline: ModelOutline, plan: MemoryPlan, backend: str) -> float:
    workload = request.workload
    missing = 0.0
    if plan.streamed:
        missing = len(plan.streamed) * outline.top_k * (1.0 - plan.slots / outline.experts) * outline.record_bytes
    token_s = missing / _DISK_BYTES_PER_S + outline.decoder_layers * _LAYER_S.get(backend, _LAYER_S["cpu"])
    prompt_s = token_s * workload.prompt_tokens * _PROMPT_SHARE.get(backend, _PROMPT_SHARE["cpu"])
    tokens = workload.warmup_tokens + workload.decode_tokens
    load_s = plan.total_bytes / _DISK_BYTES_PER_S
    return _START_S + load_s + request.repeats * (prompt_s + tokens * token_s)


def _span(least_s: float, most_s: float) -> str:
    """`3 to 12 min`; one number where the ends look the same."""
    ends = [_rounded_text(least_s), _rounded_text(most_s)]
    if ends[0] == ends[1]:
        return f"about {ends[0]}"
    number, unit = ends[0].split()
    return f"{number} to {ends[1]}" if ends[1].endswith(f" {unit}") else f"{ends[0]} to {ends[1]}"


def _rounded_text(seconds: float) -> str:
    return seconds_text(seconds if seconds < 10 else round(seconds))
