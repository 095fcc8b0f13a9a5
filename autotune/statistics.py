"""What a difference between two noisy speeds is worth.  Pure functions over numbers; all randomness is seeded.

Speeds are compared as logarithms: ratios then add up, and twice as fast is as far from 1 as half as fast.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["CONFIDENCE", "Interval", "Noise", "credible_gain", "measured_noise", "paired_ratio", "round_normalised"]

CONFIDENCE = 0.95  # of every interval that is shown or decides
SMALLEST_GAIN = 0.03  # below this, drift of the machine over a day is larger than the gain
_MEDIAN_LOSS = 1.2533  # the standard error of a median of normal data is sqrt(pi / 2) times that of the mean


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio with its confidence bounds."""

    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True)
class Noise:
    """How much the same settings differ from one measurement to the next."""

    sigma: float  # standard deviation of the logarithm of one trial's speed; about its relative error
    measurements: int

    @property
    def credible_gain(self) -> float:
        return credible_gain(self.sigma)


def credible_gain(sigma: float, pairs: int = 1) -> float:
    """The smallest gain worth believing after `pairs` paired measurements: 3 %, or three standard errors."""
    return max(SMALLEST_GAIN, 3.0 * sigma / math.sqrt(pairs))


def measured_noise(trials: Sequence[Sequence[float]]) -> Noise:
    """Noise of A/A trials: `trials[i][j]` is the speed of the same settings in trial i on passage j.

    Two estimates, and the larger counts: how the medians differ between trials (what is asked for, but from few
    numbers), and how a passage differs from itself between trials, carried over to the median of a trial.
    """
    if not trials:
        return Noise(0.0, 0)
    logs = [[math.log(sample) for sample in trial] for trial in trials]
    between = _deviation([statistics.median(trial) for trial in logs])
    repeats = min(map(len, logs))
    columns = [[trial[j] for trial in logs] for j in range(repeats)]
    within = math.sqrt(statistics.fmean(_deviation(column) ** 2 for column in columns)) if repeats else 0.0
    return Noise(max(between, within * _MEDIAN_LOSS / math.sqrt(max(1, repeats))), len(trials))


def _deviation(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def round_normalised(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The typical standing of each entrant: its score in a round less the round's median, median over rounds.

    Scores are logarithms.  What heats up or slows down the machine between rounds falls out.  An entrant that is
    missing from a round (a crash) is judged by the others; one that never ran is not in the result.
    """
    standings: dict[str, list[float]] = {}
    for scores in rounds:
        if scores:
            middle = statistics.median(scores.values())
            for name, score in scores.items():
                standings.setdefault(name, []).append(score - middle)
    return {name: statistics.median(values) for name, values in standings.items()}


def paired_ratio(
    candidate: Sequence[float],
    default: Sequence[float],
    *,
    confidence: float = CONFIDENCE,
    resamples: int = 4000,
    seed: int = 0,
) -> Interval:
    """Bootstrap interval of how many times faster the candidate is; scores are logarithms, paired by position.

    The mean of the pairs, after the extreme one on either side was pulled in to its neighbour (from six pairs up): one
    thermal dip does not decide.  Resampling so few values gives too narrow an interval, and so does pulling in; both
    are undone by the factors of Student's t and of Tukey and McLaughlin's trimmed t (1963).
    """
    differences = np.sort(np.asarray(candidate, dtype=float) - np.asarray(default, dtype=float))
    count = len(differences)
    if count == 0:
        raise ValueError("no pairs")
    pulled = 1 if count >= 6 else 0
    if pulled:
        differences[0], differences[-1] = differences[1], differences[-2]
    middle = float(differences.mean())
    if count == 1:
        return Interval(0.0, math.exp(middle), math.inf)
    normal = statistics.NormalDist().inv_cdf(0.5 + confidence / 2)
    free = count - 2 * pulled - 1
    widening = math.sqrt(count / (count - 1)) * (count - 1) / free * _student(normal, free) / normal
    means = np.random.default_rng(seed).choice(differences, size=(resamples, count)).mean(axis=1)
    low, high = np.quantile(means, [0.5 - confidence / 2, 0.5 + confidence / 2])
    return Interval(
        math.exp(middle - (middle - float(low)) * widening),
        math.exp(middle),
        math.exp(middle + (float(high) - middle) * widening),
    )


def _student(z: float, free: int) -> float:
    """The quantile of Student's t with `free` degrees of freedom where the normal one is z (Cornish and Fisher)."""
    return (
        z
        + (z**3 + z) / (4 * free)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * free**3)
    )
