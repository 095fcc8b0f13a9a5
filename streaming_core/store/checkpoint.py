"""Records read straight from the checkpoint's safetensors: no copy on disk, several reads a record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from streaming_core.errors import StoreInvalid
from streaming_core.geometry import ITEM_BYTES, RecordGeometry
from streaming_core.hardware import Machine
from streaming_core.reading import Read, RecordFile
from streaming_core.store.index import TensorPlace, read_index
from streaming_core.store.store import store_closed

__all__ = ["CheckpointStore"]


class CheckpointStore:
    """The expert tensors of a checkpoint, open for reading."""

    def __init__(
        self,
        folder: Path,
        layers: Mapping[int, tuple[str, int, RecordGeometry]],
        machine: Machine,
        *,
        bypass: bool,
    ) -> None:
        """Opens what `layers` names: layer -> (path of its switch module, experts, geometry).

        Raises:
            StoreInvalid: a part is not in the files as such, because mlx-lm builds it while loading.
        """
        index = read_index(folder)
        self._files: dict[Path, RecordFile] = {}
        self._places: dict[int, list[TensorPlace]] = {}
        self._geometry = {layer: geometry for layer, (_, _, geometry) in layers.items()}
        for layer, (prefix, experts, geometry) in layers.items():
            self._places[layer] = [
                _place(index, f"{prefix}.{part.name}", part.dtype, (experts, *part.shape), folder)
                for part in geometry.parts
            ]
        try:
            for place in (p for places in self._places.values() for p in places):
                if place.path not in self._files:
                    self._files[place.path] = RecordFile(place.path, machine, bypass=bypass)
        except BaseException:
            self.close()
            raise

    def reads(self, layer: int, expert: int, views: Sequence[memoryview]) -> list[Read]:
        if not self._files:
            raise store_closed(layer, expert)
        label = f"expert {expert} of layer {layer}"
        return [
            Read(self._files[place.path], place.offset + expert * len(view), [view], label, layer)
            for place, view in zip(self._places[layer], views, strict=True)
        ]

    def files(self, layer: int) -> Sequence[RecordFile]:
        return [self._files[path] for path in dict.fromkeys(p.path for p in self._places[layer])]

    def read_bytes(self, layer: int) -> int:
        return self._geometry[layer].payload_bytes

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


def _place(
    index: Mapping[str, TensorPlace], name: str, dtype: str, shape: tuple[int, ...], folder: Path
) -> TensorPlace:
    place = index.get(name)
    if place is None:
        raise StoreInvalid(f"{folder}: no tensor {name}, mlx-lm builds it while loading; use store.layout=packed")
    if (place.dtype, place.shape) != (dtype, shape):
        raise StoreInvalid(
            f"{folder}: {name} is {place.dtype} {place.shape} on disk and {dtype} {shape} in the model, "
            "mlx-lm converts it while loading; use store.layout=packed"
        )
    expected = ITEM_BYTES[dtype]
    for n in shape:
        expected *= n
    if place.nbytes != expected:
        raise StoreInvalid(f"{place.path}: {name} has {place.nbytes} bytes, its shape needs {expected}: download it")
    return place
