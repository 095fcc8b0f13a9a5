"""Safetensors files written one group of tensors at a time, so that memory holds one group and never a model.

The `safetensors` package wants every tensor of a file at once and numpy has no bfloat16; the format is 8 bytes of
header length, a JSON header and the data, so it is written here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from .quantize import Array

__all__ = ["Group", "TensorInfo", "fsync_folder", "write_file", "write_shards"]

ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "U32": 4}


@dataclass(frozen=True)
class TensorInfo:
    """Name, safetensors dtype and shape of a tensor, known before its data."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class Group:
    """Tensors that are made together and stay in one shard; `make` returns their data in the order of `tensors`."""

    tensors: tuple[TensorInfo, ...]
    make: Callable[[], Sequence[Array]]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)


def write_shards(
    folder: Path, groups: Sequence[Group], shard_bytes: int, on_progress: Callable[[int, int], None]
) -> None:
    """Write and fsync `model-0000i-of-0000n.safetensors` and the index; each file holds at least one group.

    `on_progress(written, total)`, in bytes of tensor data, after each group.
    """
    shards = _split(groups, shard_bytes)
    total = sum(group.nbytes for group in groups)
    weight_map: dict[str, str] = {}
    written = 0
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        with open(folder / name, "wb") as file:
            file.write(_header(shard))
            for group in shard:
                for tensor, data in zip(group.tensors, group.make(), strict=True):
                    _check(tensor, data)
                    file.write(data.data.cast("B"))
                    weight_map[tensor.name] = name
                written += group.nbytes
                on_progress(written, total)
            file.flush()
            os.fsync(file.fileno())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    write_file(folder / "model.safetensors.index.json", json.dumps(index, indent=2))


def _split(groups: Sequence[Group], shard_bytes: int) -> list[list[Group]]:
    shards: list[list[Group]] = []
    room = 0
    for group in groups:
        if not shards or group.nbytes > room:
            shards.append([])
            room = shard_bytes
        shards[-1].append(group)
        room -= group.nbytes
    return shards


def _header(shard: Sequence[Group]) -> bytes:
    header: dict[str, object] = {"__metadata__": {"format": "mlx"}}
    offset = 0
    for tensor in (tensor for group in shard for tensor in group.tensors):
        span = [offset, offset + tensor.nbytes]
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": span}
        offset += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format asks for data aligned to 8 bytes
    return len(text).to_bytes(8, "little") + text


def _check(tensor: TensorInfo, data: Array) -> None:
    if data.shape != tensor.shape or data.nbytes != tensor.nbytes or not data.flags.c_contiguous:
        raise ValueError(f"{tensor.name}: announced {tensor.dtype} {tensor.shape}, made {data.dtype} {data.shape}")


def write_file(path: Path, text: str) -> None:
    """Write and fsync a small UTF-8 file."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def fsync_folder(folder: Path) -> None:
    """Make the folder's entries durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
