"""How much memory a run may use when its user named no budget."""

from __future__ import annotations

from streaming_core.hardware._types import Hardware, MemoryState
from streaming_core.units import GIB, MIB

__all__ = ["default_budget_bytes"]

# Public reports of whole-machine freezes and panics come from runs that took a fixed part of a small machine's
# memory (0.9 of 24 GB, the full GPU working set of 16 GB) and left the system no pages to reclaim.  Runs that kept
# max(8 GB, 35 %) free on machines up to 32 GB had none.  Bigger machines hold the same system in more memory, so a
# smaller part will do there.  A machine of 8 GB would be left nothing by that rule, yet people do stream models on
# them: never keep back more than half.
_LEAST_RESERVE = 8 * GIB
_SMALL_MACHINE = 32 * GIB
_SMALL_PART = 0.35
_LARGE_PART = 0.15
_MOST_PART = 0.5

# What is available now can be taken by others while a run starts.
_MARGIN_PART = 0.05
_MOST_MARGIN = 2 * GIB

# A CUDA device has memory of its own; the driver, the context and the kernels' code take about 1 GiB of it.
_DEVICE_PART = 0.05
_LEAST_DEVICE_RESERVE = 1 * GIB


def default_budget_bytes(hardware: Hardware, memory: MemoryState) -> int:
    """Bytes a run may use on this machine in this state, rounded down to whole MiB; 0 when nothing is left."""
    if hardware.backend == "cuda" and hardware.gpu_memory_bytes is not None:
        device = hardware.gpu_memory_bytes
        return _whole_mib(device - max(_LEAST_DEVICE_RESERVE, _DEVICE_PART * device))
    total = hardware.memory_bytes
    limits = [total - _reserve(total)]
    if memory.available_bytes is not None:
        limits.append(memory.available_bytes - min(_MOST_MARGIN, _MARGIN_PART * total))
    if hardware.backend == "metal" and hardware.gpu_memory_bytes is not None:
        # Buffers past this limit cannot be kept resident, and what Metal allows is not a fixed part of memory.
        limits.append(hardware.gpu_memory_bytes)
    return _whole_mib(min(limits))


def _reserve(total: int) -> float:
    part = _SMALL_PART if total <= _SMALL_MACHINE else _LARGE_PART
    return min(max(_LEAST_RESERVE, part * total), _MOST_PART * total)


def _whole_mib(nbytes: float) -> int:
    return max(0, int(nbytes) // MIB * MIB)
