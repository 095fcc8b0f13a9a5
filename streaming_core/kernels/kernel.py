"""What a custom kernel is to the rest of the program.

Legend: T tokens, K experts per token, S slots of a bank, D model width.
"""

from __future__ import annotations

from typing import Protocol

import mlx.core as mx

from streaming_core.kernels.formats import ExpertFormat
from streaming_core.kernels.reference import ActivationOf, Parts
from streaming_core.settings import KernelSettings

__all__ = ["ExpertKernel", "KernelMaker"]


class ExpertKernel(Protocol):
    """The MLP of each token's experts, made for one format.  Keeps no array of those it is called with."""

    def check(self, parts: Parts) -> None:
        """Raises ValueError if it cannot read these parts [S, ...] where they lie; called once for each bank."""
        ...

    def __call__(self, x: mx.array, slots: mx.array, parts: Parts) -> mx.array:
        """x [T, D], slots [T, K] uint32, parts [S, ...] -> [T, K, D], lazily.  Raises ValueError, RuntimeError."""
        ...


class KernelMaker(Protocol):
    """One kind of kernel on one backend.  `name` is its switch in `KernelSettings`."""

    name: str

    def refusal(self, experts: ExpertFormat, settings: KernelSettings) -> str | None:
        """Why it cannot compute these experts; None if it can."""
        ...

    def make(self, experts: ExpertFormat, settings: KernelSettings, activation: ActivationOf) -> ExpertKernel:
        """`activation` is the module's own, for kernels that leave it to MLX."""
        ...
