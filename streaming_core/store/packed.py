"""Packed records: one contiguous, page-aligned record per expert, one file per layer."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from streaming_core.errors import StoreInvalid
from streaming_core.geometry import RecordGeometry
from streaming_core.hardware import Machine
from streaming_core.reading import Read, RecordFile
from streaming_core.store.header import LayerHeader, layer_file
from streaming_core.store.store import store_closed

__all__ = ["Fault", "PackedStore", "verify"]


class PackedStore:
    """The packed files of one checkpoint, open for reading."""

    def __init__(
        self, folder: Path, fingerprint: str, layers: Mapping[int, RecordGeometry], machine: Machine, *, bypass: bool
    ) -> None:
        """Opens the files of `layers`.

        Raises:
            StoreInvalid: a file is missing, truncated, damaged, of another checkpoint or of another geometry.
        """
        self._layers: dict[int, _Layer] = {}
        # The bytes between two parts have to go somewhere; many readers may write here, nobody reads it.
        padding = memoryview(bytearray(max((max(_gaps(g)) for g in layers.values()), default=0)))
        try:
            for layer, geometry in layers.items():
                path = layer_file(folder, layer)
                header = _checked(LayerHeader.read(path), path, layer, fingerprint, geometry)
                file = RecordFile(path, machine, bypass=bypass)
                gaps = tuple(padding[:gap] for gap in _gaps(geometry))
                self._layers[layer] = _Layer(file, header.data_offset, geometry.stride, geometry.read_bytes, gaps)
        except BaseException:
            self.close()
            raise

    def reads(self, layer: int, expert: int, views: Sequence[memoryview]) -> list[Read]:
        found = self._layers.get(layer)
        if found is None:
            raise store_closed(layer, expert)
        ranges: list[memoryview] = []
        for view, gap in zip(views, found.gaps, strict=True):
            ranges.append(view)
            if gap:
                ranges.append(gap)
        offset = found.first + expert * found.stride
        return [Read(found.file, offset, ranges, f"expert {expert} of layer {layer}", layer)]

    def files(self, layer: int) -> Sequence[RecordFile]:
        return [self._layers[layer].file]

    def read_bytes(self, layer: int) -> int:
        return self._layers[layer].read_bytes

    def close(self) -> None:
        for layer in self._layers.values():
            layer.file.close()
        self._layers.clear()


@dataclass(frozen=True, slots=True)
class _Layer:
    """What a read needs to know, worked out once: it is made while the device waits."""

    file: RecordFile
    first: int  # offset of the first record
    stride: int
    read_bytes: int
    gaps: tuple[memoryview, ...]  # where the bytes after each part go


def _gaps(geometry: RecordGeometry) -> list[int]:
    """Bytes between each part and what follows it."""
    ends = [*(p.offset for p in geometry.parts[1:]), geometry.read_bytes]
    return [end - part.offset - part.nbytes for part, end in zip(geometry.parts, ends, strict=True)]


def _checked(header: LayerHeader, path: Path, layer: int, fingerprint: str, geometry: RecordGeometry) -> LayerHeader:
    if header.layer != layer:
        raise StoreInvalid(f"{path}: {_misplaced(header.layer)}")
    if header.fingerprint != fingerprint:
        raise StoreInvalid(
            f"{path}: packed from another checkpoint ({header.fingerprint}, this model is {fingerprint}); "
            "delete the folder and run `mlx-autotune pack` again"
        )
    if header.geometry != geometry:
        raise StoreInvalid(f"{path}: its records have another shape than the model's experts; delete it and pack again")
    return header


def _misplaced(layer: int) -> str:
    return f"it holds layer {layer}, so it was renamed or copied; delete it and run `mlx-autotune pack` again"


@dataclass(frozen=True, slots=True)
class Fault:
    """A record whose bytes are not what was packed; `expert` None: the file itself is at fault."""

    path: Path
    layer: int
    expert: int | None
    reason: str

    def __str__(self) -> str:
        record = "the file" if self.expert is None else f"expert {self.expert}"
        return f"{self.path}: {record} of layer {self.layer}: {self.reason}"


def verify(
    folder: Path, layers: Sequence[int], fingerprint: str, on_record: Callable[[int, int], None] = lambda done, of: None
) -> Iterator[Fault]:
    """Reads every record and compares its checksum.  Yields what is wrong; nothing when all is well."""
    for done, layer in enumerate(layers):
        path = layer_file(folder, layer)
        try:
            header = LayerHeader.read(path)
        except StoreInvalid as err:
            yield Fault(path, layer, None, str(err).removeprefix(f"{path}: "))
            continue
        if header.fingerprint != fingerprint:
            yield Fault(path, layer, None, "packed from another checkpoint; delete it and pack again")
            continue
        if header.layer != layer:
            yield Fault(path, layer, None, _misplaced(header.layer))
            continue
        yield from _verify_records(path, header)
        on_record(done + 1, len(layers))


def _verify_records(path: Path, header: LayerHeader) -> Iterator[Fault]:
    stride = header.geometry.stride
    with path.open("rb", buffering=0) as file:
        room = bytearray(stride)
        for expert, expected in enumerate(header.checksums):
            try:
                os.lseek(file.fileno(), header.data_offset + expert * stride, os.SEEK_SET)
                got = file.readinto(room)
            except OSError as err:
                yield Fault(path, header.layer, expert, f"{err.strerror}; check the disk, then pack again")
                continue
            if got != stride or zlib.crc32(room) != expected:
                yield Fault(
                    path, header.layer, expert, "its bytes changed since it was packed; delete the file and pack again"
                )
