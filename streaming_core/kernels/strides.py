"""Whether a kernel reads an array where it lies.  MLX would copy one that is not contiguous before every launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

__all__ = ["contiguous", "row_contiguous"]

_SOURCE = "if (threadIdx.x < array_ndim) strides[threadIdx.x] = array_strides[threadIdx.x];"


def contiguous(array: mx.array) -> bool:
    """Evaluates it.  On CUDA a kernel tells: a look at the address would move the array to memory that migrates."""
    mx.eval(array)
    if mx.cuda.is_available():
        return row_contiguous(array.shape, _strides_on_device(array))
    view: Any = array.view(mx.uint16) if array.dtype == mx.bfloat16 else array
    return bool(memoryview(view).c_contiguous)


def row_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Strides in elements; those of axes of one element do not matter."""
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _strides_on_device(array: mx.array) -> list[int]:
    dtype = str(array.dtype).rpartition(".")[2]
    kernel: Any = mx.fast.cuda_kernel(f"strides_{dtype}", ["array"], ["strides"], _SOURCE, ensure_row_contiguous=False)
    (found,) = kernel(
        inputs=[array], grid=(array.ndim, 1, 1), threadgroup=(array.ndim, 1, 1), output_shapes=[(array.ndim,)],
        output_dtypes=[mx.int64],
    )  # fmt: skip
    return [int(stride) for stride in np.array(found)]
