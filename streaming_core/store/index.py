"""What tensors a checkpoint has and where they lie, from the headers of its files, checked against the files."""

from __future__ import annotations

import json
import math
import os
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streaming_core.errors import StoreInvalid
from streaming_core.geometry import ITEM_BYTES
from streaming_core.hardware import open_regular
from streaming_core.lfs import check_not_pointer

__all__ = ["TensorPlace", "read_index"]

_DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "F16": "float16", "BF16": "bfloat16",
    "U32": "uint32", "I32": "int32", "F32": "float32", "U64": "uint64", "I64": "int64", "F64": "float64",
    "F8_E4M3": "uint8", "F8_E8M0": "uint8",
}  # fmt: skip
_LARGEST_HEADER = 100 << 20  # the safetensors format's own bound
_SHARD = re.compile(r"(model.*)-(\d+)-of-(\d+)\.safetensors")


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
        StoreInvalid: no such files, a shard missing, a header that cannot be right, a file shorter than its header
            says, a git-lfs pointer in place of a file, or a tensor in two files.
    """
    found: dict[str, TensorPlace] = {}
    paths = sorted(folder.glob("model*.safetensors"))
    if not paths:
        raise StoreInvalid(f"{folder}: no model*.safetensors; is the download complete?")
    _check_shards(folder, paths)
    for path in paths:
        try:
            header = _read_header(path)
        except OSError as err:
            raise StoreInvalid(f"{path}: {err.strerror}; check the file") from err
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as err:
            raise StoreInvalid(f"{path}: not a whole safetensors file ({err}); download it again") from err
        if twice := sorted(found.keys() & header.keys()):
            raise StoreInvalid(_twice(folder, twice[0], found[twice[0]].path, path))
        found.update(header)
    return found


def _check_shards(folder: Path, paths: Sequence[Path]) -> None:
    """Raises StoreInvalid when files are numbered `-00001-of-00003` and one of the three is not there."""
    matches = filter(None, (_SHARD.fullmatch(path.name) for path in paths))
    for stem, digits, count in dict.fromkeys((match[1], len(match[2]), match[3]) for match in matches):
        wanted = [f"{stem}-{n:0{digits}}-of-{count}.safetensors" for n in range(1, min(int(count), 10_000) + 1)]
        absent = [name for name in wanted if not (folder / name).is_file()]
        if absent:
            raise StoreInvalid(
                f"{folder}: {absent[0]} is missing ({len(absent)} of {int(count)} files); download again"
            )


def _twice(folder: Path, name: str, first: Path, second: Path) -> str:
    """mlx-lm would take whichever file it happens to read last."""
    named = _index_says(folder, name)
    stranger = {first.name: second, second.name: first}.get(named or "")
    remedy = f"remove {stranger.name}" if stranger else "remove the file that does not belong to this model"
    return f"{folder}: {name} is in {first.name} and in {second.name}; {remedy}"


def _index_says(folder: Path, name: str) -> str | None:
    try:
        index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
        return str(index["weight_map"][name])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _read_header(path: Path) -> dict[str, TensorPlace]:
    with os.fdopen(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(64)
        check_not_pointer(path, start)
        if len(start) < 8:
            raise ValueError(f"it has {len(start)} bytes")
        (length,) = struct.unpack_from("<Q", start)
        if length > min(_LARGEST_HEADER, size - 8):
            raise ValueError(f"its header would have {length} bytes, the file has {size}")
        file.seek(8)
        header = json.loads(file.read(length), object_pairs_hook=_unique)
    begins = 8 + length
    found = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry is None:
            continue
        found[name] = _place(path, name, entry, begins)
    last = max(found, key=lambda name: found[name].offset + found[name].nbytes, default=None)
    if last is not None and (missing := found[last].offset + found[last].nbytes - size) > 0:
        raise ValueError(f"tensor {last} ends past the end of the file, {missing} bytes are missing")
    _check_overlaps(found)
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"its header names {next(n for n in names if names.count(n) > 1)} twice")
    return found


def _place(path: Path, name: str, entry: Mapping[str, Any], begins: int) -> TensorPlace:
    begin, end = entry["data_offsets"]
    shape = tuple(entry["shape"])
    if not all(isinstance(n, int) for n in (begin, end, *shape)) or not 0 <= begin <= end or any(n < 0 for n in shape):
        raise ValueError(f"tensor {name} has offsets {begin} to {end} and shape {list(shape)}")
    dtype = _DTYPES.get(entry["dtype"], entry["dtype"])
    needed = ITEM_BYTES[dtype] * math.prod(shape) if dtype in ITEM_BYTES else end - begin
    if end - begin != needed:
        raise ValueError(f"tensor {name} has {end - begin} bytes where its shape needs {needed}")
    return TensorPlace(path, dtype, shape, begins + begin, end - begin)


def _check_overlaps(places: Mapping[str, TensorPlace]) -> None:
    last, end = "", 0
    for name, place in sorted(places.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        if place.offset < end and place.nbytes:
            raise ValueError(f"tensors {last} and {name} overlap")
        last, end = name, max(end, place.offset + place.nbytes)
