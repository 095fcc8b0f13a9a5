"""Where a decoder layer keeps its router, and how that one chooses, as a row of a table."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.nn as nn

from streaming_core.models.routers.choice import SCORES, BiasedChoice, GroupLimit
from streaming_core.models.routers.gate import CappedGate, ScaledGate, gate_of
from streaming_core.models.routers.view import Router

__all__ = ["LayerShape", "at"]


def at(owner: Any, path: str) -> Any:
    """What a dotted path leads to, numbers being places in a list; None where it leads nowhere."""
    for name in path.split("."):
        if name.isdigit():
            owner = owner[int(name)] if isinstance(owner, list) and int(name) < len(owner) else None
        else:
            owner = getattr(owner, name, None)
    return owner


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """Paths begin at the layer if the comment says so, else at the block that holds router and experts."""

    block: str = "mlp"  # from the layer
    input_norm: str = "input_layernorm"  # from the layer: the first thing that sees its input
    norm: str = "post_attention_layernorm"  # from the layer: what comes before the router
    gate: str = "gate"
    score: str = "softmax"  # a key of SCORES
    score_at: str | None = None  # or where the block keeps it
    bias: str | None = None
    group_names: tuple[str, str] | None = None  # where the number of groups is, and of how many the best are taken
    group_best: int = 2
    group_out: float = 0.0
    limited: Callable[[nn.Module], bool] = lambda block: True  # whether the groups limit anything
    factor: Callable[[nn.Module], float] = lambda block: 1.0  # of the logits
    cap: Callable[[nn.Module], float] = lambda block: math.inf  # of the logits
    latent: str | None = None  # leads to something where the experts have a width of their own

    def view(self, layer: nn.Module) -> Router | None:
        """None where the layer has no experts, or not where they are expected."""
        block, norm = at(layer, self.block), at(layer, self.norm)
        module = at(block, self.gate)
        score = SCORES.get(at(block, self.score_at) if self.score_at else self.score)
        if not isinstance(module, nn.Module) or norm is None or score is None:
            return None
        gate = gate_of(module)
        if (factor := self.factor(block)) != 1.0:
            gate = ScaledGate(gate, factor)
        if 0.0 < (cap := self.cap(block)) < math.inf:
            gate = CappedGate(gate, cap)
        bias = at(block, self.bias) if self.bias else None
        shares_input = not (self.latent and at(block, self.latent))
        return Router(norm, gate, BiasedChoice(score, bias, self._limit(block)), shares_input)

    def _limit(self, block: nn.Module) -> GroupLimit | None:
        if self.group_names is None or not self.limited(block):
            return None
        groups, keep = (int(at(block, name) or 1) for name in self.group_names)
        return GroupLimit(groups, keep, self.group_best, self.group_out)
