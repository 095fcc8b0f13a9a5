"""The module that stands where mlx-lm's `SwitchGLU` or `SwitchMLP` was."""

from __future__ import annotations

from typing import Any, NoReturn

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear

from streaming_core.engine import Engine
from streaming_core.errors import ExpertsNotInMemory
from streaming_core.layer import StreamedLayer
from streaming_core.residency.bank import Bank
from streaming_core.residency.table import SlotTable

__all__ = ["StreamedSwitch", "other_modules"]

_EXPERTS = frozenset(("gate_proj", "up_proj", "down_proj", "fc1", "fc2", "activation"))


def other_modules(switch: nn.Module) -> dict[str, nn.Module]:
    """What a family hangs on mlx-lm's module beside the experts, and looks for there: muse_spark's norm after them."""
    return {name: child for name, child in switch.children().items() if name not in _EXPERTS}


_REMEDY = "keep its layer in memory (residency.resident_layers)"


class StreamedSwitch(nn.Module):  # type: ignore[misc]
    """Calls the original module over a bank, with slots in place of experts, once the asked experts are there.

    The original is no child of this one: whoever walks the model would take its rows for experts.
    """

    def __init__(self, number: int, switch: nn.Module, table: SlotTable, bank: Bank, engine: Engine) -> None:
        """`switch` computes over the arrays of `bank`; `number` is the decoder layer."""
        super().__init__()
        for name, module in other_modules(switch).items():
            self[name] = module
        self._layer = StreamedLayer(number, engine, table, bank, switch)
        for path, module in switch.named_modules():
            if isinstance(module, SwitchLinear | QuantizedSwitchLinear):
                name = path.rpartition(".")[2]
                self[name] = StreamedProjection(f"{name} of layer {number}")

    def __call__(self, x: mx.array, indices: mx.array) -> mx.array:
        """x [..., D], indices [..., K] -> [..., K, D], the same values as the original module gives."""
        try:
            return self._layer(x, indices)
        except ValueError as err:
            if "graph transformation" not in str(err):
                raise
            raise ExpertsNotInMemory(
                f"no gradient flows through the experts of layer {self._layer.number}: they stream from disk; {_REMEDY}"
            ) from err


class StreamedProjection(nn.Module):  # type: ignore[misc]
    """Where mlx-lm looks for one matrix of the experts.  Holds nothing, and says so to who wants to adapt it."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def to_lora(self, **_: Any) -> NoReturn:
        raise ExpertsNotInMemory(
            f"an adapter wants {self._name}, whose experts stream from disk; "
            f"name the trunk's modules in its lora_parameters.keys, or {_REMEDY}"
        )
