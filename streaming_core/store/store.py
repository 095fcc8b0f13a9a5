"""The seam between records and the files they lie in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from streaming_core.reading import Read, RecordFile

__all__ = ["Store"]


class Store(Protocol):
    """Knows which bytes of which file make up a record.  Opened by its constructor, closed by its owner."""

    def reads(self, layer: int, expert: int, views: Sequence[memoryview]) -> list[Read]:
        """The reads that fill one view per part, in the order of the layer's geometry."""

    def files(self, layer: int) -> Sequence[RecordFile]:
        """The files that hold the layer's records."""

    def read_bytes(self, layer: int) -> int:
        """Bytes that one record costs to read."""

    def close(self) -> None:
        """Idempotent."""
