"""Records read straight from the checkpoint's safetensors: no copy on disk, several reads a record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from streaming_core.hardware import Machine
from streaming_core.reading import Read, RecordFile
from streaming_core.store.places import LayerPlaces
from streaming_core.store.store import store_closed

__all__ = ["CheckpointStore"]


class CheckpointStore:
    """The expert tensors of a checkpoint, open for reading."""

    def __init__(self, layers: Mapping[int, LayerPlaces], machine: Machine, *, bypass: bool) -> None:
        """Opens the files that `layers` names.  Raises StoreInvalid or ReadError when one cannot be opened."""
        self._files: dict[Path, RecordFile] = {}
        self._layers = layers
        try:
            for path in dict.fromkeys(p for layer in layers.values() for part in layer.parts for p in part.paths):
                self._files[path] = RecordFile(path, machine, bypass=bypass)
        except BaseException:
            self.close()
            raise

    def reads(self, layer: int, expert: int, views: Sequence[memoryview]) -> list[Read]:
        if not self._files:
            raise store_closed(layer, expert)
        label = f"expert {expert} of layer {layer}"
        return [
            Read(self._files[part.paths[expert]], part.offsets[expert], [view], label, layer)
            for part, view in zip(self._layers[layer].parts, views, strict=True)
        ]

    def files(self, layer: int) -> Sequence[RecordFile]:
        paths = dict.fromkeys(path for part in self._layers[layer].parts for path in part.paths)
        return [self._files[path] for path in paths]

    def read_bytes(self, layer: int) -> int:
        return self._layers[layer].read_bytes

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()
