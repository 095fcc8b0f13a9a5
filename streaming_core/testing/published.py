"""Published routing of trained models, to compare with: curves of (x, y), x rising.

Widths count in multiples of top-k and slots in shares of a layer's experts, so that models of different sizes can be
compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

__all__ = ["LRU_128", "LRU_256", "NEXT_LAYER", "SAME_LAYER", "Curve", "interpolated", "recall_curve"]

Curve = Sequence[tuple[float, float]]

# Qwen3-Next, top-10 of 512: width -> recall
SAME_LAYER: Curve = ((2.16, 0.897), (4.06, 0.984), (7.58, 0.994))  # this layer's router on the layer's un-normed input
NEXT_LAYER: Curve = (  # the next layer's router on this layer's MoE input
    (0.8, 0.403), (1.2, 0.571), (1.6, 0.700), (2.0, 0.790), (2.4, 0.850), (3.2, 0.918), (4.8, 0.968), (6.4, 0.983),
)  # fmt: skip
# Qwen3-30B-A3B, top-8 of 128, and Qwen3.5-35B, top-8 of 256: slots -> miss rate
LRU_128: Curve = (
    (12 / 128, 0.538), (20 / 128, 0.419), (28 / 128, 0.329), (36 / 128, 0.257), (44 / 128, 0.181), (53 / 128, 0.121),
)  # fmt: skip
LRU_256: Curve = ((16 / 256, 0.405), (64 / 256, 0.192), (128 / 256, 0.173))


def recall_curve(kind: str, ahead: int) -> Curve:
    """Of guesses as `predict.kind` and `prefetch.ahead` make them; empty where nothing was published."""
    return {("gate", 0): SAME_LAYER, ("gate_input", 1): NEXT_LAYER}.get((kind, ahead), ())


def interpolated(curve: Curve, at: float) -> float | None:
    """The value on the straight line between the two nearest points; None outside the curve."""
    for (x0, y0), (x1, y1) in pairwise(curve):
        if x0 <= at <= x1:
            return y0 + (y1 - y0) * (at - x0) / (x1 - x0)
    return None
