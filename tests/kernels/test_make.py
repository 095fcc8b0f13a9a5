"""The kernels behind their settings: what is launched, with what, in which order."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import pytest
from kernel_cases import TanhOfGate, call, make_switch

import streaming_core.kernels.fused
import streaming_core.kernels.make
from streaming_core.errors import KernelWarning
from streaming_core.kernels.build import Dialect
from streaming_core.kernels.formats import Activation, ExpertFormat, ProjectionFormat, format_of, geometry_of, parts_of
from streaming_core.kernels.indexed import Layout
from streaming_core.kernels.make import FusedMaker, IndexedMaker
from streaming_core.kernels.offer import makers
from streaming_core.kernels.reference import Parts, activation_of, expert_mlp, project
from streaming_core.kernels.select import SelectedKernels
from streaming_core.settings import KernelSettings

MODES = [("affine", 4, 64), ("affine", 4, 64), ("affine", 6, 32)]
ALL = KernelSettings(targets="all", tile=4, lanes=16, block=64)


class ReferenceLinear:
    """Stands for `IndexedLinear`: the same answers in MLX's operations."""

    made: list[ReferenceLinear]

    def __init__(
        self,
        dialect: Dialect,
        projections: Mapping[str, ProjectionFormat],
        *,
        share: int,
        activation: Activation | None = None,
        types: tuple[str, str] | None = None,
        layout: Layout | None = None,
    ) -> None:
        self.projections = dict(projections)
        self.layout = layout
        self.share = share
        self.activation = activation
        self.made.append(self)

    def launch(self, x: mx.array, slots: mx.array, parts: Parts) -> mx.array:
        assert slots.shape == (x.shape[0] * self.share,)
        rows = mx.expand_dims(mx.repeat(x, self.share, axis=0), (-2, -3))
        outs = [
            project(rows, slots[:, None], parts, name, form).reshape(slots.size, -1)
            for name, form in self.projections.items()
        ]
        if self.activation is not None:
            return activation_of(self.activation)(outs[1], outs[0])
        return outs[0] if len(outs) == 1 else mx.stack(outs, axis=1)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[ReferenceLinear]:
    linears: list[ReferenceLinear] = []
    kind = type("Linear", (ReferenceLinear,), {"made": linears})
    monkeypatch.setattr(streaming_core.kernels.make, "IndexedLinear", kind)
    monkeypatch.setattr(streaming_core.kernels.fused, "IndexedLinear", kind)
    return linears


def agree(maker: Any, settings: KernelSettings, **switch: Any) -> None:
    module = make_switch(*MODES, bias=True, **switch)
    experts = format_of(module)
    assert isinstance(experts, ExpertFormat)
    assert maker.refusal(experts, settings) is None
    kernel = maker.make(experts, settings, module.activation)
    parts = parts_of(module)
    kernel.check(parts)
    for tokens, top_k in [(1, 3), (4, 2), (4, 3), (5, 1)]:
        x, slots = call(tokens, top_k)
        wanted = expert_mlp(x, slots, parts, experts, module.activation)
        assert mx.allclose(kernel(x, slots, parts), wanted, rtol=1e-4, atol=1e-5)


def test_fused_runs_all_three_projections(made: list[ReferenceLinear]) -> None:
    agree(FusedMaker(Dialect.CUDA), ALL)
    assert {tuple(each.projections) for each in made} == {("gate_proj", "up_proj"), ("down_proj",)}
    assert {each.layout for each in made} == {Layout(tile=4, lanes=16, block=64)}


@pytest.mark.parametrize("targets, launched", [("all", 3), ("gate_up", 2)])
@pytest.mark.parametrize("activation", [None, TanhOfGate()], ids=["swiglu", "own"])
def test_indexed_leaves_to_mlx_what_it_is_told_to(
    made: list[ReferenceLinear], targets: str, launched: int, activation: object
) -> None:
    agree(IndexedMaker(Dialect.METAL), dataclasses.replace(ALL, targets=targets), activation=activation)
    assert len({name for each in made for name in each.projections}) == launched


def test_refusals_name_what_is_not_taken() -> None:
    module = make_switch(*MODES, activation=TanhOfGate())
    experts = format_of(module)
    assert isinstance(experts, ExpertFormat)
    fused, indexed = FusedMaker(Dialect.METAL), IndexedMaker(Dialect.METAL)
    assert fused.refusal(experts, ALL) == "does not know the activation"
    assert indexed.refusal(experts, ALL) is None
    odd = dataclasses.replace(experts, down=dataclasses.replace(experts.down, bits=7))
    assert indexed.refusal(odd, KernelSettings(targets="gate_up")) is None
    assert "7 bits" in str(indexed.refusal(odd, ALL))
    narrow = dataclasses.replace(experts, up=dataclasses.replace(experts.up, rows=8))
    assert indexed.refusal(narrow, ALL) == "takes gate and up of one shape only"


def test_each_backend_has_its_kernels_and_the_cpu_none() -> None:
    assert makers("cpu") == ()
    for backend in ("metal", "cuda"):
        assert [maker.name for maker in makers(backend)] == ["fused", "indexed"]


@pytest.mark.skipif(mx.metal.is_available() or mx.cuda.is_available(), reason="a kernel would run here")
@pytest.mark.parametrize("backend", ["metal", "cuda"])
def test_a_kernel_that_cannot_be_compiled_here_is_turned_off(backend: str) -> None:
    module = make_switch(*MODES)
    experts = format_of(module)
    assert isinstance(experts, ExpertFormat)
    kernels = SelectedKernels(KernelSettings(fused="on"), makers(backend))
    x, slots = call(1, 2)
    wrapped = kernels.wrap(3, module, geometry_of(module))
    with pytest.warns(KernelWarning, match="kernel fused does not run: .*back-end"):
        assert mx.array_equal(wrapped(x, slots), module(x, slots))
