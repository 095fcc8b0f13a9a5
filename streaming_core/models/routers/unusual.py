"""Routers that are more than a gate and a choice: gemma4's norms by itself, longcat_flash's may choose no expert."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn

from streaming_core.models.routers.choice import SCORES
from streaming_core.models.routers.view import Router

__all__ = ["GemmaLayer", "ZeroExpertLayer"]


@dataclass(frozen=True, slots=True)
class GemmaLayer:
    """Router and experts lie in the layer itself; the router takes the residual stream and norms it its own way."""

    input_norm: str = "input_layernorm"

    def view(self, layer: nn.Module) -> Router | None:
        router = layer.get("router")
        if not isinstance(router, nn.Module):
            return None

        def norm(hidden: mx.array) -> mx.array:
            return mx.fast.rms_norm(hidden, router.scale * router._root_size, router.eps)

        return Router(norm, router.proj, SCORES["softmax"], shares_input=False)


@dataclass(frozen=True, slots=True)
class ZeroExpertLayer:
    """Beyond its experts the router chooses among some that do nothing.  mlx-lm asks for expert 0 in their place."""

    input_norm: str = "input_layernorm.0"

    def view(self, layer: nn.Module) -> Router | None:
        block = layer.get("mlp")
        if not isinstance(block, nn.Module):
            return None
        experts, router = block.n_routed_experts, block.router

        def choice(logits: mx.array) -> mx.array:
            scores: mx.array = mx.softmax(logits, axis=-1) + router.e_score_correction_bias
            if scores.shape[-1] == experts:
                return scores
            nothing = scores[..., experts:].max(axis=-1, keepdims=True)
            return mx.concatenate([mx.maximum(scores[..., :1], nothing), scores[..., 1:experts]], axis=-1)

        return Router(layer.post_attention_layernorm[0], router.classifier, choice)
