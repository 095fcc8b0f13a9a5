"""Which kernel runs a layer's experts in a call, and why not another.

Legend: T tokens of the call (all leading axes), K experts per token, D model width.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import mlx.core as mx
import mlx.nn as nn

from streaming_core.errors import KernelWarning
from streaming_core.geometry import RecordGeometry
from streaming_core.kernels.formats import ExpertFormat, Unknown, format_of, parts_of
from streaming_core.kernels.kernel import ExpertKernel, KernelMaker
from streaming_core.kernels.offer import KERNELS, PLAIN, missing
from streaming_core.kernels.reference import ActivationOf
from streaming_core.kernels.selftest import ALLOWED, fault_of
from streaming_core.layer_set import LayerSet
from streaming_core.settings import KernelSettings

__all__ = ["KernelSwitch", "Kernels", "LayerChoice", "NoKernels", "SelectedKernels", "make_kernels"]


@dataclass(frozen=True, slots=True)
class LayerChoice:
    """What runs the experts of a layer: `fused`, `indexed` or mlx-lm's own `gather_qmm`."""

    layer: int
    kernel: str
    reason: str

    def __str__(self) -> str:
        return f"layer {self.layer}: {self.kernel}: {self.reason}"


class Kernels(Protocol):
    """The kernels of one model."""

    def wrap(self, layer: int, switch: nn.Module, geometry: RecordGeometry) -> nn.Module:
        """The module to call in place of `switch`, or itself."""
        ...

    def choices(self, tokens: int) -> tuple[LayerChoice, ...]:
        """What a call of so many tokens runs in each layer that was wrapped."""
        ...


class NoKernels:
    """Every layer stays as it is."""

    def __init__(self, reason: str) -> None:
        self._reason = reason
        self._layers: list[int] = []

    def wrap(self, layer: int, switch: nn.Module, geometry: RecordGeometry) -> nn.Module:
        self._layers.append(layer)
        return switch

    def choices(self, tokens: int) -> tuple[LayerChoice, ...]:
        return tuple(LayerChoice(layer, PLAIN, self._reason) for layer in self._layers)


class SelectedKernels:
    """Those that the settings turn on, each from its first use on if it then agrees with the reference."""

    def __init__(self, settings: KernelSettings, makers: Sequence[KernelMaker]) -> None:
        self.settings = settings
        self.makers = sorted(makers, key=lambda maker: KERNELS.index(maker.name))
        self.named = LayerSet.parse(settings.layers)
        self._faults: dict[tuple[str, ExpertFormat], str | None] = {}
        self._layers: list[_Layer] = []

    def wrap(self, layer: int, switch: nn.Module, geometry: RecordGeometry) -> nn.Module:
        found = _Layer(layer, format_of(switch, geometry), switch.activation, self)
        self._layers.append(found)
        # Where no kernel can ever run the module stays itself: models may look for parts of their own in it.
        return KernelSwitch(switch, found) if found.choose(1).kernel != PLAIN else switch

    def choices(self, tokens: int) -> tuple[LayerChoice, ...]:
        return tuple(layer.choose(tokens) for layer in self._layers)

    def most_tokens(self, name: str) -> int:
        return int(getattr(self.settings, f"{name}_max_seq"))

    def is_on(self, name: str) -> bool:
        return bool(getattr(self.settings, name) == "on")

    def fault(self, name: str, experts: ExpertFormat) -> str | None:
        """What its test found, if it was tested."""
        return self._faults.get((name, experts))

    def agrees(
        self, name: str, kernel: ExpertKernel, experts: ExpertFormat, activation: ActivationOf, top_k: int
    ) -> bool:
        """Tests a kernel the first time that it is to compute these experts, whatever the layer."""
        key = (name, experts)
        if key not in self._faults:
            self._faults[key] = fault = fault_of(kernel, experts, activation, top_k)
            if fault is not None:
                text = f"kernel {name} {fault}; it is turned off for {experts}, {PLAIN} runs in its place"
                warnings.warn(text, KernelWarning, stacklevel=2)
        return self._faults[key] is None


class _Layer:
    """How one layer's experts are stored, and which kernel was chosen for which call.

    Holds no module: it and the others refer to each other, and a closed model's arrays must not wait for a collection.
    """

    def __init__(
        self, number: int, experts: ExpertFormat | Unknown, activation: ActivationOf, kernels: SelectedKernels
    ) -> None:
        self._number = number
        self._experts = experts
        self._activation = activation
        self._kernels = kernels
        self._most = max((kernels.most_tokens(m.name) for m in kernels.makers if kernels.is_on(m.name)), default=0)
        self._broken: str | None = None  # what no kernel can read in this layer's bank
        self._chosen: dict[tuple[int, int, mx.Dtype], ExpertKernel | None] = {}
        self._made: dict[tuple[str, str], ExpertKernel] = {}  # by name and type of the activations

    def kernel(self, tokens: int, top_k: int, dtype: mx.Dtype) -> ExpertKernel | None:
        """None: mlx-lm's own.  Evaluates something only the first time that a kernel meets a format."""
        if not 0 < tokens <= self._most:
            return None
        key = (tokens, top_k, dtype)
        if key not in self._chosen:
            self._chosen[key] = self._choose_and_test(tokens, top_k, str(dtype).rpartition(".")[2])
        return self._chosen[key]

    def give_up(self, reason: str) -> None:
        """No kernel can read this layer's tensors."""
        self._broken = reason
        self._most = 0
        text = f"kernels are turned off in layer {self._number}: {reason}; {PLAIN} runs in their place"
        warnings.warn(text, KernelWarning, stacklevel=2)

    def choose(self, tokens: int) -> LayerChoice:
        refusals = []
        for maker in self._kernels.makers:
            refusal = self._refusal(maker, tokens)
            if refusal is None:
                most = self._kernels.most_tokens(maker.name)
                return LayerChoice(self._number, maker.name, f"{tokens} of at most {most} tokens")
            refusals.append(refusal)
        return LayerChoice(self._number, PLAIN, "; ".join(dict.fromkeys(refusals)) or "no kernel exists here")

    def _choose_and_test(self, tokens: int, top_k: int, dtype: str) -> ExpertKernel | None:
        if isinstance(self._experts, Unknown):
            return None
        experts = self._experts = self._experts.with_dtype(dtype)
        for maker in self._kernels.makers:
            if self._refusal(maker, tokens) is not None:
                continue
            key = (maker.name, dtype)
            if key not in self._made:
                self._made[key] = maker.make(experts, self._kernels.settings, self._activation)
            if self._kernels.agrees(maker.name, self._made[key], experts, self._activation, top_k):
                return self._made[key]
        return None

    def _refusal(self, maker: KernelMaker, tokens: int) -> str | None:
        kernels, name = self._kernels, maker.name
        if not kernels.is_on(name):
            return f"kernels.{name} is off"
        if self._number not in kernels.named:
            return f"not in kernels.layers {kernels.named}"
        if isinstance(self._experts, Unknown):
            return self._experts.reason
        if self._broken is not None:
            return self._broken
        if self._experts.gate.dtype not in ALLOWED:
            return f"activations are {self._experts.gate.dtype}"
        if tokens > kernels.most_tokens(name):
            return f"{tokens} tokens > kernels.{name}_max_seq {kernels.most_tokens(name)}"
        if (reason := maker.refusal(self._experts, kernels.settings)) is not None:
            return f"{name} {reason}"
        if (fault := kernels.fault(name, self._experts)) is not None:
            return f"{name} {fault}"
        return None


class KernelSwitch(nn.Module):  # type: ignore[misc]
    """Calls a kernel in place of mlx-lm's module, or that module."""

    def __init__(self, switch: nn.Module, layer: _Layer) -> None:
        super().__init__()
        self.switch = switch
        self._layer = layer
        self._parts = _PartsOf(switch)

    def __call__(self, x: mx.array, indices: mx.array) -> mx.array:
        """x [..., D], indices [..., K] -> [..., K, D]"""
        top_k = indices.shape[-1]
        tokens = indices.size // top_k
        kernel = self._layer.kernel(tokens, top_k, x.dtype)
        if kernel is None:
            return cast(mx.array, self.switch(x, indices))
        try:
            parts = self._parts.checked(kernel)
        except ValueError as err:
            self._layer.give_up(str(err))
            return cast(mx.array, self.switch(x, indices))
        slots = indices.reshape(tokens, top_k).astype(mx.uint32)
        out = kernel(x.reshape(tokens, x.shape[-1]), slots, parts)
        return out.reshape(*indices.shape, out.shape[-1])


class _PartsOf:
    """The tensors that a module computes with now: somebody may give it others."""

    def __init__(self, switch: nn.Module) -> None:
        names = [name.partition(".") for name in parts_of(switch)]
        self._switch = switch
        self._places = [(f"{linear}.{tensor}", linear, tensor) for linear, _, tensor in names]
        self._parts: dict[str, mx.array] = {}
        self._checked_for: ExpertKernel | None = None

    def checked(self, kernel: ExpertKernel) -> dict[str, mx.array]:
        """Raises ValueError if the kernel cannot read them."""
        known, switch = self._parts, self._switch
        try:
            if not all(known.get(name) is switch[linear][tensor] for name, linear, tensor in self._places):
                known = self._parts = {name: switch[linear][tensor] for name, linear, tensor in self._places}
                self._checked_for = None
        except KeyError:  # somebody put another module in, such as an adapter around the linear one
            kinds = ", ".join(dict.fromkeys(type(switch[linear]).__name__ for _, linear, _ in self._places))
            raise ValueError(f"no kernel computes a {kinds}") from None
        if kernel is not self._checked_for:
            kernel.check(known)
            self._checked_for = kernel
        return known


def make_kernels(settings: KernelSettings, backend: str, makers: Sequence[KernelMaker]) -> Kernels:
    """`makers`: the kernels that exist for the backend.  Says once, as a KernelWarning, if the backend has none."""
    if settings.fused == settings.indexed == "off":
        return NoKernels("kernels are off")
    reason = missing(settings, backend)
    if reason is not None:
        warnings.warn(reason, KernelWarning, stacklevel=2)
        return NoKernels(reason)
    return SelectedKernels(settings, makers)
