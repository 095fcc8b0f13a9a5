"""One guess: candidates for one layer, best first.

Legend: T tokens of a call, W candidates per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx
import numpy as np

from streaming_core.residency.link import Answer

__all__ = ["Guess", "KnownGuess", "ScoredGuess", "best_per_expert"]


class Guess(Protocol):
    """Candidates of `layer`.  `arrays` have to be evaluated before `ranked` is called."""

    @property
    def layer(self) -> int: ...

    @property
    def arrays(self) -> Sequence[mx.array]: ...

    def ranked(self) -> list[tuple[int, float]]:
        """(expert, score), the best first; every expert once."""


@dataclass(frozen=True, slots=True)
class ScoredGuess:
    """A router's opinion, still in the graph."""

    layer: int
    experts: Answer  # integers, W a token
    scores: Answer  # float32, likewise

    @property
    def arrays(self) -> Sequence[mx.array]:
        return (*self.experts.arrays, *self.scores.arrays)

    def ranked(self) -> list[tuple[int, float]]:
        return best_per_expert(self.experts.host(), self.scores.host())


@dataclass(frozen=True, slots=True)
class KnownGuess:
    """A guess that needs no arrays: from history, or from a recorded run."""

    layer: int
    candidates: tuple[tuple[int, float], ...]
    arrays: Sequence[mx.array] = ()

    def ranked(self) -> list[tuple[int, float]]:
        return list(self.candidates)


def best_per_expert(experts: np.ndarray[Any, Any], scores: np.ndarray[Any, Any]) -> list[tuple[int, float]]:
    """The highest score of each expert over all tokens, the best first; ties in order of expert number."""
    best: dict[int, float] = {}
    for expert, score in zip(experts.tolist(), scores.tolist(), strict=True):
        if score > best.get(expert, float("-inf")):
            best[expert] = score
    return sorted(best.items(), key=lambda item: (-item[1], item[0]))
