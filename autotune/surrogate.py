"""A model of the speed of all settings from the few that were measured: a Gaussian process in NumPy.

The logarithm of a trial's speed is taken to be a constant, what each knob adds, what each pair of knobs adds beyond
that (Duvenaud et al., 2011), how warm the machine was, and noise.  So every trial tells about every knob, and one that
ran late on a hot machine is not mistaken for a slow one.  How much each knob matters is fitted to the trials (their
marginal likelihood, with a mild prior): at a few dozen trials this takes milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.knobs import Knob, Params
from autotune.space import Space

__all__ = ["Surrogate"]

Floats = NDArray[np.floating[Any]]
Codes = NDArray[np.integer[Any]]  # [points, knobs]: the index of the option; the number of options: not in play

_EFFECTS = (0.01, 0.03, 0.08, 0.2, 0.5)  # what a knob may add: standard deviation of the logarithm of a speed
_LIKELY_EFFECT = 0.06
_PAIRS = (0.02, 0.1, 0.3, 0.8)  # what a pair adds, in units of the geometric mean of its knobs' effects
_LENGTHS = (0.25, 0.5, 1.0)  # of a knob's range, over which its effect stays alike
_DRIFTS = (0.005, 0.03, 0.1)
_DRIFT_TRIALS = 12.0
_LEVEL = 1.0  # prior deviation of the constant
_LEAST_NOISE = 0.005


@dataclass(frozen=True, slots=True)
class _Shape:
    """What is fitted."""

    effects: tuple[float, ...]
    pairs: float
    length: float
    drift: float
    noise: float


class Surrogate:
    """`learn`, then `predict` and `compare`; scores are logarithms."""

    def __init__(self, space: Space) -> None:
        self._knobs = space.knobs
        self._tables = {length: [_table(knob, length) for knob in space.knobs] for length in _LENGTHS}
        self._shape = _Shape((_LIKELY_EFFECT,) * len(space.knobs), _PAIRS[1], _LENGTHS[1], _DRIFTS[1], 0.02)

    def learn(self, points: Sequence[Params], scores: Sequence[float], moments: Sequence[int], noise: float) -> None:
        """`moments` say when: trials so far.  `noise` is what identical settings differed by."""
        self._codes = self._encode(points)
        self._middle = float(np.median(scores))
        targets = np.asarray(scores, dtype=float) - self._middle
        times = np.asarray(moments, dtype=float)
        self._heat = np.exp(-np.abs(times[:, None] - times[None, :]) / _DRIFT_TRIALS)
        alike = {length: self._alike(self._codes, self._codes, length) for length in _LENGTHS}
        noises = tuple(max(_LEAST_NOISE, noise * factor) for factor in (0.5, 1.0, 2.0))
        self._shape = replace(self._shape, noise=noises[1])
        found = -math.inf
        for shape in self._variants(noises):
            likely = self._likelihood(alike[shape.length], targets, shape, noises[1])
            if likely > found:
                found, self._shape = likely, shape
        self._factor = np.linalg.cholesky(self._noisy(alike[self._shape.length], self._shape))
        self._weights = np.linalg.solve(self._factor.T, np.linalg.solve(self._factor, targets))

    def predict(self, points: Sequence[Params]) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the scores on one and the same moment, noise left aside."""
        shared = self._shared(self._encode(points))
        solved = np.linalg.solve(self._factor, shared.T)
        variance = self._own(points) - (solved**2).sum(axis=0)
        return self._middle + shared @ self._weights, np.sqrt(np.maximum(variance, 1e-12))

    def compare(self, point: Params, other: Params) -> tuple[float, float]:
        """Mean and standard deviation of how much better `point` is: less uncertain than either alone."""
        codes = self._encode([point, other])
        shared = self._shared(codes)
        solved = np.linalg.solve(self._factor, shared.T)
        prior = _covariance(self._alike(codes, codes, self._shape.length), self._shape)
        posterior = prior - solved.T @ solved
        mean = float((shared[0] - shared[1]) @ self._weights)
        variance = posterior[0, 0] + posterior[1, 1] - 2 * posterior[0, 1]
        return mean, math.sqrt(max(float(variance), 1e-12))

    def _variants(self, noises: Sequence[float]) -> Iterator[_Shape]:
        """One step in each direction from the best so far: `self._shape`, which changes meanwhile."""
        yield self._shape
        for number in range(len(self._knobs)):
            for effect in _EFFECTS:
                effects = self._shape.effects
                yield replace(self._shape, effects=(*effects[:number], effect, *effects[number + 1 :]))
        yield from (replace(self._shape, pairs=each) for each in _PAIRS)
        yield from (replace(self._shape, length=each) for each in _LENGTHS)
        yield from (replace(self._shape, drift=each) for each in _DRIFTS)
        yield from (replace(self._shape, noise=each) for each in noises)

    def _likelihood(self, alike: Floats, targets: Floats, shape: _Shape, noise: float) -> float:
        factor = np.linalg.cholesky(self._noisy(alike, shape))
        solved = np.linalg.solve(factor, targets)
        likely = -0.5 * float(solved @ solved) - float(np.log(np.diag(factor)).sum())
        likely -= sum(math.log(each / _LIKELY_EFFECT) ** 2 for each in shape.effects) / (2 * 1.5**2)
        likely -= math.log(shape.pairs / 0.15) ** 2 / (2 * 1.5**2) + math.log(shape.drift / 0.03) ** 2 / 2
        return likely - math.log(shape.noise / noise) ** 2 / (2 * 0.5**2)

    def _noisy(self, alike: Floats, shape: _Shape) -> Floats:
        noise = shape.noise**2 * np.eye(alike.shape[1])
        return np.asarray(_covariance(alike, shape) + shape.drift**2 * self._heat + noise)

    def _shared(self, codes: Codes) -> Floats:
        return _covariance(self._alike(codes, self._codes, self._shape.length), self._shape)

    def _own(self, points: Sequence[Params]) -> Floats:
        itself = np.ones((len(self._knobs), len(points), 1))
        return _covariance(itself, self._shape)[:, 0]

    def _encode(self, points: Sequence[Params]) -> Codes:
        return np.array([[_code(knob, point) for knob in self._knobs] for point in points], dtype=np.int64)

    def _alike(self, one: Codes, other: Codes, length: float) -> Floats:
        """Correlation by each knob alone, [knobs, points of one, points of the other]."""
        tables = self._tables[length]
        return np.stack([table[np.ix_(one[:, n], other[:, n])] for n, table in enumerate(tables)])


def _covariance(alike: Floats, shape: _Shape) -> Floats:
    effects = np.array(shape.effects)
    single = np.tensordot(effects**2, alike, 1)
    total = np.tensordot(effects, alike, 1)
    pairs = (total**2 - np.tensordot(effects**2, alike**2, 1)) / 2
    return np.asarray(_LEVEL**2 + single + shape.pairs**2 * pairs)


def _code(knob: Knob, point: Params) -> int:
    if knob.name not in point:
        return len(knob.options)
    value = point[knob.name]
    return int(value) if knob.ordinal else [str(option) for option in knob.options].index(str(value))


def _table(knob: Knob, length: float) -> Floats:
    """Correlation between options; Matern 3/2 along an order.  One more for a knob that is not in play."""
    count = len(knob.options)
    table = np.eye(count + 1)
    if knob.ordinal:
        at = np.arange(count) / max(1, count - 1)
        distance = math.sqrt(3) * np.abs(at[:, None] - at[None, :]) / length
        table[:count, :count] = (1 + distance) * np.exp(-distance)
    return table
