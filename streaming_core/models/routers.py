"""How each family's decoder layer chooses experts, as far as a guess needs to know.

A view reads the layer's own modules; it never changes them.  A layer without a known view streams without guesses.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn

__all__ = ["SoftmaxRouter", "router_view"]

# Where a decoder layer keeps its expert block: Qwen and OLMoE, Mixtral, LFM2 and Llama 4.
_BLOCKS = ("mlp", "block_sparse_moe", "feed_forward")


@dataclass(frozen=True, slots=True)
class SoftmaxRouter:
    """A linear gate whose softmax decides: qwen2_moe, qwen3_moe, qwen3_next, qwen3_5_moe, olmoe, mixtral."""

    norm: nn.Module  # between attention and experts
    gate: nn.Module

    def scores(self, hidden: mx.array, *, normed: bool) -> mx.array:
        """hidden [..., D] -> probabilities [..., E]."""
        gates = self.gate(hidden if normed else self.norm(hidden))
        return mx.softmax(gates, axis=-1, precise=True)


def router_view(layer: nn.Module) -> SoftmaxRouter | None:
    """The view of a decoder layer, or None where its router is of a shape not known here."""
    norm = layer.get("post_attention_layernorm")
    for name in _BLOCKS:
        block = layer.get(name)
        if isinstance(block, nn.Module) and isinstance(norm, nn.Module):
            gate = block.get("gate")
            # Routers that add a bias, limit groups or use a sigmoid are modules of their own, not linear layers.
            if isinstance(gate, nn.Linear | nn.QuantizedLinear):
                return SoftmaxRouter(norm, gate)
    return None
