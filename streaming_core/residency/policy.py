"""Which resident expert makes room for the next one."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Container
from typing import Protocol

__all__ = ["Lfu", "Lru", "Policy", "make_policy"]


class Policy(Protocol):
    """Remembers use.  Experts are numbers; only resident ones can be victims."""

    def begin(self) -> None:
        """A new call of the layer: time moves on by one token."""

    def use(self, expert: int) -> None:
        """The expert was asked for, and is or is about to be resident."""

    def admit(self, expert: int) -> None:
        """The expert is resident on a guess: nobody asked for it yet."""

    def drop(self, expert: int) -> None:
        """The expert is resident no longer."""

    def victims(self, count: int, held: Container[int]) -> list[int]:
        """Up to `count` resident experts outside `held`, the most dispensable first."""


class Lru:
    """Least recently used goes first."""

    def __init__(self) -> None:
        self._order: OrderedDict[int, None] = OrderedDict()  # oldest use first

    def begin(self) -> None:
        return

    def use(self, expert: int) -> None:
        self._order[expert] = None
        self._order.move_to_end(expert)

    def admit(self, expert: int) -> None:
        self._order[expert] = None
        self._order.move_to_end(expert, last=False)

    def drop(self, expert: int) -> None:
        self._order.pop(expert, None)

    def victims(self, count: int, held: Container[int]) -> list[int]:
        found: list[int] = []
        for expert in self._order:
            if len(found) == count:
                break
            if expert not in held:
                found.append(expert)
        return found


class Lfu:
    """Least often used goes first; a use loses half its weight every `half_life` calls.

    An expert keeps its score while it is away: otherwise each return would start it from nothing and it would be the
    next victim.
    """

    def __init__(self, half_life: int) -> None:
        self._growth = 2.0 ** (1.0 / half_life)
        self._weight = 1.0  # of one use now; growing it is cheaper than shrinking every score
        self._score: dict[int, float] = {}
        self._resident: dict[int, None] = {}  # oldest use first, so ties go to the least recent

    def begin(self) -> None:
        self._weight *= self._growth
        if self._weight > 1e100:
            self._score = {e: s / self._weight for e, s in self._score.items()}
            self._weight = 1.0

    def use(self, expert: int) -> None:
        self._score[expert] = self._score.get(expert, 0.0) + self._weight
        self._resident.pop(expert, None)
        self._resident[expert] = None

    def admit(self, expert: int) -> None:
        self._score.setdefault(expert, 0.0)
        self._resident[expert] = None

    def drop(self, expert: int) -> None:
        self._resident.pop(expert, None)

    def victims(self, count: int, held: Container[int]) -> list[int]:
        free = (e for e in self._resident if e not in held)
        return heapq.nsmallest(count, free, key=self._score.__getitem__)


def make_policy(name: str, half_life: int) -> Policy:
    """The policy that `residency.policy` names."""
    return Lfu(half_life) if name == "lfu" else Lru()
