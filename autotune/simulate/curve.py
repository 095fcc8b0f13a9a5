"""Hits of the policy lru for every number of slots, in one pass over a trace (Mattson et al., 1970).

A table of S slots holds the S experts that were used last, so an expert is a hit wherever S is at least its place in
the order of last use.  A call that asks for more than S runs in waves, whose order depends on S; what comes after it is
then only known by replaying.  `exact_from` is where that never happened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from streaming_core.route_trace import RouteTrace

__all__ = ["LruCurve", "lru_curve"]


@dataclass(frozen=True, slots=True)
class LruCurve:
    """Of the counted passes, without guesses."""

    asked: Mapping[int, int]  # by layer
    hits: Mapping[int, tuple[int, ...]]  # layer -> hits with 0, 1, 2, ... slots
    exact_from: int  # slots

    def hit_rate(self, slots: int) -> float:
        """Over all layers; 1.0 when nothing was asked for."""
        asked = sum(self.asked.values())
        return sum(hits[slots] for hits in self.hits.values()) / asked if asked else 1.0


def lru_curve(trace: RouteTrace) -> LruCurve:
    order: dict[int, list[int]] = {layer: [] for layer in trace.layers}  # the last used last
    places = {layer: [0] * (trace.experts + 1) for layer in trace.layers}
    asked = dict.fromkeys(trace.layers, 0)
    widest = 1
    for step in trace.passes:
        for call in step.asked:
            used = order[call.layer]
            widest = max(widest, len(call.experts))
            if step.counted:
                asked[call.layer] += len(call.experts)
                place_of = {expert: len(used) - at for at, expert in enumerate(used)}
                for place in (place_of[expert] for expert in call.experts if expert in place_of):
                    places[call.layer][place] += 1
            again = set(call.experts)
            used[:] = [expert for expert in used if expert not in again]
            used += call.experts
    return LruCurve(asked, {layer: tuple(accumulate(counts)) for layer, counts in places.items()}, widest)
