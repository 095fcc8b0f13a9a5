"""CUDA: records go from pinned memory into the rows of a bank, all parts of several records in one launch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from streaming_core.geometry import RecordGeometry

__all__ = ["FillKernel", "fill_source"]

_THREADS = 256
_EACH = 4  # loads of a thread in flight: the bus is far away
_HEADER = """
template <typename V>
__device__ void copy_part(const void* to_bank, size_t row, const char* from, size_t nbytes) {
    const size_t count = nbytes / sizeof(V);
    const size_t first = static_cast<size_t>(blockIdx.x) * blockDim.x * EACH + threadIdx.x;
    V* to = reinterpret_cast<V*>(const_cast<char*>(static_cast<const char*>(to_bank)) + row * nbytes);
    const V* source = reinterpret_cast<const V*>(from);
    V held[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        if (first + i * blockDim.x < count) held[i] = source[first + i * blockDim.x];
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        if (first + i * blockDim.x < count) to[first + i * blockDim.x] = held[i];
    }
}
""".replace("EACH", str(_EACH))
_VECTORS = ((16, "uint4"), (8, "uint2"), (4, "uint32_t"), (2, "uint16_t"), (1, "uint8_t"))


def fill_source(geometry: RecordGeometry, offsets: Sequence[int]) -> str:
    """The kernel's body.  Grid: x over a part's bytes, y over records, z over parts; `offsets` are where each part's
    records begin in the stage, whose first words name the rows."""
    cases = []
    for number, (part, offset) in enumerate(zip(geometry.parts, offsets, strict=True)):
        vector = next(name for size, name in _VECTORS if part.nbytes % size == 0)
        cases.append(
            f"        case {number}: copy_part<{vector}>(bank{number}, row, "
            f"stage_at + {offset}ull + blockIdx.y * {part.nbytes}ull, {part.nbytes}ull); break;"
        )
    lines = "\n".join(cases)
    return f"""
    __shared__ uint32_t named;
    const char* stage_at = reinterpret_cast<const char*>(stage[0]);
    if (threadIdx.x == 0) named = reinterpret_cast<const volatile uint32_t*>(stage_at)[blockIdx.y];
    __syncthreads();
    const size_t row = named;
    switch (blockIdx.z) {{
{lines}
    }}
    if (blockIdx.x + blockIdx.y + blockIdx.z + threadIdx.x == 0) done[0] = 1;
"""


class FillKernel:
    """Writes into the arrays it is given: whoever owns them has no other copy, and evaluates what it returns before
    anything that reads them is launched in the same graph."""

    def __init__(self, geometry: RecordGeometry, offsets: Sequence[int], address: int) -> None:
        """`address`: where the stage is."""
        source = fill_source(geometry, offsets)
        name = f"fill_{hashlib.sha256(source.encode()).hexdigest()[:12]}"
        banks = [f"bank{number}" for number in range(len(geometry.parts))]
        self._stage = mx.array([address], dtype=mx.uint64)
        mx.eval(self._stage)
        self._names = [part.name for part in geometry.parts]
        self._kernel: Any = mx.fast.cuda_kernel(name, [*banks, "stage"], ["done"], source, _HEADER)
        widest = max(part.nbytes // _vector_bytes(part.nbytes) for part in geometry.parts)
        self._blocks = -(-widest // (_THREADS * _EACH))

    def __call__(self, arrays: dict[str, mx.array], records: int) -> mx.array:
        """Returns an array that is there once the rows are."""
        (done,) = self._kernel(
            inputs=[*(arrays[name] for name in self._names), self._stage],
            grid=(self._blocks * _THREADS, records, len(self._names)),
            threadgroup=(_THREADS, 1, 1),
            output_shapes=[(1,)],
            output_dtypes=[mx.uint32],
        )
        return done  # type: ignore[no-any-return]


def _vector_bytes(nbytes: int) -> int:
    return next(size for size, _ in _VECTORS if nbytes % size == 0)
