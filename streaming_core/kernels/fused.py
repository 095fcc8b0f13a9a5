"""A whole expert MLP in two launches: gate, up and activation, then down.

One launch would need every block to wait for all others before down may read what the activation wrote.  Neither
Metal nor a plain CUDA launch promises that all blocks run at once, so such a wait may never end; and computing the
hidden values again in every block of down would read gate and up as many times as there are blocks.

Legend: T tokens, K experts per token, R = T * K routed rows, S slots of a bank, D model width, F expert width.
"""

from __future__ import annotations

from collections.abc import Mapping

import mlx.core as mx

from streaming_core.kernels.build import Dialect
from streaming_core.kernels.formats import ExpertFormat
from streaming_core.kernels.indexed import IndexedLinear, Layout

__all__ = ["FusedExperts"]


class FusedExperts:
    """down(activation(gate x, up x)) per routed row; what lies between the two launches stays float32."""

    def __init__(self, dialect: Dialect, format: ExpertFormat, layout: Layout | None = None) -> None:
        """Raises ValueError if no kernel takes a projection of the format, or none knows its activation."""
        if format.activation is None:
            raise ValueError("no kernel for the activation")
        self._dialect, self._format, self._layout = dialect, format, layout
        self._gate_up: dict[int, IndexedLinear] = {}
        self.gate_up(1)
        self.down = IndexedLinear(
            dialect, {"down_proj": format.down}, share=1, types=("float32", format.down.dtype), layout=layout
        )

    def gate_up(self, top_k: int) -> IndexedLinear:
        """The first launch where each row of x goes to `top_k` experts."""
        if top_k not in self._gate_up:
            self._gate_up[top_k] = IndexedLinear(
                self._dialect,
                {"gate_proj": self._format.gate, "up_proj": self._format.up},
                share=top_k,
                activation=self._format.activation,
                types=(self._format.gate.dtype, "float32"),
                layout=self._layout,
            )
        return self._gate_up[top_k]

    def launch(self, x: mx.array, slots: mx.array, parts: Mapping[str, mx.array]) -> mx.array:
        """x [T, D], slots [T, K] uint32, parts [S, ...] that `check_parts` has seen -> [T, K, D].

        Raises:
            ValueError, RuntimeError: see `IndexedLinear.launch`.
        """
        routed = slots.reshape(-1)
        hidden = self.gate_up(slots.shape[-1]).launch(x, routed, parts)
        return self.down.launch(hidden, routed, parts).reshape(*slots.shape, -1)
