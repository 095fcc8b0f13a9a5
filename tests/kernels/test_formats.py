"""What a module's format is read as."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest
from kernel_cases import HIDDEN, MODES, WIDTH, TanhOfGate, make_switch
from mlx_lm.models.activations import SwigluOAI
from mlx_lm.models.switch_layers import SwitchGLU

from streaming_core.hardware import Machine
from streaming_core.kernels.formats import Activation, ExpertFormat, ProjectionFormat, Unknown, format_of, parts_of
from streaming_core.kernels.reference import activation_of, expert_mlp
from streaming_core.kernels.sample import random_parts, random_rows, random_slots, switch_of
from streaming_core.models.outline import open_model


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_bits_group_mode_shape_and_types_are_read(mode: tuple[str, int, int]) -> None:
    name, bits, group = mode
    found = format_of(make_switch(mode, dtype="float16", bias=True))
    assert isinstance(found, ExpertFormat)
    scales = "float16" if name in ("affine", "none") else "uint8"
    wide = ProjectionFormat(HIDDEN, WIDTH, bits or 16, group, name, "float16", scales, True)
    assert found.gate == found.up == wide
    assert (found.down.rows, found.down.columns) == (WIDTH, HIDDEN)
    assert found.activation == Activation("swiglu")


def test_projections_may_differ() -> None:
    found = format_of(make_switch(("affine", 3, 64), ("mxfp4", 4, 32), ("none", 0, 0)))
    assert isinstance(found, ExpertFormat)
    assert [(p.mode, p.bits, p.group) for p in (found.gate, found.up, found.down)] == [
        ("affine", 3, 64),
        ("mxfp4", 4, 32),
        ("none", 32, 0),
    ]


def test_activations_that_kernels_know_have_a_name_and_the_others_none() -> None:
    def of(activation: object) -> Activation | None:
        found = format_of(make_switch(("affine", 4, 64), activation=activation))
        assert isinstance(found, ExpertFormat)
        return found.activation

    assert of(SwigluOAI(alpha=1.5, limit=6.0)) == Activation("clipped_swiglu", 1.5, 6.0)
    assert of(TanhOfGate()) is None


class OwnCall(SwitchGLU):
    """Computes something else than gate, up and down."""


def test_what_may_compute_something_else_has_no_format() -> None:
    found = format_of(OwnCall(32, 32, 2))
    assert isinstance(found, Unknown)
    assert "OwnCall" in found.reason
    switch = make_switch(("affine", 4, 64))
    switch.norm = make_switch(("none", 0, 0))
    found = format_of(switch)
    assert isinstance(found, Unknown)
    assert "norm" in found.reason


def test_a_scale_for_the_whole_matrix_has_no_format() -> None:
    switch = make_switch(("nvfp4", 4, 16))
    switch.up_proj.global_scale = mx.ones((5,))
    found = format_of(switch)
    assert found == Unknown("up_proj has a scale for the whole matrix")


def test_the_format_is_known_while_the_module_has_given_its_tensors_away(tiny: Path, machine: Machine) -> None:
    opened = open_model(tiny, "tiny", machine.hardware())
    switch = opened.switches[0]
    found = format_of(switch.module, switch.geometry)
    assert isinstance(found, ExpertFormat)
    shapes = {part.name: part.shape for part in switch.geometry.parts}
    assert shapes["gate_proj.weight"] == (found.gate.rows, found.gate.words)
    assert (found.down.rows, found.down.columns) == (found.gate.columns, found.gate.rows)


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_random_parts_are_laid_out_as_the_modules_own(mode: tuple[str, int, int], bias: bool) -> None:
    switch = make_switch(mode, dtype="bfloat16", bias=bias, experts=3)
    found = format_of(switch)
    assert isinstance(found, ExpertFormat)
    made = random_parts(found, 3, seed=1)
    own = parts_of(switch)
    assert {n: (a.shape, a.dtype) for n, a in made.items()} == {n: (a.shape, a.dtype) for n, a in own.items()}
    copies = random_parts(found, 3, seed=1, different=2)
    assert mx.array_equal(copies["up_proj.weight"][1], made["up_proj.weight"][1])
    assert mx.array_equal(copies["up_proj.weight"][2], made["up_proj.weight"][0])


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_mlx_lms_module_over_random_parts_computes_the_reference(mode: tuple[str, int, int], bias: bool) -> None:
    found = format_of(make_switch(mode, bias=bias))
    assert isinstance(found, ExpertFormat)
    parts = random_parts(found, 4, seed=2)
    activation = activation_of(found.activation)
    switch = switch_of(parts, found, activation)
    assert format_of(switch) == replace(found, activation=None)
    x, slots = random_rows(found, 20, seed=3), random_slots(20, 4, 4, seed=4)
    out = switch(x, slots)
    assert mx.array_equal(out, expert_mlp(x, slots, parts, found, activation))
    assert 0.05 < float(mx.sqrt(mx.mean(out * out))) < 5.0  # neither fades nor grows when outputs become inputs


def test_matrices_with_more_rows_than_are_made_at_once_are_random_all_through() -> None:
    wide = ProjectionFormat(600, 64, 4, 64, "affine", "float32", "float32", True)
    experts = ExpertFormat(wide, wide, replace(wide, rows=64, columns=64), None)
    weight = random_parts(experts, 1, seed=1)["up_proj.weight"]
    assert weight.shape == (1, 600, 8)
    assert len({tuple(row) for row in weight[0].tolist()}) == 600


def test_the_slots_of_a_token_differ_while_there_are_enough() -> None:
    slots = random_slots(50, 4, 6, seed=1)
    assert slots.dtype == mx.uint32
    assert all(len(set(row)) == 4 and max(row) < 6 for row in slots.tolist())
    assert max(max(row) for row in random_slots(3, 4, 2, seed=1).tolist()) == 1
