"""Formats and modules for tests of the kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.switch_layers import SwiGLU, SwitchGLU

from streaming_core.kernels.formats import Activation, ExpertFormat, ProjectionFormat
from streaming_core.kernels.kernel import ExpertKernel
from streaming_core.kernels.reference import ActivationOf, Parts, expert_mlp
from streaming_core.settings import KernelSettings

AFFINE = [("affine", bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128)]
MODES = [*AFFINE, ("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16), ("none", 0, 0)]
WIDTH, HIDDEN, EXPERTS = 128, 256, 5


def make_switch(
    *modes: tuple[str, int, int],
    dtype: str = "float32",
    bias: bool = False,
    activation: object | None = None,
    experts: int = EXPERTS,
    seed: int = 0,
) -> SwitchGLU:
    """mlx-lm's module with one mode for all projections, or one each for gate, up and down."""
    mx.random.seed(seed)
    switch = SwitchGLU(WIDTH, HIDDEN, experts, activation=SwiGLU() if activation is None else activation, bias=bias)
    switch.set_dtype(getattr(mx, dtype))
    names = ("gate_proj", "up_proj", "down_proj")
    for name, (mode, bits, group) in zip(names, modes if len(modes) == 3 else modes * 3, strict=True):
        if bias:
            linear = switch[name]
            linear.bias = 0.2 * mx.random.normal(linear.bias.shape).astype(linear.bias.dtype)
        if mode != "none":
            switch[name] = switch[name].to_quantized(group, bits, mode)
    mx.eval(switch.parameters())
    return switch


def call(
    tokens: int, top_k: int, experts: int = EXPERTS, dtype: str = "float32", seed: int = 1
) -> tuple[mx.array, mx.array]:
    """x [T, D] and indices [T, K]."""
    mx.random.seed(seed)
    x = mx.random.normal((tokens, WIDTH)).astype(getattr(mx, dtype))
    return x, mx.random.randint(0, experts, (tokens, top_k)).astype(mx.uint32)


def small_format(dtype: str = "float32", activation: Activation | None = Activation("swiglu")) -> ExpertFormat:  # noqa: B008
    wide = ProjectionFormat(HIDDEN, WIDTH, 4, 64, "affine", dtype, dtype, False)
    return ExpertFormat(wide, wide, replace(wide, rows=WIDTH, columns=HIDDEN), activation)


class TanhOfGate(nn.Module):  # type: ignore[misc]
    """An activation that no kernel knows."""

    def __call__(self, x: mx.array, gate: mx.array) -> mx.array:
        return mx.square(x) * mx.tanh(gate)


class FakeMaker:
    """Makes kernels that compute the reference, `wrong(out)` of it if that is given, and note what they were called
    with."""

    def __init__(
        self,
        name: str = "fused",
        *,
        refuses: str | None = None,
        wrong: Callable[[mx.array], mx.array] | None = None,
    ) -> None:
        self.name = name
        self.refuses = refuses
        self.wrong = wrong
        self.made: list[ExpertFormat] = []
        self.checked = 0
        self.unreadable = ""  # a part
        self.calls: list[tuple[int, ...]] = []  # shapes of slots

    def refusal(self, experts: ExpertFormat, settings: KernelSettings) -> str | None:
        return self.refuses

    def make(self, experts: ExpertFormat, settings: KernelSettings, activation: ActivationOf) -> ExpertKernel:
        self.made.append(experts)
        return FakeKernel(self, experts, activation)


class FakeKernel:
    def __init__(self, maker: FakeMaker, experts: ExpertFormat, activation: ActivationOf) -> None:
        self.maker = maker
        self.experts = experts
        self.activation = activation

    def check(self, parts: Parts) -> None:
        self.maker.checked += 1
        if self.maker.unreadable in parts and parts[self.maker.unreadable].shape[0] == EXPERTS:  # not the test's own
            raise ValueError(f"{self.maker.unreadable}: not contiguous")

    def __call__(self, x: mx.array, slots: mx.array, parts: Parts) -> mx.array:
        assert slots.dtype == mx.uint32
        self.maker.calls.append(tuple(slots.shape))
        out = expert_mlp(x, slots, parts, self.experts, self.activation)
        return out if self.maker.wrong is None else self.maker.wrong(out)
