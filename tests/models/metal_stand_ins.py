"""What muse_spark's Metal kernels compute, in MLX's own operations, so that the model runs where there is no Metal."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models import muse_spark


def stand_in_for_metal(patch: pytest.MonkeyPatch) -> None:
    for stand_in in (
        expert_routing, norm_add_norm, post_expert_norm_combine, pre_norm, qk_norm, qk_norm_rope, rms_norm_sigmoid_gate,
    ):  # fmt: skip
        patch.setattr(muse_spark, stand_in.__name__, stand_in)


def expert_routing(
    logits: mx.array, expert_bias: mx.array, *, top_k: int, multiplier: float, score_eps: float, route_scale: float
) -> tuple[mx.array, mx.array]:
    scores = mx.sigmoid(logits * multiplier)
    experts = mx.argsort(-(scores + expert_bias), axis=-1)[..., :top_k]
    weights = mx.take_along_axis(scores, experts, axis=-1)
    return experts, weights / (weights.sum(axis=-1, keepdims=True) + score_eps) * route_scale


def norm_add_norm(
    branch: mx.array, stream: mx.array, *, alpha: mx.array, beta: mx.array, post_weight: mx.array | None,
    post_eps: float, next_norm: nn.Module | None,
) -> tuple[mx.array, mx.array | None]:  # fmt: skip
    scaled = branch if post_weight is None else branch * post_weight
    out = alpha * stream + beta * mx.fast.rms_norm(scaled, None, post_eps)
    return out, None if next_norm is None else next_norm(out)


def post_expert_norm_combine(experts: mx.array, weights: mx.array, *, norm_weight: mx.array, eps: float) -> mx.array:
    return (mx.fast.rms_norm(experts * norm_weight, None, eps) * weights[..., None]).sum(axis=-2)


def pre_norm(stream: mx.array, norm: nn.Module, *, dtype: mx.Dtype) -> mx.array:
    return norm(stream).astype(dtype)  # type: ignore[no-any-return]


def qk_norm(qkvg: mx.array, *, n_heads: int, n_kv_heads: int, head_dim: int, eps: float, query_scale: float) -> Any:
    heads = qkvg[..., : (n_heads + n_kv_heads) * head_dim].reshape(*qkvg.shape[:-1], n_heads + n_kv_heads, head_dim)
    normed = mx.fast.rms_norm(heads, None, eps)
    return normed[..., :n_heads, :] * query_scale, normed[..., n_heads:, :]


def qk_norm_rope(qkvg: mx.array, *, rope_base: float, offset: Any, **options: Any) -> Any:
    def rotate(heads: mx.array) -> mx.array:
        rows = heads.swapaxes(1, 2)
        turned = mx.fast.rope(rows, heads.shape[-1], traditional=True, base=rope_base, scale=1.0, offset=offset)
        return turned.swapaxes(1, 2)

    return [rotate(heads) for heads in qk_norm(qkvg, **options)]


def rms_norm_sigmoid_gate(x: mx.array, gate: mx.array, *, eps: float) -> mx.array:
    rows = mx.fast.rms_norm(x, None, eps).swapaxes(1, 2)
    return rows.reshape(gate.shape) * mx.sigmoid(gate)
