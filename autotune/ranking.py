"""Orders of layers, from what trials counted in each."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.trial import LayerCost, Measured

__all__ = ["by_guesses", "by_wait"]


def by_wait(layers: Sequence[int], default: Measured) -> tuple[int, ...]:
    """Layers that were waited for longest first; those that were resident anyway, last."""
    waits = {cost.layer: cost.wait_s for cost in default.counters.layers}
    return tuple(sorted(layers, key=lambda layer: (-waits.get(layer, 0.0), layer)))


def by_guesses(layers: Sequence[int], guessed: Measured) -> tuple[int, ...]:
    """Layers where guesses avoided the most reads, those made in vain taken off, first; those without a guess, last.

    Ties keep the order of `layers`.
    """
    costs = {cost.layer: cost for cost in guessed.counters.layers if cost.guessed}
    return tuple(sorted(layers, key=lambda layer: (layer not in costs, -_gain(costs.get(layer)))))


def _gain(cost: LayerCost | None) -> int:
    return 0 if cost is None else cost.guesses_used - (cost.guessed - cost.guesses_used)
