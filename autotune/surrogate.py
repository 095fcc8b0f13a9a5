"""A model of the speed of all settings from the few that were measured: a Gaussian process in NumPy.

The logarithm of a trial's speed is taken to be a constant, what each knob adds, what each pair of knobs adds beyond
that (Duvenaud et al., 2011), how warm the machine was, and noise.  So every trial tells about every knob, and one that
ran late on a hot machine is not mistaken for a slow one.

How much each knob matters is not known from a few dozen trials, and the likeliest answer is often that one which was
moved once does not matter at all.  So several answers are kept, each as often as the trials speak for it (Gibbs
sampling), and what they disagree about counts as uncertain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.knobs import Knob, Params
from autotune.space import Space

__all__ = ["Floats", "Surrogate"]

# C answers ("shapes"), K knobs, N trials, P points that are asked about
Floats = NDArray[np.floating[Any]]
Codes = NDArray[np.integer[Any]]  # [P, K]: the index of the option; the number of options: not in play

_ANSWERS = 8
_MOST_SWEEPS = 10  # over all that is sampled: one for each new trial, but a history that comes at once is no worse
_EFFECTS = (0.02, 0.05, 0.12, 0.25, 0.5)  # what a knob may add: standard deviation of the logarithm of a speed
_PAIRS = (0.05, 0.2, 0.5, 1.0)  # what a pair adds, in units of the geometric mean of its knobs' effects
_LENGTHS = (0.25, 0.5, 1.0)  # of a knob's range, over which its effect stays alike
_DRIFTS = (0.005, 0.03, 0.1)
_NOISES = (0.5, 1.0, 2.0)  # in units of what identical settings differed by
_DRIFT_TRIALS = 12.0
_LEVEL = 1.0  # prior deviation of the constant
_LEAST_NOISE = 0.005


class Surrogate:
    """`learn`, then the others; scores are logarithms, at one and the same moment, noise left aside."""

    def __init__(self, space: Space) -> None:
        self._knobs = space.knobs
        self._tables = [[_table(knob, length) for knob in space.knobs] for length in _LENGTHS]
        count = len(space.knobs)
        self._grids = (*[np.array(_EFFECTS)] * count, *map(np.array, (_PAIRS, _LENGTHS, _DRIFTS, _NOISES)))
        beliefs: list[tuple[tuple[float, ...], float, float]] = [(_EFFECTS, 0.06, 1.5)] * count
        beliefs += [(_PAIRS, 0.4, 1.5), (_LENGTHS, 0.5, 10.0), (_DRIFTS, 0.03, 1.0), (_NOISES, 1.0, 0.5)]
        self._priors = [-((np.log(np.array(grid) / middle) / width) ** 2) / 2 for grid, middle, width in beliefs]
        self._chosen = np.tile([2] * count + [1] * 4, (_ANSWERS, 1))  # [C, K + 4]: index into each grid
        self._learnt = 0

    def learn(self, points: Sequence[Params], scores: Sequence[float], moments: Sequence[int], noise: float) -> None:
        """`moments` say when: trials so far.  `noise` is what identical settings differed by."""
        self._codes = self._encode(points)
        self._middle = float(np.median(scores))
        self._unit = max(_LEAST_NOISE, noise)
        targets = np.asarray(scores, dtype=float) - self._middle
        times = np.asarray(moments, dtype=float)
        heat = np.exp(-np.abs(times[:, None] - times[None, :]) / _DRIFT_TRIALS)
        alike = self._alike(self._codes, self._codes)
        rng = np.random.default_rng(len(points))
        for _ in range(min(_MOST_SWEEPS, max(1, len(points) - self._learnt))):
            for place in range(len(self._grids)):
                self._draw(place, alike, heat, targets, rng)
        self._learnt = len(points)
        factors = np.linalg.cholesky(self._noisy(self._chosen, alike, heat))
        self._inverses = np.linalg.inv(factors)
        self._weights = self._inverses.transpose(0, 2, 1) @ (self._inverses @ targets[:, None])  # [C, N, 1]

    def predict(self, points: Sequence[Params]) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the scores, [P] each."""
        codes = self._encode(points)
        means, solved = self._posterior(codes)
        variances = self._own() - (solved**2).sum(axis=1)
        total = variances.mean(axis=0) + means.var(axis=0)
        return self._middle + means.mean(axis=0), np.sqrt(np.maximum(total, 1e-12))

    def compare(self, point: Params, other: Params) -> tuple[float, float]:
        """Mean and standard deviation of how much better `point` is: less uncertain than either alone."""
        codes = self._encode([point, other])
        means, solved = self._posterior(codes)
        covariance = self._between(codes, codes, means, means, solved, solved)
        variance = covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]
        return float((means[:, 0] - means[:, 1]).mean()), math.sqrt(max(float(variance), 1e-12))

    def lessons(self, points: Sequence[Params], others: Sequence[Params]) -> tuple[Floats, Floats]:
        """By how much one more trial at each point will move its own mean, [P], and those of the others, [P, others]:
        standard deviations, the latter with a sign.
        """
        codes, asked = self._encode(points), self._encode(others)
        means, solved = self._posterior(codes)
        their_means, their_solved = self._posterior(asked)
        variance = (self._own() - (solved**2).sum(axis=1)).mean(axis=0) + means.var(axis=0)
        variance = np.maximum(variance, 1e-12)
        shared = self._between(codes, asked, means, their_means, solved, their_solved)
        seen = np.sqrt(variance + ((self._unit * self._values(-1)) ** 2).mean())
        return variance / seen, shared / seen[:, None]

    def _draw(self, place: int, alike: Floats, heat: Floats, targets: Floats, rng: np.random.Generator) -> None:
        """Draws one number of every answer anew, given all its others."""
        options = len(self._grids[place])
        shapes = np.repeat(self._chosen, options, axis=0)
        shapes[:, place] = np.tile(np.arange(options), _ANSWERS)
        # With the targets as one more row, that row of the factor is what solving with the others would give.
        whole = np.empty((len(shapes), len(targets) + 1, len(targets) + 1))
        whole[:, :-1, :-1] = self._noisy(shapes, alike, heat)
        whole[:, -1, :-1] = targets
        whole[:, -1, -1] = 1e12
        factors = np.linalg.cholesky(whole)
        likely = -0.5 * (factors[:, -1, :-1] ** 2).sum(axis=1)
        likely -= np.log(np.diagonal(factors, axis1=1, axis2=2)[:, :-1]).sum(axis=1)
        scores = likely.reshape(_ANSWERS, options) + self._priors[place]
        # The largest of scores with Gumbel noise is drawn as often as its likelihood says.
        self._chosen[:, place] = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)

    def _values(self, place: int, shapes: Codes | None = None) -> Floats:
        chosen = self._chosen if shapes is None else shapes
        return np.asarray(self._grids[place][chosen[:, place]])

    def _posterior(self, codes: Codes) -> tuple[Floats, Floats]:
        """Means [C, P], and what the covariances are reduced by, as factors [C, N, P]."""
        shared = self._covariance(self._chosen, self._alike(codes, self._codes))
        return (shared @ self._weights)[..., 0], self._inverses @ shared.transpose(0, 2, 1)

    def _between(
        self, one: Codes, other: Codes, means: Floats, their_means: Floats, solved: Floats, their_solved: Floats
    ) -> Floats:
        """Covariance [P of one, P of the other], what the answers disagree about included."""
        prior = self._covariance(self._chosen, self._alike(one, other))
        within = (prior - solved.transpose(0, 2, 1) @ their_solved).mean(axis=0)
        apart, theirs = means - means.mean(axis=0), their_means - their_means.mean(axis=0)
        return np.asarray(within + apart.T @ theirs / _ANSWERS)

    def _noisy(self, shapes: Codes, alike: Floats, heat: Floats) -> Floats:
        drift = self._values(-2, shapes)[:, None, None]
        noise = self._unit * self._values(-1, shapes)[:, None, None]
        return np.asarray(self._covariance(shapes, alike) + drift**2 * heat + noise**2 * np.eye(len(heat)))

    def _own(self) -> Floats:
        """Prior variance of any point, [C, 1]."""
        itself = np.ones((len(_LENGTHS), len(self._knobs), 1, 1))
        return self._covariance(self._chosen, itself)[:, 0]

    def _covariance(self, shapes: Codes, alike: Floats) -> Floats:
        """[C, P, P'] from [lengths, K, P, P']."""
        lengths = shapes[:, -3]
        effects = np.stack([self._values(n, shapes) for n in range(len(self._knobs))], axis=1)
        found = np.empty((len(shapes), *alike.shape[2:]))
        pairs = self._values(-4, shapes)[:, None, None]
        for length in range(len(_LENGTHS)):
            mine = lengths == length
            if mine.any():
                each = effects[mine]
                squares = np.tensordot(each**2, alike[length], 1)
                total = np.tensordot(each, alike[length], 1)
                both = (total**2 - np.tensordot(each**2, alike[length] ** 2, 1)) / 2
                found[mine] = _LEVEL**2 + squares + pairs[mine] ** 2 * both
        return found

    def _encode(self, points: Sequence[Params]) -> Codes:
        return np.array([[_code(knob, point) for knob in self._knobs] for point in points], dtype=np.int64)

    def _alike(self, one: Codes, other: Codes) -> Floats:
        """Correlation by each knob alone, [lengths, K, points of one, points of the other]."""
        return np.stack(
            [
                np.stack([table[np.ix_(one[:, n], other[:, n])] for n, table in enumerate(tables)])
                for tables in self._tables
            ]
        )


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
