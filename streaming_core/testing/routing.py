"""Measure the routing of a resident mlx-lm model: how well experts can be guessed, and how often a cache would hit.

T tokens, K experts per token, E experts, W guessed candidates.  The model's modules are wrapped for the time of a
recording and put back; no class is touched.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from numpy.typing import NDArray

__all__ = ["LayerRouting", "expert_shares", "lru_hit_rate", "recall", "record_routing"]

Indices = NDArray[np.int32]


@dataclass(frozen=True)
class LayerRouting:
    """One MoE layer over one sequence.

    `routed` [T, K]: experts the router chose.  `same_layer`, `next_layer` [T, E]: all experts, likeliest first, as
    guessed by this layer's gate from the layer's un-normed input, and from the MoE input of the layer before.  The
    first MoE layer has no layer before: None.
    """

    routed: Indices
    same_layer: Indices
    next_layer: Indices | None


class _Observed(nn.Module):  # type: ignore[misc]
    """Calls `inner` and keeps the arguments of the last call."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.seen: list[Any] = []

    def __call__(self, *arguments: Any) -> Any:
        self.seen = list(arguments)
        return self.inner(*arguments)


def record_routing(model: nn.Module, tokens: Sequence[int]) -> list[LayerRouting]:
    """Run `tokens` through the model in one pass, without a cache, and return its MoE layers in order."""
    with _observed(model) as layers:
        logits = model(mx.array([list(tokens)]))
        guesses: list[mx.array] = [logits[:, -1, :1]]  # evaluated together, so that the pass runs once
        before: mx.array | None = None
        for layer in layers:
            (hidden,), (moe_input, routed) = layer.input_layernorm.seen, layer.mlp.switch_mlp.seen
            guesses += [routed, _ranking(layer.mlp.gate(layer.post_attention_layernorm(hidden)))]
            if before is not None:
                guesses.append(_ranking(layer.mlp.gate(before)))
            before = moe_input
        mx.eval(guesses)
        for layer in layers:
            layer.input_layernorm.seen, layer.mlp.switch_mlp.seen = [], []
    arrays = [np.array(guess[0]).astype(np.int32) for guess in guesses[1:]]
    first = LayerRouting(arrays[0], arrays[1], None)
    return [first, *(LayerRouting(*arrays[at : at + 3]) for at in range(2, len(arrays), 3))]


@contextmanager
def _observed(model: nn.Module) -> Iterator[list[Any]]:
    layers = [layer for layer in model.layers if hasattr(layer.mlp, "switch_mlp")]
    for layer in layers:
        layer.input_layernorm = _Observed(layer.input_layernorm)
        layer.mlp.switch_mlp = _Observed(layer.mlp.switch_mlp)
    try:
        yield layers
    finally:
        for layer in layers:
            layer.input_layernorm = layer.input_layernorm.inner
            layer.mlp.switch_mlp = layer.mlp.switch_mlp.inner


def _ranking(logits: mx.array) -> mx.array:
    return mx.argsort(-logits, axis=-1)


def recall(routed: Indices, ranking: Indices, width: float) -> float:
    """Share of routed experts among the first `width` guessed; between whole widths it is interpolated.

    routed [T, K], ranking [T, E].
    """
    places = np.argsort(ranking, axis=-1)
    place = np.take_along_axis(places, routed.astype(np.int64), axis=-1)
    whole = int(width)
    part = width - whole
    return float((1 - part) * (place < whole).mean() + part * (place < whole + 1).mean())


def lru_hit_rate(routed: Indices, slots: int) -> float:
    """Share of the experts asked for, token by token, that a cache of the `slots` last used ones holds.

    routed [T, K].
    """
    held: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for chosen in routed.tolist():
        hits += sum(expert in held for expert in chosen)
        for expert in chosen:
            held[expert] = None
            held.move_to_end(expert)
        while len(held) > slots:
            held.popitem(last=False)
    return hits / routed.size


def expert_shares(routed: Indices, experts: int) -> NDArray[np.float64]:
    """[E] share of all choices that went to each expert, largest first."""
    counts = np.bincount(routed.ravel(), minlength=experts)
    return np.sort(counts)[::-1] / routed.size
