"""Memory against speed: what each of several budgets reaches, and beyond which one memory buys little."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autotune.result import Status, TuneResult, rounded

__all__ = ["BudgetPoint", "budgets_between", "knee_of"]

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class BudgetPoint:
    """What the search found under one budget."""

    budget_bytes: int
    result: TuneResult

    @property
    def tps(self) -> float:
        """Of the winner, or of the default where nothing was proven faster."""
        proven = self.result.status is Status.PROVEN and self.result.tuned is not None
        side = self.result.tuned if proven and self.result.tuned is not None else self.result.default
        return side.decode_tps

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = rounded(
            {
                "budget_bytes": self.budget_bytes,
                "decode_tps": self.tps,
                "default_tps": self.result.default.decode_tps,
                "status": self.result.status.value,
            }
        )
        return found


def budgets_between(smallest: int, largest: int, count: int) -> list[int]:
    """`count` budgets or fewer in equal ratios, in whole MiB, the largest first.  Both ends are among them."""
    if largest <= smallest:
        return [largest]
    ratio = (smallest / largest) ** (1 / (count - 1))
    inner = [largest * ratio**n // _MIB * _MIB for n in range(1, count - 1)]
    return list(dict.fromkeys([largest, *(int(each) for each in inner if smallest < each < largest), smallest]))


def knee_of(points: Sequence[BudgetPoint]) -> BudgetPoint:
    """The point furthest above the line from the smallest budget to the largest, speed against the logarithm of memory.

    Where no budget is credibly faster than the smallest, it is that one.
    """
    ordered = sorted(points, key=lambda point: point.budget_bytes)
    least, fastest = ordered[0], max(ordered, key=lambda point: point.tps)
    needed_gain = max(least.result.needed_gain, fastest.result.needed_gain)
    if fastest.tps < (1 + needed_gain) * least.tps:
        return least
    # Memory beyond the fastest point buys nothing; a point below the line is never the knee.
    useful = [point for point in ordered if point.budget_bytes <= fastest.budget_bytes]
    span = math.log(fastest.budget_bytes / least.budget_bytes)
    gain = fastest.tps - least.tps

    def above(point: BudgetPoint) -> float:
        return (point.tps - least.tps) / gain - math.log(point.budget_bytes / least.budget_bytes) / span

    best = max(useful, key=above)
    return best if above(best) > 0 else fastest
