"""What MLX says about the device it computes on."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from streaming_core.hardware._types import Backend
from streaming_core.units import MIB

__all__ = ["Device", "device_of", "is_out_of_memory", "nvidia_gpu", "parse_nvidia_smi", "read_device"]


# In the RuntimeErrors of MLX's allocators and of Metal's command buffers; std::bad_alloc arrives as a MemoryError where
# it crosses into Python, and as a RuntimeError where MLX carried it over from a thread of its own.
_NO_MEMORY = (
    "unable to allocate",
    "out of memory",
    "outofmemory",
    "insufficient memory",
    "maximum allowed buffer size",
    "bad_alloc",
)


@dataclass(frozen=True, slots=True)
class Device:
    backend: Backend = "cpu"
    gpu: str | None = None
    memory_bytes: int | None = None
    max_buffer_bytes: int | None = None


def read_device() -> Device:
    """The default device of MLX in this process.  Imports MLX, and on a GPU starts its driver."""
    import mlx.core as mx

    if mx.default_device().type != mx.gpu:
        return Device()
    backend: Backend = "metal" if mx.metal.is_available() else "cuda"
    device = device_of(backend, mx.device_info())
    if backend == "cuda" and (device.gpu is None or device.memory_bytes is None):
        name, memory_bytes = nvidia_gpu()
        device = Device(backend, device.gpu or name, device.memory_bytes or memory_bytes, device.max_buffer_bytes)
    return device


def is_out_of_memory(err: BaseException) -> bool:
    """Whether an error, of MLX or of Python, means that memory ran out."""
    if isinstance(err, MemoryError):
        return True
    return isinstance(err, RuntimeError) and any(words in str(err).lower() for words in _NO_MEMORY)


def device_of(backend: Backend, info: Mapping[str, str | int]) -> Device:
    """Every key is optional: they differ by backend and by version of MLX."""
    memory = ("max_recommended_working_set_size",) if backend == "metal" else ("total_memory", "memory_size")
    name = info.get("device_name")
    return Device(
        backend=backend,
        gpu=name if isinstance(name, str) and name else None,
        memory_bytes=next((size for key in memory if (size := _size(info.get(key))) is not None), None),
        max_buffer_bytes=_size(info.get("max_buffer_length")),
    )


def _size(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def nvidia_gpu() -> tuple[str | None, int | None]:
    """Name and memory of the first GPU as the driver's own tool tells them; (None, None) without it."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None, None
    query = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None, None
    return parse_nvidia_smi(done.stdout)


def parse_nvidia_smi(text: str) -> tuple[str | None, int | None]:
    """`NVIDIA H200, 143771` -> name and bytes."""
    name, _, mebibytes = (text.splitlines() or [""])[0].rpartition(",")
    if not name or not mebibytes.strip().isdigit():
        return None, None
    return name.strip(), int(mebibytes) * MIB
