"""Lets a model run on the CPU as it would on CUDA: host memory in the place of the device's."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable, Sequence

import mlx.core as mx
import numpy as np
import pytest

from streaming_core import assemble, banks
from streaming_core.geometry import RecordGeometry
from streaming_core.hardware import FakeMachine, Machine
from streaming_core.residency.link import UnifiedLink


def with_backend(machine: Machine, backend: str) -> FakeMachine:
    """Arrays stay on the CPU; what the program decides is what it would there."""
    hardware = dataclasses.replace(machine.hardware(), backend=backend)  # type: ignore[arg-type]
    return FakeMachine(hardware_reading=hardware)


def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Host and device have no kernels to meet by."""
    monkeypatch.setattr(assemble, "CudaLink", lambda pin: UnifiedLink())
    monkeypatch.setattr(banks, "FillKernel", fill_by_the_host)


def fill_by_the_host(
    geometry: RecordGeometry, offsets: Sequence[int], address: int
) -> Callable[[dict[str, mx.array], int], mx.array]:
    """What CUDA's kernel does."""

    def fill(arrays: dict[str, mx.array], records: int) -> mx.array:
        rows = (ctypes.c_uint32 * records).from_address(address)
        for part, at in zip(geometry.parts, offsets, strict=True):
            to = np.array(arrays[part.name].reshape(-1).view(mx.uint8), copy=False).ctypes.data
            for number, row in enumerate(rows):
                ctypes.memmove(to + row * part.nbytes, address + at + number * part.nbytes, part.nbytes)
        return mx.array([1])

    return fill
