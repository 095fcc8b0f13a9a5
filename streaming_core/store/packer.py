"""Writes packed layer files, in the memory of one tensor, so that a kill at any moment costs one layer at most."""

from __future__ import annotations

import fcntl
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import mlx.core as mx
import numpy as np

from streaming_core.errors import DiskFull, StoreInvalid
from streaming_core.geometry import RecordGeometry
from streaming_core.hardware import Machine
from streaming_core.store.header import LayerHeader, data_offset, layer_file
from streaming_core.units import format_size

__all__ = ["LayerSource", "pack"]

# Left free on the volume after packing: a full disk breaks more than this program.
_SPARE_BYTES = 1 << 30


class LayerSource(Protocol):
    """One layer's experts, as the model has them."""

    geometry: RecordGeometry
    experts: int

    def take(self, name: str) -> mx.array:
        """[E, ...]: the part of this name, evaluated; the source keeps no reference to it."""


def pack(
    folder: Path,
    fingerprint: str,
    layers: Mapping[int, LayerSource],
    machine: Machine,
    on_progress: Callable[[int, int], None] = lambda done, of: None,
    *,
    needed: bool = False,
) -> list[int]:
    """Writes the layer files that are not there yet.  Returns the layers it wrote.

    Files that are whole and of this checkpoint stay; anything else of their name is written anew.  `on_progress` gets
    bytes written and bytes to write.  `needed`: the checkpoint cannot be read as it is, so nobody is told to.

    Raises:
        DiskFull: the volume lacks room for what is missing; nothing was written.
        StoreInvalid: the folder cannot be written, or another process is packing into it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise StoreInvalid(f"{folder}: {err.strerror}; choose another --cache-dir") from err
    with _only_packer(folder):
        for stale in folder.glob(".*.tmp"):
            stale.unlink()
        missing = [n for n, source in layers.items() if not _is_whole(folder, n, fingerprint, source)]
        for path in (layer_file(folder, n) for n in missing):
            if path.is_dir():  # no file can take its place, and nobody else's folder is deleted here
                raise StoreInvalid(f"{path}: not a regular file; delete it and run `mlx-autotune pack` again")
        sizes = {n: _file_bytes(layers[n]) for n in missing}
        _check_room(folder, sum(sizes.values()), machine, needed)
        done = 0
        for layer in missing:

            def report(nbytes: int, before: int = done) -> None:
                on_progress(before + nbytes, sum(sizes.values()))

            _write_layer(folder, layer, fingerprint, layers[layer], report)
            done += sizes[layer]
        return missing


@contextmanager
def _only_packer(folder: Path) -> Iterator[None]:
    try:
        lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as err:
        raise StoreInvalid(f"{folder}: {err.strerror}; choose another --cache-dir") from err
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the system releases it when the process dies
        yield
    except BlockingIOError:
        raise StoreInvalid(f"{folder}: another process is packing here; wait for it to end") from None
    finally:
        os.close(lock)


def _file_bytes(source: LayerSource) -> int:
    return data_offset(source.geometry, source.experts) + source.experts * source.geometry.stride


def _is_whole(folder: Path, layer: int, fingerprint: str, source: LayerSource) -> bool:
    try:
        header = LayerHeader.read(layer_file(folder, layer))
    except StoreInvalid:
        return False
    found = (header.fingerprint, header.layer, header.geometry, header.experts)
    return found == (fingerprint, layer, source.geometry, source.experts)


def _check_room(folder: Path, nbytes: int, machine: Machine, needed: bool) -> None:
    free = machine.free_disk_bytes(folder)
    if nbytes and nbytes + _SPARE_BYTES > free:
        advice = (
            "or choose another --cache-dir" if needed else "choose another --cache-dir, or use store.layout=checkpoint"
        )
        raise DiskFull(
            f"{folder}: packing needs {format_size(nbytes)} and {format_size(_SPARE_BYTES)} to spare, "
            f"{format_size(free)} are free; make room, {advice}"
        )


def _write_layer(
    folder: Path, layer: int, fingerprint: str, source: LayerSource, on_bytes: Callable[[int], None]
) -> None:
    final = layer_file(folder, layer)
    temporary = folder / f".{final.name}.{os.getpid()}.tmp"
    try:
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            checksums = _write_records(fd, source, on_bytes)
            header = LayerHeader(fingerprint, layer, source.geometry, tuple(checksums))
            _pwrite(fd, header.to_bytes(), 0)
            os.ftruncate(fd, header.file_bytes)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, final)
        _sync_folder(folder)
    except OSError as err:
        temporary.unlink(missing_ok=True)
        error = DiskFull if err.errno == 28 else StoreInvalid
        raise error(f"{final}: {err.strerror}; make room or choose another --cache-dir") from err
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _write_records(fd: int, source: LayerSource, on_bytes: Callable[[int], None]) -> Sequence[int]:
    """Writes part after part, each spread over the records, and returns the records' checksums.

    A record's checksum runs over its bytes in order, and parts come in that order, so it can be carried along.
    """
    geometry, experts = source.geometry, source.experts
    base = data_offset(geometry, experts)
    checksums = [0] * experts
    ends = [*(part.offset for part in geometry.parts[1:]), geometry.stride]
    written = base
    for part, end in zip(geometry.parts, ends, strict=True):
        rows = _rows(source.take(part.name), experts, part.nbytes)
        padding = bytes(end - part.offset - part.nbytes)
        for expert in range(experts):
            view = memoryview(rows[expert])
            _pwrite(fd, view, base + expert * geometry.stride + part.offset)
            checksums[expert] = zlib.crc32(padding, zlib.crc32(view, checksums[expert]))
        written += experts * (end - part.offset)
        del rows, view
        mx.clear_cache()  # else MLX keeps what the next part cannot use
        on_bytes(written)
    return checksums


def _rows(array: mx.array, experts: int, nbytes: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """[E, nbytes] uint8 view of an array [E, ...]; copies only when it is not contiguous."""
    flat = mx.contiguous(array).reshape(experts, -1)
    if flat.dtype != mx.uint8:
        flat = flat.view(mx.uint8)
    mx.eval(flat)
    rows = np.array(flat, copy=False)
    if rows.shape != (experts, nbytes):
        raise StoreInvalid(f"a part has {rows.shape[1]} bytes per expert where its geometry says {nbytes}")
    return rows


def _pwrite(fd: int, data: bytes | memoryview, offset: int) -> None:
    view = memoryview(data)
    while view:
        done = os.pwrite(fd, view, offset)
        view = view[done:]
        offset += done


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
