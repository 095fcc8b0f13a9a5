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
        self._headers: dict[int, LayerHeader] = {}
        self._files: dict[int, RecordFile] = {}
        longest = max((_padding(g) for g in layers.values()), default=0)
        self._padding = memoryview(bytearray(longest))
        try:
            for layer, geometry in layers.items():
                path = layer_file(folder, layer)
                self._headers[layer] = _checked(LayerHeader.read(path), path, fingerprint, geometry)
                self._files[layer] = RecordFile(path, machine, bypass=bypass)
        except BaseException:
            self.close()
            raise

    def reads(self, layer: int, expert: int, views: Sequence[memoryview]) -> list[Read]:
        if not self._files:
            raise store_closed(layer, expert)
        header = self._headers[layer]
        ranges: list[memoryview] = []
        for view, part, following in zip(views, header.geometry.parts, (*header.geometry.parts[1:], None), strict=True):
            ranges.append(view)
            end = following.offset if following else header.geometry.read_bytes
            if gap := end - part.offset - part.nbytes:
                # The bytes between two parts have to go somewhere; many readers may write here, nobody reads it.
                ranges.append(self._padding[:gap])
        offset = header.data_offset + expert * header.geometry.stride
        return [Read(self._files[layer], offset, ranges, f"expert {expert} of layer {layer}", layer)]

    def files(self, layer: int) -> Sequence[RecordFile]:
        return [self._files[layer]]

    def read_bytes(self, layer: int) -> int:
        return self._headers[layer].geometry.read_bytes

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


def _padding(geometry: RecordGeometry) -> int:
    ends = [*(p.offset for p in geometry.parts[1:]), geometry.read_bytes]
    return max(end - part.offset - part.nbytes for part, end in zip(geometry.parts, ends, strict=True))


def _checked(header: LayerHeader, path: Path, fingerprint: str, geometry: RecordGeometry) -> LayerHeader:
    if header.fingerprint != fingerprint:
        raise StoreInvalid(
            f"{path}: packed from another checkpoint ({header.fingerprint}, this model is {fingerprint}); "
            "delete the folder and run `mlx-autotune pack` again"
        )
    if header.geometry != geometry:
        raise StoreInvalid(f"{path}: its records have another shape than the model's experts; delete it and pack again")
    return header


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
