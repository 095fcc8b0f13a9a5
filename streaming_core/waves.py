"""Splits the routed rows of a call into waves that fit into the slots.

A row is one (token, expert) pair of a call; rows are numbered as the router's indices are laid out, token by token.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Wave", "split_waves"]


@dataclass(frozen=True, slots=True)
class Wave:
    """Some experts and all rows that asked for them."""

    experts: list[int]
    rows: np.ndarray[Any, np.dtype[np.int64]]  # sorted by expert
    expert_of_row: np.ndarray[Any, Any]


def split_waves(asked: np.ndarray[Any, Any], resident: Container[int], most: int) -> list[Wave]:
    """Waves of at most `most` experts.

    Residents come first, while they are still there.  Then the others by how many rows want them, the most wanted last,
    so that the slots are left with what the next token is likely to ask for.

    Args:
        asked: expert of every row [R].
        resident: experts in memory now.
        most: experts per wave, at least 1.
    """
    order = np.argsort(asked, kind="stable")
    experts, begins, counts = np.unique(asked[order], return_index=True, return_counts=True)
    by_use = np.argsort(counts, kind="stable").tolist()
    here = np.fromiter((int(e) in resident for e in experts), dtype=bool, count=len(experts))
    turn = [i for i in by_use if here[i]] + [i for i in by_use if not here[i]]
    waves = []
    for start in range(0, len(turn), most):
        group = turn[start : start + most]
        rows = np.concatenate([order[begins[i] : begins[i] + counts[i]] for i in group])
        waves.append(Wave([int(experts[i]) for i in group], rows, asked[rows]))
    return waves
