"""How the experts of a layer are stored, as far as a kernel must know.

Legend: N rows of a projection (outputs), C columns (inputs), D model width, F expert width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.activations import SwigluOAI
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwiGLU, SwitchGLU, SwitchLinear

from streaming_core.geometry import Part, RecordGeometry

__all__ = ["Activation", "ExpertFormat", "ProjectionFormat", "Unknown", "format_of", "geometry_of", "parts_of"]

_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
_TENSORS = ("weight", "scales", "biases", "bias", "global_scale")


@dataclass(frozen=True, slots=True)
class ProjectionFormat:
    """One matrix [N, C] of an expert.

    Packing: a row is a little-endian stream of bits, in words of 32.  mxfp4 and nvfp4 hold e2m1 numbers, mxfp8 e4m3;
    their scales are bytes: e8m0, for nvfp4 e4m3.
    """

    rows: int
    columns: int
    bits: int  # mode none: of a weight
    group: int  # columns that share a scale; mode none: 0
    mode: str  # affine, mxfp4, mxfp8, nvfp4; none: not quantized
    dtype: str  # of the activations, as MLX names it
    scale_dtype: str  # mode none: of the weights
    bias: bool  # one added to each output, apart from the biases of affine groups

    @property
    def words(self) -> int:
        """Of 32 bits, in a packed row."""
        return self.columns * self.bits // 32

    def __str__(self) -> str:
        packed = self.scale_dtype if self.mode == "none" else f"{self.mode} {self.bits} bits, groups of {self.group}"
        return f"{self.rows}x{self.columns} {packed}{', bias' if self.bias else ''}"


@dataclass(frozen=True, slots=True)
class Activation:
    """What joins gate and up, as far as a kernel knows it.

    swiglu: silu(gate) * up.  clipped_swiglu: gate cut from above at `limit`, up on both sides, then
    gate * sigmoid(alpha * gate) * (up + 1).
    """

    kind: str
    alpha: float = 0.0
    limit: float = 0.0


@dataclass(frozen=True, slots=True)
class ExpertFormat:
    """gate and up [F, D], down [D, F]."""

    gate: ProjectionFormat
    up: ProjectionFormat
    down: ProjectionFormat
    activation: Activation | None  # None: one that no kernel knows

    def with_dtype(self, dtype: str) -> ExpertFormat:
        """The same experts on activations of another type."""
        gate, up, down = (replace(each, dtype=dtype) for each in (self.gate, self.up, self.down))
        return replace(self, gate=gate, up=up, down=down)

    def __str__(self) -> str:
        gate = str(self.gate) if self.gate == self.up else f"{self.gate} / up {self.up}"
        return f"gate {gate}, down {self.down}, {self.gate.dtype}"


@dataclass(frozen=True, slots=True)
class Unknown:
    """Experts that no kernel can be made for, and why."""

    reason: str


def format_of(switch: nn.Module, geometry: RecordGeometry | None = None) -> ExpertFormat | Unknown:
    """What mlx-lm's module computes with.  `geometry` tells the shapes where the module has given its tensors away."""
    if type(switch) is not SwitchGLU:  # a subclass may compute anything
        return Unknown(f"{type(switch).__name__} is not gate, up and down")
    extra = sorted(switch.children().keys() - {*_PROJECTIONS, "activation"})
    if extra:
        return Unknown(f"{type(switch).__name__} has a part of its own: {extra[0]}")
    parts = {part.name: part for part in (geometry or geometry_of(switch)).parts}
    found: list[ProjectionFormat] = []
    for name in _PROJECTIONS:
        projection = _projection(name, switch[name], parts)
        if isinstance(projection, Unknown):
            return projection
        found.append(projection)
    gate, up, down = found
    dtype = next((each.dtype for each in found if each.dtype != "uint8"), "bfloat16")
    return ExpertFormat(gate, up, down, _activation(switch.activation)).with_dtype(dtype)


def parts_of(switch: nn.Module) -> dict[str, mx.array]:
    """The module's own tensors [S, ...] under the names that records have."""
    return {
        f"{projection}.{tensor}": switch[projection][tensor]
        for projection in _PROJECTIONS
        for tensor in _TENSORS
        if isinstance(switch[projection].get(tensor), mx.array)
    }


def geometry_of(switch: nn.Module) -> RecordGeometry:
    """Of a module that has its tensors."""
    arrays = parts_of(switch).items()
    return RecordGeometry.of((name, str(a.dtype).rpartition(".")[2], tuple(a.shape[1:])) for name, a in arrays)


def _projection(name: str, linear: nn.Module, parts: dict[str, Part]) -> ProjectionFormat | Unknown:
    """Its dtype is that of its numbers, or uint8 where they do not tell."""
    weight = parts[f"{name}.weight"]
    bias = parts.get(f"{name}.bias")
    if isinstance(linear, SwitchLinear):
        rows, columns = weight.shape
        bits = 32 if weight.dtype == "float32" else 16
        return ProjectionFormat(rows, columns, bits, 0, "none", weight.dtype, weight.dtype, bias is not None)
    if not isinstance(linear, QuantizedSwitchLinear):
        return Unknown(f"{name} is a {type(linear).__name__}")
    if f"{name}.global_scale" in parts:
        return Unknown(f"{name} has a scale for the whole matrix")
    scales = parts[f"{name}.scales"]
    dtype = scales.dtype if scales.dtype != "uint8" or bias is None else bias.dtype
    rows, groups = scales.shape
    columns = groups * linear.group_size
    return ProjectionFormat(
        rows, columns, linear.bits, linear.group_size, linear.mode, dtype, scales.dtype, bias is not None
    )


def _activation(module: Any) -> Activation | None:
    if type(module) is SwiGLU:
        return Activation("swiglu")
    if type(module) is SwigluOAI:
        return Activation("clipped_swiglu", float(module._alpha), float(module._limit))
    return None
