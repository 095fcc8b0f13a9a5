"""What one expert's bytes look like: the parts of a record, and where each part begins.

Legend: E experts of a layer.  An expert part has shape [E, ...] in the model and [...] in a record.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from streaming_core.units import round_up

__all__ = ["ITEM_BYTES", "PAGE", "RECORD_ALIGN", "Part", "RecordGeometry"]

# Direct reads need offsets, lengths and addresses that are multiples of the device's block (512 or 4096 bytes).
PAGE = 4096
# Apple silicon pages are 16 KiB; a record that starts on one touches no neighbour's page.
RECORD_ALIGN = 16384

ITEM_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "float16": 2, "bfloat16": 2,
    "uint32": 4, "int32": 4, "float32": 4, "uint64": 8, "int64": 8, "float64": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of one expert, such as `gate_proj.scales`."""

    name: str
    dtype: str  # MLX's name, a key of ITEM_BYTES
    shape: tuple[int, ...]  # without the expert axis
    offset: int  # bytes from the start of the record, a multiple of PAGE

    @property
    def nbytes(self) -> int:
        return ITEM_BYTES[self.dtype] * math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class RecordGeometry:
    """The parts of every record of one layer, in the order in which they lie on disk."""

    parts: tuple[Part, ...]

    @classmethod
    def of(cls, tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> RecordGeometry:
        """Lays out (name, dtype, shape of one expert) one after the other, each on a page of its own."""
        parts: list[Part] = []
        offset = 0
        for name, dtype, shape in tensors:
            part = Part(name, dtype, tuple(shape), offset)
            parts.append(part)
            offset += round_up(part.nbytes, PAGE)
        return cls(tuple(parts))

    @property
    def payload_bytes(self) -> int:
        """Bytes of the tensors alone: what a slot takes in memory."""
        return sum(part.nbytes for part in self.parts)

    @property
    def read_bytes(self) -> int:
        """Bytes of one read of a packed record, page padding included."""
        last = self.parts[-1]
        return last.offset + round_up(last.nbytes, PAGE)

    @property
    def stride(self) -> int:
        """Bytes from the start of one record to the next."""
        return round_up(self.read_bytes, RECORD_ALIGN)

    def to_json(self) -> list[dict[str, Any]]:
        return [{"name": p.name, "dtype": p.dtype, "shape": list(p.shape), "offset": p.offset} for p in self.parts]

    @classmethod
    def from_json(cls, rows: object) -> RecordGeometry:
        """Raises ValueError on anything that `to_json` cannot have written."""
        if not isinstance(rows, list) or not rows:
            raise ValueError("geometry must be a list of parts")
        tensors = []
        for row in rows:
            name, dtype, shape = row["name"], row["dtype"], row["shape"]
            if dtype not in ITEM_BYTES or not isinstance(name, str):
                raise ValueError(f"part {name!r} has an unknown dtype {dtype!r}")
            if not all(isinstance(n, int) and 0 < n < 1 << 31 for n in shape):
                raise ValueError(f"part {name!r} has shape {shape!r}")
            tensors.append((name, dtype, tuple(shape)))
        geometry = cls.of(tensors)
        if geometry.to_json() != rows:
            raise ValueError("part offsets do not follow from the shapes")
        return geometry
