"""What the kernels must agree with: the MLP of the chosen experts in MLX's own operations, on any backend.

Legend: T tokens, K experts per token, S slots of a bank, E experts, U different experts of a call, D model width,
F expert width, N rows of a projection (outputs), C columns (inputs).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.activations import swiglu
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear

from streaming_core.kernels.formats import Activation, ExpertFormat, ProjectionFormat

__all__ = ["ActivationOf", "Parts", "activation_of", "expert_mlp", "project", "slice_switch", "unique_and_local"]

Parts = Mapping[str, mx.array]  # part name -> [S, ...]
ActivationOf = Callable[[mx.array, mx.array], mx.array]  # up, gate -> hidden; mlx-lm's order


def unique_and_local(indices: mx.array) -> tuple[mx.array, mx.array]:
    """Experts [...] -> the different ones in rising order [U], and for each of `indices` its place among them [...]."""
    unique, local = np.unique(np.array(indices), return_inverse=True)
    places = local.reshape(indices.shape)
    return mx.array(unique, dtype=indices.dtype), mx.array(places, dtype=indices.dtype)


def slice_switch(switch: nn.Module, experts: mx.array) -> nn.Module:
    """A small module of some of the experts [U] of a `SwitchGLU` or `SwitchMLP`, to be called with local indices."""
    small = copy(switch)
    for name, linear in switch.items():
        if isinstance(linear, SwitchLinear | QuantizedSwitchLinear):
            small[name] = copy(linear)
            small[name].update({tensor: a[experts] for tensor, a in linear.items() if isinstance(a, mx.array)})
    return small


def expert_mlp(
    x: mx.array, slots: mx.array, parts: Parts, experts: ExpertFormat, activation: ActivationOf | None = None
) -> mx.array:
    """x [T, D], slots [T, K], parts [S, ...] -> [T, K, D].  `activation`: the format's own unless given."""
    if activation is None:  # not `or`: a module without parameters is false
        activation = activation_of(experts.activation)
    rows = mx.expand_dims(x, (-2, -3))  # [T, 1, 1, D]
    up = project(rows, slots, parts, "up_proj", experts.up)  # [T, K, 1, F]
    gate = project(rows, slots, parts, "gate_proj", experts.gate)
    return project(activation(up, gate), slots, parts, "down_proj", experts.down).squeeze(-2)


def project(x: mx.array, slots: mx.array, parts: Parts, name: str, form: ProjectionFormat) -> mx.array:
    """One projection of each row's own expert: x [..., K or 1, 1, C], slots [..., K] -> [..., K, 1, N]."""
    weight = parts[f"{name}.weight"]
    if form.mode == "none":
        dtype = x.dtype
        if mx.default_device().type == mx.cpu:  # its gather_mm knows no other type
            x, weight = x.astype(mx.float32), weight.astype(mx.float32)
        out = mx.gather_mm(x, weight.swapaxes(-1, -2), rhs_indices=slots).astype(dtype)
    else:
        out = mx.gather_qmm(
            x,
            weight,
            parts[f"{name}.scales"],
            parts.get(f"{name}.biases"),
            rhs_indices=slots,
            transpose=True,
            group_size=form.group,
            bits=form.bits,
            mode=form.mode,
        )
    return out + mx.expand_dims(parts[f"{name}.bias"][slots], -2) if form.bias else out


def activation_of(known: Activation | None) -> ActivationOf:
    """up, gate -> hidden, element by element."""
    if known is None:
        raise ValueError("the activation is not one that a format can name: pass the module's own")
    if known.kind == "swiglu":
        return lambda up, gate: swiglu(gate, up)

    def clipped(up: mx.array, gate: mx.array) -> mx.array:
        gate = mx.minimum(gate, known.limit)
        up = mx.clip(up, -known.limit, known.limit)
        return (up + 1.0) * (gate * mx.sigmoid(known.alpha * gate))

    return clipped
