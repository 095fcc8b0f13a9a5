"""Random banks and calls, and what is right for them in float64.

Legend: T tokens, K experts per token, R = T * K, S slots, N rows and C columns of a projection,
D model and F expert width.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from streaming_core.kernels.formats import Activation, ExpertFormat, ProjectionFormat

ALLOWED = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 1e-3}  # of a row's largest value
SWIGLU = Activation("swiglu")
CLIPPED = Activation("clipped_swiglu", 1.702, 0.75)


def projection(rows: int, columns: int, packing: str, dtype: str = "float32", bias: bool = False) -> ProjectionFormat:
    """`packing`: "4/64" (affine), "mxfp4", "mxfp8", "nvfp4", or the dtype of weights that are not quantized."""
    if "/" in packing:
        bits, group = (int(n) for n in packing.split("/"))
        return ProjectionFormat(rows, columns, bits, group, "affine", dtype, dtype, bias)
    if packing in ("mxfp4", "mxfp8", "nvfp4"):
        bits = 8 if packing == "mxfp8" else 4
        group = 16 if packing == "nvfp4" else 32
        return ProjectionFormat(rows, columns, bits, group, packing, dtype, "uint8", bias)
    return ProjectionFormat(rows, columns, 8 * getattr(mx, packing).size, 0, "none", dtype, packing, bias)


@dataclass(frozen=True)
class Bank:
    """One projection of S experts, as kernels read it and as numbers."""

    parts: dict[str, mx.array]
    weights: np.ndarray  # float64 [S, N, C]
    bias: np.ndarray  # float64 [S, N]


def bank(name: str, format: ProjectionFormat, slots: int, rng: np.random.Generator) -> Bank:
    shape = (slots, format.rows, format.columns)
    dtype = getattr(mx, format.scale_dtype)
    if format.mode == "none":
        plain = normal(rng, shape, 0.1).astype(dtype)
        parts = {f"{name}.weight": plain}
        weights = wide(plain)
    elif format.mode == "affine":
        words = (slots, format.rows, format.words)
        groups = (*shape[:2], format.columns // format.group)
        packed = mx.array(rng.integers(0, 1 << 32, words, np.uint32))
        scales = (normal(rng, groups, 1.0) / (1 << format.bits)).astype(dtype)
        biases = normal(rng, groups, 0.3).astype(dtype)
        parts = {f"{name}.weight": packed, f"{name}.scales": scales, f"{name}.biases": biases}
        ones, zeros = mx.ones(groups), mx.zeros(groups)
        codes = wide(mx.dequantize(packed, ones, zeros, format.group, format.bits))
        weights = codes * spread(scales, format.group) + spread(biases, format.group)
    else:
        even = (slots + slots % 2, *shape[1:])  # MLX quantizes an odd number of groups of 16 only where it may pad
        packed, scales = mx.quantize(normal(rng, even, 0.2), format.group, format.bits, mode=format.mode)
        weights = wide(mx.dequantize(packed, scales, None, format.group, format.bits, mode=format.mode))[:slots]
        parts = {f"{name}.weight": packed[:slots], f"{name}.scales": scales[:slots]}
    bias = np.zeros(shape[:2])
    if format.bias:
        parts[f"{name}.bias"] = normal(rng, shape[:2], 0.5).astype(getattr(mx, format.dtype))
        bias = wide(parts[f"{name}.bias"])
    return Bank(parts, weights, bias)


def normal(rng: np.random.Generator, shape: tuple[int, ...], scale: float) -> mx.array:
    return mx.array(rng.normal(0.0, scale, shape).astype(np.float32))


def wide(array: mx.array) -> np.ndarray:
    return np.array(array.astype(mx.float32)).astype(np.float64)


def spread(scales: mx.array, group: int) -> np.ndarray:
    """One number per column.  [..., G] -> [..., C]"""
    return np.repeat(wide(scales), group, axis=-1)


def draw_slots(rng: np.random.Generator, tokens: int, top_k: int, slots: int) -> np.ndarray:
    """[T, K]; one time in four every row has the same expert."""
    if rng.integers(4) == 0:
        return np.full((tokens, top_k), rng.integers(slots), np.uint32)
    return rng.integers(0, slots, (tokens, top_k)).astype(np.uint32)


def linear(bank: Bank, x: np.ndarray, slots: np.ndarray) -> np.ndarray:
    """x [R, C], slots [R] -> [R, N]"""
    return np.einsum("rnc,rc->rn", bank.weights[slots], x) + bank.bias[slots]


def activated(activation: Activation, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    if activation.kind == "swiglu":
        return gate / (1 + np.exp(-gate)) * up
    gate = np.minimum(gate, activation.limit)
    up = np.clip(up, -activation.limit, activation.limit)
    return gate / (1 + np.exp(-activation.alpha * gate)) * (up + 1)


def experts(rows: int, columns: int, packings: str, activation: Activation = SWIGLU, **more: object) -> ExpertFormat:
    """`packings`: of gate, up and down, one word each, or one word for all.  `rows` is F, `columns` D."""
    gate, up, down = packings.split() if " " in packings else [packings] * 3
    return ExpertFormat(
        projection(rows, columns, gate, **more),  # type: ignore[arg-type]
        projection(rows, columns, up, **more),  # type: ignore[arg-type]
        projection(columns, rows, down, **more),  # type: ignore[arg-type]
        activation,
    )


def worst(found: np.ndarray, right: np.ndarray) -> float:
    """The largest error as a share of the largest value of its row; NaN counts as infinite."""
    error = np.abs(found - right).max(axis=-1) / np.abs(right).max(axis=-1)
    return float(np.nan_to_num(error, nan=np.inf).max())
