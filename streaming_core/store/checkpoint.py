"""Records read straight from the checkpoint's safetensors: no copy on disk, several reads a record."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from streaming_core.errors import StoreInvalid
from streaming_core.geometry import ITEM_BYTES, RecordGeometry
from streaming_core.hardware import Machine
from streaming_core.reading import Read, RecordFile
from streaming_core.store.store import store_closed

__all__ = ["CheckpointStore", "TensorPlace", "read_index"]

_DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "F16": "float16", "BF16": "bfloat16",
    "U32": "uint32", "I32": "int32", "F32": "float32", "U64": "uint64", "I64": "int64",
    "F8_E4M3": "uint8", "F8_E8M0": "uint8",
}  # fmt: skip
_LARGEST_HEADER = 100 << 20  # the safetensors format's own bound


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where one tensor lies."""

    path: Path
    dtype: str  # MLX's name
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file
    nbytes: int


def read_index(folder: Path) -> dict[str, TensorPlace]:
    """Every tensor of the files that mlx-lm would load (`model*.safetensors`), from their headers.

    Raises:
        StoreInvalid: no such files, a header that cannot be read, or a file shorter than its header says.
    """
    found: dict[str, TensorPlace] = {}
    paths = sorted(folder.glob("model*.safetensors"))
    if not paths:
        raise StoreInvalid(f"{folder}: no model*.safetensors; is the download complete?")
    for path in paths:
        try:
            found.update(_read_header(path))
        except OSError as err:
            raise StoreInvalid(f"{path}: {err.strerror}; check the file") from err
        except (ValueError, KeyError, TypeError, struct.error) as err:
            raise StoreInvalid(f"{path}: not a whole safetensors file ({err}); download it again") from err
    return found


def _read_header(path: Path) -> dict[str, TensorPlace]:
    size = path.stat().st_size
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > min(_LARGEST_HEADER, size):
            raise ValueError(f"its header would have {length} bytes")
        header = json.loads(file.read(length))
    found = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry is None:
            continue
        begin, end = entry["data_offsets"]
        if not 0 <= begin <= end or 8 + length + end > size:
            raise ValueError(f"tensor {name} ends past the end of the file")
        dtype = _DTYPES.get(entry["dtype"], entry["dtype"])
        found[name] = TensorPlace(path, dtype, tuple(entry["shape"]), 8 + length + begin, end - begin)
    return found


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
