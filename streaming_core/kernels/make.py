"""The kernels of a GPU backend, as the rest of the program sees them.

Legend: T tokens, K experts per token, R = T * K routed rows, F expert width.
"""

from __future__ import annotations

import mlx.core as mx

from streaming_core.kernels.build import Dialect
from streaming_core.kernels.formats import ExpertFormat, ProjectionFormat
from streaming_core.kernels.fused import FusedExperts
from streaming_core.kernels.indexed import IndexedLinear, Layout, check_parts, refusal
from streaming_core.kernels.kernel import ExpertKernel
from streaming_core.kernels.reference import ActivationOf, Parts, project
from streaming_core.settings import KernelSettings

__all__ = ["FusedMaker", "IndexedMaker"]


class FusedMaker:
    """Gate, up, activation and down in the fewest launches that can win."""

    name = "fused"

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def refusal(self, experts: ExpertFormat, settings: KernelSettings) -> str | None:
        if experts.activation is None:
            return "does not know the activation"
        return _refusal(experts, [experts.gate, experts.up, experts.down])

    def make(self, experts: ExpertFormat, settings: KernelSettings, activation: ActivationOf) -> ExpertKernel:
        return _Fused(self._dialect, experts, _layout(settings))


class IndexedMaker:
    """Gate and up in one launch; down in another, or by MLX."""

    name = "indexed"

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def refusal(self, experts: ExpertFormat, settings: KernelSettings) -> str | None:
        down = [experts.down] if settings.targets == "all" else []
        return _refusal(experts, [experts.gate, experts.up, *down])

    def make(self, experts: ExpertFormat, settings: KernelSettings, activation: ActivationOf) -> ExpertKernel:
        return _Indexed(self._dialect, experts, settings, activation)


class _Fused:
    def __init__(self, dialect: Dialect, experts: ExpertFormat, layout: Layout) -> None:
        self._projections = _projections(experts, down=True)
        self._kernel = FusedExperts(dialect, experts, layout)

    def check(self, parts: Parts) -> None:
        check_parts(self._projections, parts)

    def __call__(self, x: mx.array, slots: mx.array, parts: Parts) -> mx.array:
        return self._kernel.launch(x, slots, parts)


class _Indexed:
    def __init__(
        self, dialect: Dialect, experts: ExpertFormat, settings: KernelSettings, activation: ActivationOf
    ) -> None:
        self._dialect = dialect
        self._experts = experts
        self._activation = activation
        self._layout = _layout(settings)
        self._by_top_k: dict[int, IndexedLinear] = {}
        self._down: IndexedLinear | None = None
        if settings.targets == "all":
            self._down = IndexedLinear(dialect, {"down_proj": experts.down}, share=1, layout=self._layout)

    def check(self, parts: Parts) -> None:
        check_parts(_projections(self._experts, down=self._down is not None), parts)

    def __call__(self, x: mx.array, slots: mx.array, parts: Parts) -> mx.array:
        hidden = self._hidden(x, slots, parts)
        if self._down is not None:
            return self._down.launch(hidden, slots.reshape(-1), parts).reshape(*slots.shape, -1)
        rows = hidden.reshape(*slots.shape, 1, -1)
        return project(rows, slots, parts, "down_proj", self._experts.down).squeeze(-2)

    def _hidden(self, x: mx.array, slots: mx.array, parts: Parts) -> mx.array:
        """[R, F]"""
        top_k = slots.shape[-1]
        if top_k not in self._by_top_k:
            self._by_top_k[top_k] = IndexedLinear(
                self._dialect,
                _projections(self._experts, down=False),
                share=top_k,
                activation=self._experts.activation,
                layout=self._layout,
            )
        out = self._by_top_k[top_k].launch(x, slots.reshape(-1), parts)
        # Without an activation of its own the launch gives gate and up, [R, 2, F].
        return out if self._experts.activation is not None else self._activation(out[:, 1], out[:, 0])


def _projections(experts: ExpertFormat, *, down: bool) -> dict[str, ProjectionFormat]:
    both = {"gate_proj": experts.gate, "up_proj": experts.up}
    return {**both, "down_proj": experts.down} if down else both


def _refusal(experts: ExpertFormat, projections: list[ProjectionFormat]) -> str | None:
    gate, up = experts.gate, experts.up
    if (gate.rows, gate.columns) != (up.rows, up.columns):
        return "takes gate and up of one shape only"
    reason = next((reason for each in projections if (reason := refusal(each)) is not None), None)
    return None if reason is None else f"does not take {reason}"


def _layout(settings: KernelSettings) -> Layout:
    return Layout(tile=settings.tile, lanes=settings.lanes, block=settings.block)
