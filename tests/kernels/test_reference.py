"""The reference computes what mlx-lm's module does, and what float64 says."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from kernel_cases import MODES, TanhOfGate, call, make_switch
from mlx_lm.models.activations import SwigluOAI
from mlx_lm.models.switch_layers import SwitchGLU, SwitchMLP

from streaming_core.kernels.formats import Activation, ExpertFormat, Unknown, format_of, parts_of
from streaming_core.kernels.reference import activation_of, expert_mlp, slice_switch, unique_and_local

MIXED = [
    (("affine", 3, 64), ("affine", 3, 64), ("affine", 6, 32)),
    (("mxfp4", 4, 32), ("affine", 8, 128), ("none", 0, 0)),
    (("none", 0, 0), ("nvfp4", 4, 16), ("mxfp8", 8, 32)),
]


def known(switch: SwitchGLU) -> ExpertFormat:
    found = format_of(switch)
    assert isinstance(found, ExpertFormat)
    return found


def agree(switch: SwitchGLU, x: mx.array, indices: mx.array) -> None:
    found = expert_mlp(x, indices, parts_of(switch), known(switch), switch.activation)
    assert found.dtype == x.dtype
    assert mx.array_equal(found, switch(x, indices))


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_mode_equals_mlx_lms_module_bit_for_bit(mode: tuple[str, int, int], dtype: str) -> None:
    if mode[0] == "none" and dtype != "float32":
        pytest.skip("MLX on CPU has no gather_mm for 16 bits")
    switch = make_switch(mode, dtype=dtype)
    calls = [(1, 1), (1, 4), (7, 3), (33, 4)]  # the last one is sorted there
    for tokens, top_k in calls if dtype == "float32" else calls[1:2]:
        agree(switch, *call(tokens, top_k, dtype=dtype))


@pytest.mark.parametrize("modes", MIXED, ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_projections_of_different_precision_equal_too(modes: tuple[tuple[str, int, int], ...], bias: bool) -> None:
    agree(make_switch(*modes, bias=bias), *call(6, 3))


@pytest.mark.parametrize("activation", [SwigluOAI(), SwigluOAI(alpha=1.0, limit=0.5), TanhOfGate()])
@pytest.mark.parametrize("mode", [("affine", 4, 64), ("mxfp4", 4, 32)], ids=str)
def test_any_activation_object_is_called_as_mlx_lm_calls_it(mode: tuple[str, int, int], activation: object) -> None:
    agree(make_switch(mode, bias=True, activation=activation), *call(5, 2))


def dense(switch: SwitchGLU, name: str) -> np.ndarray[Any, Any]:
    """[E, N, C] in float64, through mx.dequantize."""
    linear = switch[name]
    if "scales" not in linear:
        return np.array(linear.weight.astype(mx.float32), dtype=np.float64)
    full = mx.dequantize(
        linear.weight, linear.scales, linear.get("biases"), linear.group_size, linear.bits, mode=linear.mode
    )
    return np.array(full.astype(mx.float32), dtype=np.float64)


def in_float64(switch: SwitchGLU, x: mx.array, indices: mx.array, known: Activation) -> np.ndarray[Any, Any]:
    rows, chosen = np.array(x, dtype=np.float64), np.array(indices)

    def project(name: str, into: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        bias = np.array(switch[name].bias, dtype=np.float64)[chosen] if "bias" in switch[name] else 0.0
        return np.einsum("tknc,tkc->tkn", dense(switch, name)[chosen], into) + bias

    each = np.repeat(rows[:, None], chosen.shape[1], axis=1)
    gate, up = project("gate_proj", each), project("up_proj", each)
    if known.kind == "swiglu":
        hidden = gate / (1 + np.exp(-gate)) * up
    else:
        gate, up = np.minimum(gate, known.limit), np.clip(up, -known.limit, known.limit)
        hidden = gate / (1 + np.exp(-known.alpha * gate)) * (up + 1)
    return project("down_proj", hidden)


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("activation", [Activation("swiglu"), Activation("clipped_swiglu", 1.702, 0.75)], ids=str)
def test_every_mode_agrees_with_float64_on_dequantized_weights(
    mode: tuple[str, int, int], activation: Activation
) -> None:
    switch = make_switch(mode, bias=activation.kind != "swiglu", seed=3)
    x, indices = call(3, 2, seed=4)
    found = expert_mlp(x, indices, parts_of(switch), known(switch), activation_of(activation))
    wanted = in_float64(switch, x, indices, activation)
    assert np.abs(np.array(found) - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_weights_of_16_bits_agree_with_float64() -> None:
    switch = make_switch(("none", 0, 0), dtype="bfloat16")
    x, indices = call(3, 2, dtype="bfloat16")
    found = expert_mlp(x, indices, parts_of(switch), known(switch))
    wanted = in_float64(switch, x.astype(mx.float32), indices, Activation("swiglu"))
    assert found.dtype == mx.bfloat16
    assert np.abs(np.array(found.astype(mx.float32)) - wanted).max() <= 1e-2 * np.abs(wanted).max()


def test_the_clip_cuts_up_on_both_sides_and_the_gate_from_above_only() -> None:
    clipped = activation_of(Activation("clipped_swiglu", 1.0, 2.0))
    up, gate = mx.array([-9.0, 9.0, 1.0, 1.0]), mx.array([1.0, 1.0, 9.0, -9.0])
    wanted = [(-2.0 + 1) * 1.0, (2.0 + 1) * 1.0, (1.0 + 1) * 2.0, (1.0 + 1) * -9.0]
    sigmoid = 1 / (1 + np.exp(-np.array([1.0, 1.0, 2.0, -9.0])))
    np.testing.assert_allclose(np.array(clipped(up, gate)), np.array(wanted) * sigmoid, rtol=1e-6)


def test_an_activation_without_a_name_has_to_be_given() -> None:
    switch = make_switch(("affine", 4, 64), activation=TanhOfGate())
    with pytest.raises(ValueError, match="pass the module's own"):
        expert_mlp(*call(1, 1), parts_of(switch), known(switch))


@pytest.mark.parametrize("mode", [("affine", 3, 64), ("nvfp4", 4, 16), ("none", 0, 0)], ids=str)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("tokens, top_k", [(1, 4), (9, 2), (40, 3)])
def test_a_slice_of_the_module_equals_the_whole(
    mode: tuple[str, int, int], bias: bool, tokens: int, top_k: int
) -> None:
    switch = make_switch(mode, bias=bias, experts=12)
    x, indices = call(tokens, top_k, experts=9)
    before = switch(x, indices)
    unique, local = unique_and_local(indices)
    small = slice_switch(switch, unique)
    assert small.gate_proj.num_experts == unique.size <= 9
    assert mx.array_equal(small(x, local), before)
    assert mx.array_equal(switch(x, indices), before)  # the whole one is as it was
    assert switch.gate_proj.num_experts == 12


def test_a_module_of_two_matrices_can_be_sliced_too() -> None:
    mx.random.seed(0)
    switch = SwitchMLP(128, 64, 6)
    x, indices = call(3, 2, experts=6)
    unique, local = unique_and_local(indices)
    assert mx.array_equal(slice_switch(switch, unique)(x, local), switch(x, indices))


def test_unique_experts_are_sorted_and_local_indices_lead_back() -> None:
    indices = mx.array([[[7, 2], [2, 9]]], dtype=mx.uint32)
    unique, local = unique_and_local(indices)
    assert unique.tolist() == [2, 7, 9]
    assert local.tolist() == [[[1, 0], [0, 2]]]
    assert local.dtype == mx.uint32
    assert mx.array_equal(unique[local], indices)


def test_a_module_of_two_matrices_has_no_format() -> None:
    found = format_of(SwitchMLP(64, 64, 2))
    assert isinstance(found, Unknown)
    assert "SwitchMLP" in found.reason
