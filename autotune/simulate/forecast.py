"""What settings would do, as a result: counts, bytes, speed, and the same over numbers of slots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from autotune.simulate.costs import NO_COSTS, TokenCosts
from autotune.simulate.curve import lru_curve
from autotune.simulate.replay import Simulated, simulate
from streaming_core.residency.memory import MemoryPlan
from streaming_core.route_trace import RouteTrace
from streaming_core.settings import Settings

__all__ = ["Forecast", "Point", "forecast", "sweep", "sweep_slots"]

_POINTS = 12  # of a sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Settings with so many slots, over the tokens that the trace counts."""

    slots: int
    needed_bytes: int
    fits: bool
    tokens: int
    hits: int
    misses: int
    hit_rate: float
    demand_bytes: int
    prefetch_bytes: int
    wasted_bytes: int
    guessed: int
    guesses_used: int
    tps: float | None  # None: times were not asked for
    wait_s: float | None

    def to_json(self) -> dict[str, Any]:
        tokens = max(1, self.tokens)
        return {**asdict(self), "bytes_per_token": (self.demand_bytes + self.prefetch_bytes) / tokens}


@dataclass(frozen=True, slots=True)
class Forecast:
    """The settings asked for, a sweep around them, and lru's hit rate for every number of slots that one pass tells."""

    chosen: Point
    sweep: Sequence[Point]
    curve: Mapping[int, float]  # slots -> hit rate

    def to_json(self) -> dict[str, Any]:
        return {
            **self.chosen.to_json(),
            "sweep": [point.to_json() for point in self.sweep],
            "curve": [[slots, rate] for slots, rate in self.curve.items()],
        }


PlanFor = Callable[[Settings], MemoryPlan]


def forecast(
    trace: RouteTrace,
    settings: Settings,
    plan_for: PlanFor,
    read_bytes: Mapping[int, int],
    costs: TokenCosts | None,
) -> Forecast:
    """Raises what `plan_for` does for the settings themselves, and TraceInvalid."""
    chosen = _point(trace, settings, plan_for(settings), read_bytes, costs)
    curve = {}
    if settings.residency.policy == "lru" and settings.prefetch.backend == "none" and chosen.slots:
        found = lru_curve(trace)
        curve = {slots: found.hit_rate(slots) for slots in range(found.exact_from, trace.experts + 1)}
    return Forecast(chosen, sweep(trace, settings, plan_for, read_bytes, costs) if chosen.slots else [], curve)


def sweep(
    trace: RouteTrace,
    settings: Settings,
    plan_for: PlanFor,
    read_bytes: Mapping[int, int],
    costs: TokenCosts | None,
) -> list[Point]:
    """The same settings with other numbers of slots; those that do not fit the budget say so."""
    base = plan_for(settings)
    fixed = settings.with_values({"residency.resident_layers": str(base.resident), "memory.budget": None})
    found = []
    for slots in sweep_slots(trace.top_k, trace.experts):
        wanted = fixed.with_values({"residency.slots": slots})
        planned = plan_for(wanted)
        found.append(_point(trace, wanted, planned, read_bytes, costs, base.budget_bytes))
    return found


def sweep_slots(top_k: int, experts: int) -> list[int]:
    """From as few as can be to all, in equal ratios."""
    ratio = (experts / top_k) ** (1 / (_POINTS - 1))
    return sorted({min(experts, round(top_k * ratio**n)) for n in range(_POINTS)})


def _point(
    trace: RouteTrace,
    settings: Settings,
    plan: MemoryPlan,
    read_bytes: Mapping[int, int],
    costs: TokenCosts | None,
    budget: int | None = None,
) -> Point:
    found: Simulated = simulate(trace, settings, plan, read_bytes, costs or NO_COSTS)
    budget = plan.budget_bytes if budget is None else budget
    return Point(
        slots=plan.slots,
        needed_bytes=plan.total_bytes,
        fits=budget is None or plan.total_bytes <= budget,
        tokens=found.tokens,
        hits=found.total("hits"),
        misses=found.total("misses"),
        hit_rate=found.hit_rate,
        demand_bytes=found.total("demand_bytes"),
        prefetch_bytes=found.total("prefetch_bytes"),
        wasted_bytes=found.wasted_bytes,
        guessed=found.total("guessed"),
        guesses_used=found.total("guesses_used"),
        tps=found.tokens / found.seconds if costs and found.seconds else None,
        wait_s=found.wait_s if costs else None,
    )
