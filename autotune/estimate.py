"""What a run would do, without doing it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from autotune.prepare import Place, plan_of
from autotune.request import Subject, TuneRequest, first_space, race_plan
from streaming_core.models.outline import ModelOutline
from streaming_core.residency.memory import MemoryPlan

__all__ = ["Estimate", "estimate"]

# Rough speeds for want of a measurement: enough to tell minutes from hours, and said to be rough.
_DISK_BYTES_PER_S = 1.5e9
_COMPUTE_LAYER_S = 0.5e-3


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

    @property
    def summary(self) -> str:
        trials = "as many trials as fit" if self.search_trials is None else f"{self.search_trials} trials"
        return f"{self.model}: {trials}, then up to {self.race_trials} of the race; roughly {self.total_s / 60:.0f} min"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def estimate(request: TuneRequest, subject: Subject, outline: ModelOutline, place: Place) -> Estimate:
    """Raises BudgetTooSmall when not even the default fits."""
    plan = plan_of(outline, request.base, place)
    space = first_space(request, subject, plan.budget_bytes)
    trial_s = _trial_s(request, outline, plan)
    race = race_plan(request, trial_s, float("inf") if request.time_s is None else request.time_s)
    race_trials = race.trials(race.finalists)
    planned = None if request.trials is None else (request.trials + race_trials) * trial_s
    total = min(each for each in (planned, request.time_s) if each is not None)
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
    )


def _trial_s(request: TuneRequest, outline: ModelOutline, plan: MemoryPlan) -> float:
    workload = request.workload
    missing = 0.0
    if plan.streamed:
        missing = len(plan.streamed) * outline.top_k * (1.0 - plan.slots / outline.experts) * outline.record_bytes
    token_s = missing / _DISK_BYTES_PER_S + outline.decoder_layers * _COMPUTE_LAYER_S
    prompt_s = token_s * workload.prompt_tokens / 4  # tokens of a prompt share experts
    tokens = workload.warmup_tokens + workload.decode_tokens
    load_s = plan.total_bytes / _DISK_BYTES_PER_S
    return load_s + request.repeats * (prompt_s + tokens * token_s)
