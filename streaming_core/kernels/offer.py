"""The kernels that exist."""

from __future__ import annotations

from streaming_core.kernels.kernel import KernelMaker

__all__ = ["makers"]


def makers(backend: str) -> tuple[KernelMaker, ...]:
    """Those of a backend of MLX: cpu has none."""
    return ()
