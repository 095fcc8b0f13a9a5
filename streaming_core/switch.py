"""The module that stands where mlx-lm's `SwitchGLU` or `SwitchMLP` was."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from streaming_core.engine import Engine
from streaming_core.layer import StreamedLayer
from streaming_core.residency.bank import Bank
from streaming_core.residency.table import SlotTable

__all__ = ["StreamedSwitch", "other_modules"]

_EXPERTS = frozenset(("gate_proj", "up_proj", "down_proj", "fc1", "fc2", "activation"))


def other_modules(switch: nn.Module) -> dict[str, nn.Module]:
    """What a family hangs on mlx-lm's module beside the experts, and looks for there: muse_spark's norm after them."""
    return {name: child for name, child in switch.children().items() if name not in _EXPERTS}


class StreamedSwitch(nn.Module):  # type: ignore[misc]
    """Calls the original module over a bank, with slots in place of experts, once the asked experts are there."""

    def __init__(self, number: int, switch: nn.Module, table: SlotTable, bank: Bank, engine: Engine) -> None:
        """`switch` computes over the arrays of `bank`; `number` is the decoder layer."""
        super().__init__()
        self.switch = switch
        for name, module in other_modules(switch).items():
            self[name] = module
        self._layer = StreamedLayer(number, engine, table, bank, switch)

    def __call__(self, x: mx.array, indices: mx.array) -> mx.array:
        """x [..., D], indices [..., K] -> [..., K, D], the same values as the original module gives."""
        return self._layer(x, indices)
