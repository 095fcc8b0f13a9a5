"""From a router's logits to the scores that experts are chosen by.

Legend: E experts, G groups of E / G experts each.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn

from streaming_core.models.routers.view import Map

__all__ = ["SCORES", "BiasedChoice", "GroupLimit"]


def _softmax(logits: mx.array) -> mx.array:
    return mx.softmax(logits, axis=-1, precise=True)


def _sqrtsoftplus(logits: mx.array) -> mx.array:
    return mx.sqrt(nn.softplus(logits))


SCORES: dict[str, Map] = {"softmax": _softmax, "sigmoid": mx.sigmoid, "sqrtsoftplus": _sqrtsoftplus}


@dataclass(frozen=True, slots=True)
class GroupLimit:
    """Experts of all but the best `keep` groups are out.  A group is as good as its `best` best experts together."""

    groups: int
    keep: int
    best: int
    out: float  # the score of those that are out

    def __call__(self, scores: mx.array) -> mx.array:
        drop = self.groups - self.keep
        if self.groups <= 1 or drop <= 0:
            return scores
        grouped = mx.unflatten(scores, axis=-1, shape=(self.groups, -1))
        value = mx.topk(grouped, self.best, axis=-1).sum(axis=-1, keepdims=True)
        worst = mx.argpartition(value, kth=drop - 1, axis=-2)[..., :drop, :]
        return mx.flatten(mx.put_along_axis(grouped, worst, mx.array(self.out, scores.dtype), axis=-2), -2, -1)


@dataclass(frozen=True, slots=True)
class BiasedChoice:
    """A score of its own for every expert, a learnt bias that only the choice sees, a limit to the best groups."""

    score: Map
    bias: mx.array | None = None  # [E]
    limit: GroupLimit | None = None

    def __call__(self, logits: mx.array) -> mx.array:
        scores = self.score(logits.astype(mx.float32))
        if self.bias is not None:
            scores = scores + self.bias
        return scores if self.limit is None else self.limit(scores)
