"""Whether a trial is allowed to win, and how well it did, both against the default of the same machine and day."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.space import Objective
from autotune.trial import Crashed, Infeasible, Measured, Outcome, TimedOut
from streaming_core.units import format_size

__all__ = ["Gates", "Judge", "Judgement", "score_of"]

_PESSIMISTIC = math.log(0.1)  # what a trial without a speed is said to have had, against the default


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """How much worse than the default a winner may be in what is not the objective."""

    first_token: float = 1.25  # times the default's time to the first token
    swap_in_bytes: int = 512 << 20  # read back from swap during a trial, on the whole machine
    token_p99: float = 1.5  # times the default's 99th percentile; looser, being the slowest of few hundred tokens


@dataclass(frozen=True, slots=True)
class Judgement:
    """`score` is a logarithm.  A constraint is kept when it is <= 0, as Optuna has it, else it says by what share it is
    missed: Optuna adds them up to tell a near miss from a bad one.
    """

    score: float
    constraints: dict[str, float]

    @property
    def feasible(self) -> bool:
        return all(value <= 0 for value in self.constraints.values())

    @property
    def broken(self) -> list[str]:
        return [name for name, value in self.constraints.items() if value > 0]


def score_of(measured: Measured, objective: Objective) -> float:
    """Logarithm of tokens per second."""
    decode = math.log(measured.decode_tps)
    prefill = math.log(measured.prompt_tokens / len(measured.prefill_s) / measured.first_token_s)
    match objective:
        case Objective.DECODE:
            return decode
        case Objective.PREFILL:
            return prefill
        case Objective.BALANCED:
            return (decode + prefill) / 2


class Judge:
    """Knows the default's trials so far."""

    def __init__(self, objective: Objective, budget_bytes: int | None, gates: Gates = Gates()) -> None:
        self.objective = objective
        self.gates = gates
        self._budget_bytes = budget_bytes
        self._default: list[Measured] = []

    def learn_default(self, measured: Measured) -> None:
        self._default.append(measured)

    @property
    def default(self) -> Sequence[Measured]:
        return self._default

    @property
    def default_score(self) -> float:
        return statistics.median(score_of(each, self.objective) for each in self._default)

    def judge(self, outcome: Outcome) -> Judgement:
        """One trial of the search.  Its slowest tokens are too few to be held against it: the verdict does that."""
        match outcome:
            case Measured():
                return Judgement(score_of(outcome, self.objective), self._constraints(outcome))
            case Infeasible(excess_bytes=excess):
                share = max(1, excess) / (self._budget_bytes or max(1, excess))
                return Judgement(self.default_score + _PESSIMISTIC, {"memory": share})
            case Crashed() | TimedOut():
                return Judgement(self.default_score + _PESSIMISTIC, {"failed": 1.0})

    def broken_by(self, winner: Sequence[Measured], default: Sequence[Measured]) -> list[str]:
        """What a proven winner breaks against the default measured beside it, in words.  Empty: nothing."""
        found = []
        if any(each.tokens_hash != default[0].tokens_hash for each in winner if not each.partial):
            found.append("its tokens differ from the default's")
        needed = max(each.needed_bytes for each in winner)
        if self._budget_bytes is not None and needed > self._budget_bytes:
            found.append(f"it needed {format_size(needed)}, the budget is {format_size(self._budget_bytes)}")
        if (swapped := max(each.swap_in_bytes or 0 for each in winner)) > self.gates.swap_in_bytes:
            found.append(f"{format_size(swapped)} had to be read back from swap")
        first = _ratio([each.first_token_s for each in winner], [each.first_token_s for each in default])
        if first > self.gates.first_token:
            found.append(f"its first token takes {first:.2f} times as long, {self.gates.first_token} is allowed")
        slow = _ratio([each.token_p99_s for each in winner], [each.token_p99_s for each in default])
        if slow > self.gates.token_p99:
            found.append(f"its slowest tokens take {slow:.2f} times as long, {self.gates.token_p99} is allowed")
        return found

    def _constraints(self, measured: Measured) -> dict[str, float]:
        default = self._default
        first = _ratio([measured.first_token_s], [each.first_token_s for each in default])
        same = measured.partial or measured.tokens_hash == default[0].tokens_hash
        swapped = measured.swap_in_bytes or 0
        return {
            "failed": 0.0,
            "hopeless": float(measured.hopeless),
            "tokens": 0.0 if same else 1.0,
            "memory": max(0.0, measured.needed_bytes / self._allowed_bytes(measured) - 1.0),
            "swap": max(0.0, swapped / self.gates.swap_in_bytes - 1.0),
            "first_token": max(0.0, first - self.gates.first_token),
        }

    def _allowed_bytes(self, measured: Measured) -> int:
        """The budget, or what the default takes should that be more: with nothing allowed, nothing could be learnt."""
        if self._budget_bytes is None:
            return max(1, measured.needed_bytes)
        return max(self._budget_bytes, *(each.needed_bytes for each in self._default))


def _ratio(above: Sequence[float], below: Sequence[float]) -> float:
    return statistics.median(above) / statistics.median(below)
