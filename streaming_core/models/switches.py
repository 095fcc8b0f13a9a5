"""Finds the routed experts of a model, and stands in for them.

Legend: T tokens (all leading axes), K experts per token, E experts, D model width, I expert width.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchGLU, SwitchLinear, SwitchMLP

from streaming_core.errors import ModelNotSupported
from streaming_core.geometry import RecordGeometry
from streaming_core.switch import other_modules

__all__ = ["ShapesOnly", "Switch", "find_switches", "put_module"]

_PROJECTIONS = ("gate_proj", "up_proj", "down_proj", "fc1", "fc2")
_TENSORS = ("weight", "scales", "biases", "bias", "global_scale")


@dataclass(slots=True)
class Switch:
    """The routed experts of one layer: mlx-lm's module, and its tensors as long as nobody has taken them."""

    layer: int
    path: str  # as mlx-lm's parameters name it: "model.layers.3.mlp.switch_mlp"
    module: nn.Module
    experts: int
    geometry: RecordGeometry
    _tensors: dict[str, mx.array] = field(repr=False)

    def take(self, name: str) -> mx.array:
        """The evaluated tensor [E, ...] of a part; no reference stays here."""
        array = self._tensors.pop(name)
        mx.eval(array)
        return array

    def adopt(self, arrays: dict[str, mx.array]) -> None:
        """Makes the module compute over these arrays [S, ...], one per part, in place of its own."""
        self._tensors.clear()
        for name, array in arrays.items():
            projection, _, tensor = name.partition(".")
            self.module[projection][tensor] = array


def find_switches(model: nn.Module, name: str) -> list[Switch]:
    """Every `SwitchGLU` and `SwitchMLP` of a model, in layer order; takes their tensors out of the modules.

    Raises:
        ModelNotSupported: the model has none, or one sits outside a numbered layer.
    """
    found = [(p, m) for p, m in model.named_modules() if isinstance(m, SwitchGLU | SwitchMLP)]
    if not found:
        raise ModelNotSupported(f"{name}: a dense model has no experts to stream; run it with mlx_lm itself")
    switches = sorted((_switch(path, module) for path, module in found), key=lambda s: s.layer)
    numbers = [s.layer for s in switches]
    if len(set(numbers)) != len(numbers):
        raise ModelNotSupported(f"{name}: two expert blocks in one layer ({switches[0].path}) are not supported yet")
    return switches


def _switch(path: str, module: nn.Module) -> Switch:
    number = re.search(r"\.(\d+)\.", f".{path}.")
    if number is None:
        raise ModelNotSupported(f"{path}: experts outside a numbered layer are not supported")
    tensors: dict[str, mx.array] = {}
    experts = 0
    for projection in _PROJECTIONS:
        linear = module.get(projection)
        if not isinstance(linear, QuantizedSwitchLinear | SwitchLinear):
            continue
        experts = linear.weight.shape[0]
        for tensor in _TENSORS:
            if isinstance(linear.get(tensor), mx.array):
                tensors[f"{projection}.{tensor}"] = linear[tensor]
                # The module keeps a name and a shape, but no bytes: nothing reads the experts by accident.
                linear[tensor] = mx.zeros((1,) * linear[tensor].ndim, dtype=linear[tensor].dtype)
    parts = [(name, str(a.dtype).rpartition(".")[2], tuple(a.shape[1:])) for name, a in tensors.items()]
    return Switch(int(number[1]), path, module, experts, RecordGeometry.of(parts), tensors)


def put_module(model: nn.Module, path: str, module: nn.Module) -> None:
    """Puts a module instance where `path` leads."""
    model.update_modules(tree_unflatten([(path, module)]))


class ShapesOnly:
    """Notes what switches are asked for while a model is only traced."""

    def __init__(self) -> None:
        self.top_k = 0  # the largest of any layer
        self.width = 0
        self.item_bytes = 0
        self.dtype = "bfloat16"

    def stand_in(self, switch: nn.Module) -> nn.Module:
        """For one switch: gives zeros of the right shape."""
        return _StandIn(self, switch)

    def note(self, x: mx.array, indices: mx.array) -> None:
        self.top_k, self.width = max(self.top_k, indices.shape[-1]), x.shape[-1]
        self.item_bytes, self.dtype = x.dtype.size, str(x.dtype).rpartition(".")[2]


class _StandIn(nn.Module):  # type: ignore[misc]
    def __init__(self, shapes: ShapesOnly, switch: nn.Module) -> None:
        super().__init__()
        self._shapes = shapes
        for name, module in other_modules(switch).items():
            self[name] = module

    def __call__(self, x: mx.array, indices: mx.array) -> mx.array:
        self._shapes.note(x, indices)
        return mx.zeros((*indices.shape, x.shape[-1]), dtype=x.dtype)
