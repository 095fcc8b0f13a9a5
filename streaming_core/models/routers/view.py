"""What a guess asks: the scores by which a layer's router would choose on a given hidden state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

__all__ = ["Map", "Router"]

Map = Callable[[mx.array], mx.array]


@dataclass(frozen=True, slots=True)
class Router:
    """One layer's router in three steps."""

    norm: Map  # between the residual stream and the router
    logits: Map  # [..., D] -> [..., E]
    choice: Map  # [..., E] -> [..., E], what the best k are taken of
    # Whether the experts are given what the router is given, up to a factor.
    shares_input: bool = True

    def scores(self, hidden: mx.array, *, normed: bool) -> mx.array:
        """hidden [..., D] -> [..., E]; `normed`: it is what a router sees, not the residual stream."""
        return self.choice(self.logits(hidden if normed else self.norm(hidden)))
