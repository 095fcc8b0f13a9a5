"""Random experts of a format, and calls of them: for self-tests and benchmarks.

Legend: T tokens, K experts per token, S slots, D model width, N rows of a projection, C columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchGLU, SwitchLinear

from streaming_core.kernels.formats import ExpertFormat, ProjectionFormat
from streaming_core.kernels.reference import ActivationOf

__all__ = ["random_parts", "random_rows", "random_slots", "switch_of"]

_ROWS = 256  # quantized at once: a whole matrix in float32 could exceed what a memory plan leaves


def random_parts(experts: ExpertFormat, slots: int, seed: int, different: int | None = None) -> dict[str, mx.array]:
    """Evaluated parts [S, ...] whose outputs are about as large as their inputs.

    With `different`, only so many experts are random and the others are copies in memory of their own: large banks are
    then made at once.
    """
    parts: dict[str, mx.array] = {}
    named = (("gate_proj", experts.gate), ("up_proj", experts.up), ("down_proj", experts.down))
    for number, (name, form) in enumerate(named):
        made = [_expert(form, seed * 3_000_017 + 1009 * number + n) for n in range(min(slots, different or slots))]
        for tensor in made[0]:
            one = mx.stack([made[n % len(made)][tensor] for n in range(slots)])
            mx.eval(one)
            parts[f"{name}.{tensor}"] = one
    return parts


def _expert(form: ProjectionFormat, seed: int) -> dict[str, mx.array]:
    """One matrix [N, C] and what belongs to it."""
    keys = mx.random.split(mx.random.key(seed), form.rows // _ROWS + 2)
    pieces = [_matrix(form, min(_ROWS, form.rows - at), keys[1 + at // _ROWS]) for at in range(0, form.rows, _ROWS)]
    tensors = {name: mx.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    if form.bias:
        tensors["bias"] = (0.1 * mx.random.normal((form.rows,), key=keys[0])).astype(getattr(mx, form.dtype))
    mx.eval(tensors)
    return tensors


def _matrix(form: ProjectionFormat, rows: int, key: mx.array) -> dict[str, mx.array]:
    weight = mx.random.normal((rows, form.columns), key=key) / form.columns**0.5
    if form.mode == "none":
        tensors = {"weight": weight.astype(getattr(mx, form.scale_dtype))}
    else:
        weight = weight.astype(getattr(mx, form.scale_dtype if form.mode == "affine" else form.dtype))
        packed = mx.quantize(weight, form.group, form.bits, mode=form.mode)
        tensors = dict(zip(("weight", "scales", "biases"), packed, strict=False))
    mx.eval(tensors)
    return tensors


def random_rows(experts: ExpertFormat, tokens: int, seed: int) -> mx.array:
    """[T, D]"""
    rows = mx.random.normal((tokens, experts.gate.columns), key=mx.random.key(seed))
    return rows.astype(getattr(mx, experts.gate.dtype))


def random_slots(tokens: int, top_k: int, slots: int, seed: int) -> mx.array:
    """[T, K] uint32; the slots of a token differ, as long as there are enough."""
    order = mx.argsort(mx.random.uniform(shape=(tokens, max(slots, top_k)), key=mx.random.key(seed)), axis=-1)
    return (order[:, :top_k] % slots).astype(mx.uint32)


def switch_of(parts: Mapping[str, mx.array], experts: ExpertFormat, activation: ActivationOf) -> SwitchGLU:
    """mlx-lm's own module over these parts [S, ...]: what runs where no kernel does."""
    switch = SwitchGLU(1, 1, 1, activation=activation)
    named = (("gate_proj", experts.gate), ("up_proj", experts.up), ("down_proj", experts.down))
    for name, form in named:
        linear: Any = SwitchLinear(1, 1, 1, bias=False)
        if form.mode != "none":
            linear = QuantizedSwitchLinear(128, 1, 1, False, form.group, form.bits, form.mode)
        for part, array in parts.items():
            projection, _, tensor = part.partition(".")
            if projection == name:
                linear[tensor] = array
        switch[name] = linear
    return switch
