"""Affine quantisation in MLX's layout and number formats as bytes, in numpy: the same bytes on every machine.

A quantised matrix [..., O, I] is words [..., O, I * bits / 32] uint32 (element i of a word at bit i * bits), scales and
biases [..., O, I / group]; its value is scale * q + bias.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "quantize", "random_quantized", "to_dtype"]

Array = NDArray[Any]

# Keeps scales of one tensor apart, so that a reader that mixes up rows or experts changes the output.
SCALE_JITTER = 0.2
BIAS_JITTER = 0.5  # in steps of q: small beside the spread of q (4.6 steps at 4 bits), so the mean stays near zero


def quantize(matrix: Array, group: int, bits: int) -> tuple[Array, Array, Array]:
    """matrix [..., O, I] float32 -> words, scales, biases (float32).  Groups of zeros stay exactly zero."""
    grouped = matrix.reshape(*matrix.shape[:-1], -1, group)
    low, high = grouped.min(-1), grouped.max(-1)
    scales = ((high - low) / np.float32(2**bits - 1)).astype(np.float32)
    # Zero must stay zero where the weights are sparse, so the grid is shifted until it holds it.
    inverse = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales > 0)
    biases = (np.round(low * inverse) * scales).astype(np.float32)
    levels = np.round((grouped - biases[..., None]) * inverse[..., None])
    codes = np.clip(levels, 0, 2**bits - 1).astype(np.uint32).reshape(matrix.shape)
    return _pack(codes, bits), scales, biases


def _pack(codes: Array, bits: int) -> Array:
    per_word = 32 // bits
    lanes = codes.reshape(*codes.shape[:-1], -1, per_word)
    words = np.zeros(lanes.shape[:-1], dtype=np.uint32)
    for lane in range(per_word):
        words |= lanes[..., lane] << np.uint32(lane * bits)
    return words


def random_quantized(
    rng: np.random.Generator, rows: Array, columns: Array, group: int, bits: int
) -> tuple[Array, Array, Array]:
    """Words, scales and biases of a random matrix whose element (o, i) has mean 0 and deviation rows[o] * columns[i].

    Words are drawn directly, which is far quicker than quantising floats.  rows [O], columns [I]; the deviation is that
    of the group where it varies inside one.
    """
    words_shape = (len(rows), len(columns) * bits // 32)
    words = rng.integers(0, 2**32, size=words_shape, dtype=np.uint32)
    group_rms = np.sqrt(np.square(columns.reshape(-1, group)).mean(-1))
    spread = np.sqrt((4.0**bits - 1) / 12)  # of a uniform draw from 0 .. 2**bits - 1
    shape = (len(rows), len(group_rms))
    jitter = 1 + SCALE_JITTER * (2 * rng.random(shape, dtype=np.float32) - 1)
    scales = (np.outer(rows, group_rms / spread) * jitter).astype(np.float32)
    middle = (2**bits - 1) / 2 + BIAS_JITTER * (2 * rng.random(shape, dtype=np.float32) - 1)
    return words, scales, (-scales * middle).astype(np.float32)


def to_dtype(values: Array, dtype: str) -> Array:
    """float32 values as an array whose memory is `dtype`; bfloat16, unknown to numpy, comes as uint16."""
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
        rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))  # to nearest, ties to even
        brain: Array = (rounded >> np.uint32(16)).astype(np.uint16)
        return brain
    converted: Array = np.ascontiguousarray(values, dtype=dtype)
    return converted
