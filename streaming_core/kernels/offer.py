"""The kernels that exist.  Imports nothing heavy: commands that load no model ask too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streaming_core.settings import KernelSettings

if TYPE_CHECKING:
    from streaming_core.kernels.kernel import KernelMaker

__all__ = ["KERNELS", "PLAIN", "makers", "missing"]

PLAIN = "gather_qmm"
KERNELS = ("fused", "indexed")  # in the order in which they are tried


def makers(backend: str) -> tuple[KernelMaker, ...]:
    """Those of a backend of MLX: cpu has none."""
    if backend == "cpu":
        return ()
    from streaming_core.kernels.build import Dialect
    from streaming_core.kernels.make import FusedMaker, IndexedMaker

    dialect = Dialect(backend)
    return FusedMaker(dialect), IndexedMaker(dialect)


def missing(settings: KernelSettings, backend: str) -> str | None:
    """Why kernels that the settings turn on are not there; None if none is missing."""
    wanted = [f"kernels.{name}" for name in KERNELS if getattr(settings, name) == "on"]
    if not wanted or backend != "cpu":
        return None
    return f"{' and '.join(wanted)}: kernels need Metal or CUDA, MLX computes on the CPU here; {PLAIN} runs as ever"
