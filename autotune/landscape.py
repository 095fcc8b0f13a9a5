"""What the trials so far say about all settings: which are best, what to try next, what a change is worth."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from autotune.coordinate import neighbours
from autotune.history import Config, History
from autotune.judge import Judge
from autotune.knobs import Knob, Param, Params
from autotune.space import Space
from autotune.surrogate import Surrogate

__all__ = ["Idea", "Landscape"]

_PER_CHANGE = 0.003  # of two settings that are equally fast the one nearer to the default is better
_DOUBTFUL = 0.015  # a change worth more is kept even if that is uncertain: the race tells
_BEHIND = 0.2  # how far behind the slowest one settings are put that fail or break a constraint
_CENTRES = 3  # of the best settings, whose neighbours are looked at
_PAIRS = 300  # neighbours in two knobs
_ANYWHERE = 100
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Idea:
    """Something to try, and what it is expected to gain over the best so far, as a logarithm."""

    config: Config
    gain: float


class Landscape:
    """Looks at the history anew whenever that has grown."""

    def __init__(self, space: Space, history: History, judge: Judge, rng: random.Random) -> None:
        self._space = space
        self._history = history
        self._judge = judge
        self._rng = rng
        self._surrogate = Surrogate(space)
        self._learnt = -1

    def ranked(self, noise: float) -> list[Config]:
        """Feasible settings that were tried, the best first; the default is always among them."""
        self._learn(noise)
        default = self._history.default
        tried = [each for each in self._history if each.measured and each.feasible(self._judge)]
        tried = tried if default in tried else [*tried, default]
        means, _ = self._surrogate.predict([each.params for each in tried])
        worth = [mean - _PER_CHANGE * self._changes(each) for mean, each in zip(means, tried, strict=True)]
        return [each for _, each in sorted(zip(worth, tried, strict=True), key=lambda pair: -pair[0])]

    def ahead(self, noise: float) -> list[Config]:
        """Those before the default."""
        ranked = self.ranked(noise)
        return ranked[: ranked.index(self._history.default)]

    def next(self, noise: float, most: int) -> Idea | None:
        """The settings with the largest expected improvement (Jones et al., 1998), tried fewer than `most` times."""
        best, *others = self.ranked(noise)
        centres = [best.params, *(each.params for each in others[: _CENTRES - 1])]
        points = list(self._candidates(centres))
        if not points:
            return None
        means, deviations = self._surrogate.predict([best.params, *points])
        gains = [
            _expected(float(mean) - float(means[0]), float(deviation))
            for mean, deviation in zip(means[1:], deviations[1:], strict=True)
        ]
        for gain, params in sorted(zip(gains, points, strict=True), key=lambda pair: -pair[0]):
            config = self._history.config(params)
            if config.settings in self._history.busy:
                continue
            if len(config.outcomes) < most and (not config.outcomes or config.feasible(self._judge)):
                return Idea(config, gain)
        return None

    def simplified(self, config: Config) -> Config:
        """Without the changes that cannot be said to help, the least useful one first."""
        while True:
            doubtful = [
                (gain, without)
                for without, gain, deviation in self.undone(config)
                if gain < max(_PER_CHANGE, min(deviation, _DOUBTFUL))
                and (not without.outcomes or without.feasible(self._judge))
            ]
            if not doubtful:
                return config
            config = min(doubtful, key=lambda pair: pair[0])[1]

    def undone(self, config: Config) -> Iterator[tuple[Config, float, float]]:
        """`config` without one of its changes, each, with mean and deviation of what that change gains."""
        default = self._history.default.params
        for name in config.params:
            if name in default and config.params[name] == default[name]:
                continue
            rest: dict[str, Param] = {key: value for key, value in config.params.items() if key != name}
            without = self._history.config(self._space.canonical(rest))
            if without.key != config.key:
                yield without, *self._surrogate.compare(config.params, without.params)

    def _learn(self, noise: float) -> None:
        trials = [(each, n) for each in self._history for n in range(len(each.outcomes))]
        if len(trials) == self._learnt:
            return
        judged = [self._judge.judge(each.outcomes[n]) for each, n in trials]
        allowed = [judgement.score for judgement in judged if judgement.feasible]
        floor = min(allowed, default=self._judge.default_score) - _BEHIND
        scores = [each.score if each.feasible else min(floor, each.score + _BEHIND) for each in judged]
        scores = [max(score, floor) for score in scores]
        moments = [each.moments[n] for each, n in trials]
        self._surrogate.learn([each.params for each, _ in trials], scores, moments, noise)
        self._learnt = len(trials)

    def _candidates(self, centres: Sequence[Params]) -> Iterator[Params]:
        seen: set[tuple[tuple[str, Param], ...]] = set()
        anywhere = neighbours(self._space, centres[0], self._rng, changes=len(self._space.knobs))
        sources = (*self._neighbours(centres), *itertools.islice(anywhere, _ANYWHERE))
        for params in sources:
            key = tuple(params.items())
            if key not in seen:
                seen.add(key)
                yield params

    def _neighbours(self, centres: Sequence[Params]) -> Iterator[Params]:
        yield from centres
        for centre in centres:
            for knob in self._space.knobs:
                for param in _params(knob):
                    yield self._space.canonical({**centre, knob.name: param})
        yield from itertools.islice(neighbours(self._space, centres[0], self._rng, changes=2), _PAIRS)

    def _changes(self, config: Config) -> int:
        return len(config.settings.changes_from(self._space.base))


def _params(knob: Knob) -> list[Param]:
    return list(range(len(knob.options))) if knob.ordinal else [str(option) for option in knob.options]


def _expected(ahead: float, deviation: float) -> float:
    z = ahead / deviation
    return deviation * (z * _NORMAL.cdf(z) + math.exp(-z * z / 2) / math.sqrt(2 * math.pi))
