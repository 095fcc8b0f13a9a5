"""What Python does around the kernels: checks, names, and a whole expert MLP whose launches the emulator carries out.

Legend: T tokens, K experts per token, S slots, D model width, F expert width.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from emulator import COMPILER, Emulated, Launch
from experts import ALLOWED, activated, bank, draw_slots, experts, linear, normal, projection, wide, worst

from streaming_core.kernels.build import Argument, Dialect, Kernel
from streaming_core.kernels.formats import Activation, ProjectionFormat
from streaming_core.kernels.fused import FusedExperts
from streaming_core.kernels.indexed import IndexedLinear, Layout, check_parts, refusal
from streaming_core.kernels.strides import contiguous, row_contiguous

ONE = {"down_proj": projection(6, 64, "4/32")}


@pytest.mark.skipif(COMPILER is None or sys.platform != "linux", reason="the emulator needs Linux and a C++ compiler")
@pytest.mark.parametrize("dialect", list(Dialect))
def test_fused_launches_give_the_experts_of_every_token(
    dialect: Dialect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    format = experts(64, 96, "4/32", dtype="bfloat16", bias=True)
    fused = FusedExperts(dialect, format)
    known = {each.kernel.name: each for each in (fused.gate_up(3), fused.down)}
    emulated = Emulated(tmp_path)

    def make(kernel: Kernel) -> Any:
        def call(
            *, inputs: list[mx.array], template: Any, grid: Any, threadgroup: Any, **outputs: Any
        ) -> list[mx.array]:
            made = known[kernel.name]
            assert template == made.kernel.template_values()
            assert grid[0] % threadgroup[0] == 0 and threadgroup == (128, 1, 1)
            (y,) = emulated.run([Launch(made, inputs, grid[1], seed=0)])
            assert outputs["output_shapes"] == [y.shape]
            return [mx.array(y).astype(outputs["output_dtypes"][0])]

        return call

    monkeypatch.setattr(Kernel, "make", make)
    rng = np.random.default_rng(1)
    banks = {name: bank(f"{name}_proj", getattr(format, name), 4, rng) for name in ("gate", "up", "down")}
    parts = {name: array for each in banks.values() for name, array in each.parts.items()}
    x = normal(rng, (5, 96), 1.0).astype(mx.bfloat16)
    slots = draw_slots(rng, 5, 3, 4)
    found = fused.launch(x, mx.array(slots), parts)
    emulated.close()
    many, flat = np.repeat(wide(x), 3, axis=0), slots.reshape(-1)
    assert format.activation is not None
    hidden = activated(format.activation, linear(banks["gate"], many, flat), linear(banks["up"], many, flat))
    assert found.shape == (5, 3, 96) and found.dtype == mx.bfloat16
    right = linear(banks["down"], hidden, flat).reshape(5, 3, 96)
    assert worst(wide(found), right) <= ALLOWED["bfloat16"]


@pytest.mark.parametrize(
    ("format", "reason"),
    [
        (projection(8, 64, "7/64"), "affine with 7 bits in groups of 64"),
        (projection(8, 64, "4/16"), "affine with 4 bits in groups of 16"),
        (projection(8, 48, "4/32"), "48 columns, not a multiple of the group of 32"),
        (projection(8, 12, "float32"), "12 columns, not a multiple of 8"),
        (replace(projection(8, 64, "4/32"), mode="exotic"), "quantization mode exotic"),
        (replace(projection(8, 64, "4/32"), dtype="uint8"), "activations of type uint8"),
    ],
)
def test_a_format_without_a_kernel_is_refused_with_the_reason(format: ProjectionFormat, reason: str) -> None:
    assert refusal(format) == reason
    with pytest.raises(ValueError, match=reason):
        IndexedLinear(Dialect.METAL, {"down_proj": format}, share=1)


def test_gate_and_up_of_different_shapes_have_no_common_kernel() -> None:
    both = {"gate_proj": projection(8, 64, "4/32"), "up_proj": projection(9, 64, "4/32")}
    with pytest.raises(ValueError, match="gate is 8 x 64, up 9 x 64"):
        IndexedLinear(Dialect.CUDA, both, share=1)


def test_an_activation_that_no_kernel_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="no kernel for the activation"):
        FusedExperts(Dialect.CUDA, replace(experts(64, 64, "4/32"), activation=None))


@pytest.mark.parametrize("wrong", [{"tile": 3}, {"lanes": 4}, {"block": 100}, {"block": 2048}])
def test_a_layout_out_of_range_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"kernels.{next(iter(wrong))} must be .*, got {next(iter(wrong.values()))}"):
        Layout(**wrong)


def test_a_kernel_has_another_name_for_every_text_template_and_constant() -> None:
    both = {"gate_proj": projection(8, 64, "4/32"), "up_proj": projection(8, 64, "4/32")}
    kernels = [
        IndexedLinear(Dialect.METAL, ONE, share=1),
        IndexedLinear(Dialect.CUDA, ONE, share=1),
        IndexedLinear(Dialect.METAL, ONE, share=2),
        IndexedLinear(Dialect.METAL, ONE, share=1, layout=Layout(tile=4)),
        IndexedLinear(Dialect.METAL, ONE, share=1, types=("bfloat16", "float32")),
        IndexedLinear(Dialect.METAL, both, share=1, activation=Activation("clipped_swiglu", 1.7, 7.0)),
        IndexedLinear(Dialect.METAL, both, share=1, activation=Activation("clipped_swiglu", 1.7, 6.0)),
    ]
    assert len({each.kernel.name for each in kernels}) == len(kernels)
    assert IndexedLinear(Dialect.METAL, ONE, share=1).kernel.name == kernels[0].kernel.name


def test_the_signature_is_the_one_that_mlx_generates() -> None:
    """As MLX 0.32.4 printed it with verbose=True; inputs of fewer than 8 elements are in the constant space."""
    kernel = Kernel(Dialect.METAL, "experts", ("x", "slots"), "y", (("XT", "bfloat16"), ("N", 4), ("PAIR", True)))
    text = kernel.text([Argument("x", "bfloat16", 64), Argument("slots", "uint32", 3)], Argument("y", "bfloat16", 4))
    assert (
        "template <typename XT, int N, bool PAIR>\n"
        f"[[kernel]] void {kernel.name}(\n"
        "  const device bfloat16_t* x [[buffer(0)]],\n"
        "  const constant uint32_t* slots [[buffer(1)]],\n"
        "  device bfloat16_t* y [[buffer(2)]],\n"
        "  uint3 thread_position_in_threadgroup [[thread_position_in_threadgroup]],\n"
        "  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {\n"
    ) in text
    assert kernel.instance() == f"{kernel.name}<bfloat16_t, 4, 1>"


def parts_of_one() -> dict[str, mx.array]:
    return bank("down_proj", ONE["down_proj"], 2, np.random.default_rng(0)).parts


def test_parts_that_kernels_can_read_in_place_are_accepted() -> None:
    check_parts(ONE, parts_of_one())


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("scales", lambda a: None, "down_proj.scales: missing from the bank"),
        ("weight", lambda a: a[:, :5], r"down_proj.weight: expected \[6, 8\] uint32 per slot, got \[5, 8\] uint32"),
        (
            "biases",
            lambda a: a.astype(mx.bfloat16),
            r"down_proj.biases: expected \[6, 2\] float32 per slot, got .*bfloat16",
        ),
        ("weight", lambda a: mx.concatenate([a, a], axis=-1)[..., ::2], "down_proj.weight: not contiguous"),
    ],
)
def test_parts_that_mlx_would_copy_or_kernels_misread_are_refused(name: str, change: Any, message: str) -> None:
    parts = parts_of_one()
    changed = change(parts.pop(f"down_proj.{name}"))
    if changed is not None:
        parts[f"down_proj.{name}"] = changed
    with pytest.raises(ValueError, match=message):
        check_parts(ONE, parts)


def test_what_mlx_would_copy_is_told_from_what_it_would_not() -> None:
    whole = mx.random.normal((64, 512)).astype(mx.bfloat16)
    assert contiguous(whole)
    assert not contiguous(whole.swapaxes(0, 1))
    assert not contiguous(whole[:, ::2])


@pytest.mark.parametrize("shape", [(), (4,), (1, 5), (3, 1, 4), (2, 3, 1), (2, 0, 3)])
def test_strides_are_those_of_rows_one_after_the_other_as_numpy_sees_them(shape: tuple[int, ...]) -> None:
    whole = np.zeros(shape)
    for array in (whole, whole.T, np.zeros((*shape, 2))[..., 0]):
        strides = [stride // 8 for stride in array.strides]
        assert row_contiguous(array.shape, strides) == array.flags.c_contiguous or array.size == 0


@pytest.mark.parametrize(
    ("x", "slots", "message"),
    [
        (mx.zeros((2, 64)), mx.zeros((3,), mx.uint32), r"expected x \(3, 64\)"),
        (mx.zeros((3, 32)), mx.zeros((3,), mx.uint32), r"expected x \(3, 64\)"),
        (mx.zeros((3, 64)), mx.zeros((3,), mx.int32), "uint32 slots"),
        (mx.zeros((0, 64)), mx.zeros((0,), mx.uint32), "1 to 65535 routed rows, got 0"),
    ],
)
def test_a_call_that_does_not_fit_is_refused(x: mx.array, slots: mx.array, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        IndexedLinear(Dialect.METAL, ONE, share=1).launch(x, slots, parts_of_one())
