"""The seam between records and the files they lie in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from streaming_core.errors import ReadError
from streaming_core.reading import Read, RecordFile

__all__ = ["Store", "store_closed"]


class Store(Protocol):
    """Knows which bytes of which file make up a record.  Opened by its constructor, closed by its owner."""

    def reads(self, layer: int, expert: int, views: Sequence[memoryview]) -> list[Read]:
        """The reads that fill one view per part, in the geometry's order.  Raises ReadError once closed."""

    def files(self, layer: int) -> Sequence[RecordFile]:
        """The files that hold the layer's records."""

    def read_bytes(self, layer: int) -> int:
        """Bytes that one record costs to read."""

    def close(self) -> None:
        """Idempotent."""


def store_closed(layer: int, expert: int) -> ReadError:
    """The error of reads that are asked for after `close`."""
    return ReadError(f"expert {expert} of layer {layer}: the store is closed; load the model again")
