"""Progress of anything that takes time, as values; who shows them is not the library's business."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["OnProgress", "Progress", "ignore"]


@dataclass(frozen=True, slots=True)
class Progress:
    stage: str  # "packing experts", "loading experts", ...
    done: int
    total: int
    unit: str = "bytes"


OnProgress = Callable[[Progress], None]


def ignore(progress: Progress) -> None:
    """Nobody is watching."""
