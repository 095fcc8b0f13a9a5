"""How much each knob changed speed, all others taken into account: additive effects fitted to the trials of the search.

A search stays where it is fast, so the options of a good knob are tried together with those of others, and a measure
that looks at one knob at a time credits the others too.  Here the logarithm of a speed is a constant, an effect for
the option of each knob, and noise; how large a knob's effects may be is fitted (marginal likelihood), and may be zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["effects"]

_Floats = NDArray[np.floating[Any]]
_SIZES = (0.0, 0.03, 0.08, 0.2, 0.5)  # standard deviation of a knob's effects, as logarithms of speed
_NOISES = (0.01, 0.02, 0.04, 0.08, 0.16, 0.3)
_PRIOR = 0.06  # a knob's likely size: one that explains nothing stays at zero
_SWEEPS = 4


def effects(values: Mapping[str, Sequence[str]], scores: Sequence[float]) -> dict[str, float]:
    """By knob: how many times faster its best option is than its worst.

    `values[knob][trial]`; scores are logarithms.
    """
    options = [np.asarray(column) for column in values.values()]
    alike: list[_Floats] = [(column[:, None] == column[None, :]).astype(float) for column in options]
    targets = np.asarray(scores, dtype=float) - np.mean(scores)
    sizes, noise = [_SIZES[2]] * len(alike), _NOISES[2]
    for _ in range(_SWEEPS):
        before = (list(sizes), noise)
        for at in range(len(sizes)):
            tries = [[*sizes[:at], size, *sizes[at + 1 :]] for size in _SIZES]
            sizes = max(tries, key=lambda each: _likelihood(each, noise, alike, targets))
        noise = max(_NOISES, key=lambda each: _likelihood(sizes, each, alike, targets))
        if before == (sizes, noise):
            break
    weights = np.linalg.solve(_covariance(sizes, noise, alike), targets)
    return {
        name: math.exp(float(np.ptp(size**2 * kernel @ weights)))
        for name, size, kernel in zip(values, sizes, alike, strict=True)
    }


def _covariance(sizes: Sequence[float], noise: float, alike: Sequence[_Floats]) -> _Floats:
    count = len(alike[0])
    found: _Floats = noise**2 * np.eye(count) + np.ones((count, count))
    for size, kernel in zip(sizes, alike, strict=True):
        found = found + size**2 * kernel
    return found


def _likelihood(sizes: Sequence[float], noise: float, alike: Sequence[_Floats], targets: _Floats) -> float:
    root = np.linalg.cholesky(_covariance(sizes, noise, alike))
    whitened = np.linalg.solve(root, targets)
    return float(-0.5 * whitened @ whitened - np.log(np.diag(root)).sum()) - sum(sizes) / _PRIOR
