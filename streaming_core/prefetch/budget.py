"""How many guesses may be acted upon.  Pure decisions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from streaming_core.layer_set import LayerSet

__all__ = ["Budget", "PassBudget"]


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits, as settings give them."""

    layers: LayerSet
    per_layer: int
    per_pass: int | None  # None: no limit
    min_score: float

    def begin_pass(self) -> PassBudget:
        return PassBudget(self, self.per_pass)


@dataclass(slots=True)
class PassBudget:
    """What is left of the limits in one forward pass.

    A value of its own for every pass: layer numbers do not say where a pass begins (chunks, batches, a pass given
    up halfway, two models in one process).
    """

    budget: Budget
    left: int | None

    def choose(self, layer: int, ranked: list[tuple[int, float]], absent: Callable[[int], bool]) -> list[int]:
        """The guessed experts worth reading, the best first: in a chosen layer, likely enough, not there yet."""
        if layer not in self.budget.layers:
            return []
        room = self.budget.per_layer if self.left is None else min(self.budget.per_layer, self.left)
        chosen: list[int] = []
        for expert, score in ranked:
            if len(chosen) >= room or score < self.budget.min_score:
                break  # best first: nothing likelier follows
            if absent(expert):
                chosen.append(expert)
        return chosen

    def spend(self, reads: int) -> None:
        if self.left is not None:
            self.left = max(0, self.left - reads)
