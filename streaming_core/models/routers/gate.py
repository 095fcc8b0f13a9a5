"""From what a router sees to its logits."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn

from streaming_core.models.routers.view import Map

__all__ = ["BareGate", "CappedGate", "ScaledGate", "gate_of"]


@dataclass(frozen=True, slots=True)
class BareGate:
    """A module that keeps its matrix [E, D] itself, so that it is never quantised."""

    module: nn.Module

    def __call__(self, hidden: mx.array) -> mx.array:
        weight: mx.array = self.module.weight
        return hidden.astype(weight.dtype) @ weight.T


@dataclass(frozen=True, slots=True)
class ScaledGate:
    """Logits times a factor: a temperature, a multiplier."""

    gate: Map
    factor: float

    def __call__(self, hidden: mx.array) -> mx.array:
        return self.gate(hidden).astype(mx.float32) * self.factor


@dataclass(frozen=True, slots=True)
class CappedGate:
    """Logits that never pass a limit."""

    gate: Map
    cap: float

    def __call__(self, hidden: mx.array) -> mx.array:
        return mx.tanh(self.gate(hidden).astype(mx.float32) / self.cap) * self.cap


def gate_of(module: nn.Module) -> Map:
    linear = isinstance(module, nn.Linear | nn.QuantizedLinear)
    return module if linear else BareGate(module)
