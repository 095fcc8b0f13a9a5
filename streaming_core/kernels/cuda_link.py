"""CUDA: host and device exchange small numbers through pinned memory.

An array that the host looks at is first moved, whole, to memory that migrates; measured 200 us each time, for ten
numbers.  A kernel that writes them into pinned memory adds 2 us (docs/log.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from streaming_core.hardware import PinnedMemory

__all__ = ["CudaLink"]

_WORDS = 1 << 18  # of the mailbox: several times the largest call
_THREADS = 256

_SEND = """
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < values_shape[0]) {
        reinterpret_cast<volatile uint32_t*>(mailbox[0])[where[0] + i] = static_cast<uint32_t>(values[i]);
    }
    if (i == 0) done[0] = 1;
"""
_LOOK_UP = """
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < experts_shape[0]) rows[i] = reinterpret_cast<const volatile uint32_t*>(table[0])[experts[i]];
"""


@dataclass(frozen=True, slots=True)
class _Letter:
    arrays: Sequence[mx.array]
    words: np.ndarray[Any, Any]

    def host(self) -> np.ndarray[Any, Any]:
        return self.words


@dataclass(frozen=True, slots=True)
class _Moved:
    """Too large for the mailbox."""

    arrays: Sequence[mx.array]

    def host(self) -> np.ndarray[Any, Any]:
        return np.array(self.arrays[0]).reshape(-1)


class CudaLink:
    def __init__(self, pin: Callable[[int], PinnedMemory]) -> None:
        self._pin = pin
        self._memory = pin(4 * _WORDS)
        self._words = np.frombuffer(self._memory.view, np.uint32)
        self._mailbox = _constant(self._memory.address)
        self._next = 0
        self._where: dict[int, mx.array] = {}  # offsets come again and again, each is uploaded once
        self._kernels: dict[str, Any] = {}

    def send(self, array: mx.array) -> _Letter | _Moved:
        flat = array.reshape(-1)
        if flat.size > _WORDS // 4:
            return _Moved((flat,))
        is_float = flat.dtype == mx.float32
        values = flat.view(mx.uint32) if is_float else flat
        first = self._room(flat.size)
        (done,) = self._kernel(str(values.dtype).rpartition(".")[2])(
            inputs=[values, self._mailbox, self._where[first]], **_launch(flat.size), output_shapes=[(1,)],
            output_dtypes=[mx.uint32],
        )  # fmt: skip
        words = self._words[first : first + flat.size]
        return _Letter((done,), words.view(np.float32) if is_float else words)

    def table(self, experts: int) -> _PinnedTable:
        return _PinnedTable(self._pin(4 * experts), experts)

    def _room(self, count: int) -> int:
        step = 1 << max(6, (count - 1).bit_length())  # few different offsets
        first = (self._next + step - 1) // step * step
        if first + count > _WORDS:
            first = 0
        self._next = first + step
        if first not in self._where:
            self._where[first] = mx.array([first], dtype=mx.uint32)
            mx.eval(self._where[first])
        return first

    def _kernel(self, dtype: str) -> Any:
        if dtype not in self._kernels:
            self._kernels[dtype] = mx.fast.cuda_kernel(f"send_{dtype}", ["values", "mailbox", "where"], ["done"], _SEND)
        return self._kernels[dtype]


class _PinnedTable:
    def __init__(self, memory: PinnedMemory, experts: int) -> None:
        self._memory = memory
        self._address = _constant(memory.address)
        self._kernels: dict[str, Any] = {}
        self.host = np.frombuffer(memory.view, np.uint32)[:experts]

    def rows(self, indices: mx.array) -> mx.array:
        flat = indices.reshape(-1)
        dtype = str(flat.dtype).rpartition(".")[2]
        if dtype not in self._kernels:
            self._kernels[dtype] = mx.fast.cuda_kernel(f"look_up_{dtype}", ["experts", "table"], ["rows"], _LOOK_UP)
        (rows,) = self._kernels[dtype](
            inputs=[flat, self._address], **_launch(flat.size), output_shapes=[flat.shape], output_dtypes=[mx.uint32]
        )
        return rows.reshape(indices.shape)  # type: ignore[no-any-return]


def _constant(value: int) -> mx.array:
    array = mx.array([value], dtype=mx.uint64)
    mx.eval(array)
    return array


def _launch(threads: int) -> dict[str, tuple[int, int, int]]:
    block = min(_THREADS, max(1, threads))
    return {"grid": (-(-threads // block) * block, 1, 1), "threadgroup": (block, 1, 1)}
