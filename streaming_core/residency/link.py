"""How host and device tell each other of experts: the asked ones come up, the rows they lie in go down.

Legend: E experts of a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx
import numpy as np

__all__ = ["Answer", "Link", "RowTable", "UnifiedLink"]

Host = np.ndarray[Any, Any]


class Answer(Protocol):
    """An array on its way to the host."""

    @property
    def arrays(self) -> Sequence[mx.array]:
        """To be evaluated before `host`."""

    def host(self) -> Host:
        """The values, flat; good until a few more were sent."""


class RowTable(Protocol):
    """Expert -> row of its slot, looked up inside the graph and changed in place by the host."""

    host: Host  # uint32 [E]

    def rows(self, indices: mx.array) -> mx.array:
        """[...] experts -> [...] rows, as the table is when the graph runs."""


class Link(Protocol):
    def send(self, array: mx.array) -> Answer:
        """Integers below 2^32, or float32."""

    def table(self, experts: int) -> RowTable: ...


@dataclass(frozen=True, slots=True)
class _Shared:
    array: mx.array

    @property
    def arrays(self) -> Sequence[mx.array]:
        return (self.array,)

    def host(self) -> Host:
        return np.array(self.array, copy=False).reshape(-1)


class _SharedTable:
    def __init__(self, experts: int) -> None:
        # Made once, so a call makes no new array of it.
        self._rows = mx.zeros((experts,), dtype=mx.uint32)
        mx.eval(self._rows)
        self.host = np.array(self._rows, copy=False)

    def rows(self, indices: mx.array) -> mx.array:
        return self._rows[indices]


class UnifiedLink:
    """One memory for both: the host looks at the arrays themselves."""

    def send(self, array: mx.array) -> Answer:
        return _Shared(array)

    def table(self, experts: int) -> RowTable:
        return _SharedTable(experts)
