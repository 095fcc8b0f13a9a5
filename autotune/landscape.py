"""What the trials so far say about all settings: which are best, what to try next, what a change is worth."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from statistics import NormalDist

import numpy as np

from autotune.coordinate import neighbours
from autotune.history import Config, History
from autotune.judge import Judge
from autotune.knobs import Knob, Param, Params
from autotune.space import Space
from autotune.surrogate import Floats, Surrogate
from autotune.trial import Measured

__all__ = ["Landscape"]

_PER_CHANGE = 0.003  # of two settings that are equally fast the one nearer to the default is better
_DOUBTFUL = 0.015  # a change worth more is kept even if that is uncertain: the race tells
_SURE = 3.0  # deviations of what a change gains; below, it races the same settings without it
_DOUBT = 0.05  # standard deviation of "it fails", as a number between 0 and 1
_CENTRES = 3  # of the best settings, whose neighbours are looked at
_PAIRS = 300  # neighbours in two knobs
_ANYWHERE = 100
_CLIMBS = 3  # times the neighbours of the most promising settings are looked at too
_RIVALS = 16  # of the best settings, tried or not, that a trial may promote
_NORMAL = NormalDist()
_SURPRISES = [_NORMAL.inv_cdf((n + 0.5) / 16) for n in range(16)]


class Landscape:
    """Looks at the history anew whenever that has grown."""

    def __init__(self, space: Space, history: History, judge: Judge, rng: random.Random) -> None:
        self._space = space
        self._history = history
        self._judge = judge
        self._rng = rng
        self._surrogate = Surrogate(space)
        self._feasible = Surrogate(space)  # of 1 for settings that run and keep the constraints, 0 for others
        self._fails = False
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

    def next(self, noise: float, most: int) -> Config | None:
        """What to measure to know the most about which settings are best, tried fewer than `most` times.

        The knowledge gradient (Frazier et al., 2009): by how much one more trial is expected to raise the best mean.
        """
        best, *others = self.ranked(noise)
        points = list(self._candidates([best.params, *(each.params for each in others[: _CENTRES - 1])]))
        gains: list[float] = []
        for _ in range(_CLIMBS):
            gains += self._gains(points[len(gains) :], points)
            top = points[max(range(len(points)), key=gains.__getitem__)]
            known = {tuple(each.items()) for each in points}
            steps = {tuple(each.items()): each for each in self._steps(top)}
            points += [each for key, each in steps.items() if key not in known]
        for _, params in sorted(zip(gains, points, strict=False), key=lambda pair: -pair[0]):
            config = self._history.config(params)
            if config.settings in self._history.busy:
                continue
            if len(config.outcomes) < most and (not config.outcomes or config.feasible(self._judge)):
                return config
        return None

    def _gains(self, points: Sequence[Params], known: Sequence[Params]) -> list[float]:
        """The knowledge gradient of each point, the best of those known being the choice so far."""
        if not points:
            return []
        means, _ = self._surrogate.predict(known)
        means = np.where(self._chances(known) < 0.5, -np.inf, means)
        rivals = np.argsort(-means)[:_RIVALS]
        own, shared = self._surrogate.lessons(points, [known[n] for n in rivals])
        mean, _ = self._surrogate.predict(points)
        gains = np.zeros(len(points))
        for z in _SURPRISES:
            raised = np.maximum((means[rivals] + z * shared).max(axis=1), mean + z * own)
            gains += (raised - means[rivals[0]]) / len(_SURPRISES)
        return [float(gain) for gain in gains * self._chances(points)]

    def _steps(self, centre: Params) -> Iterator[Params]:
        for knob in self._space.knobs:
            for param in _params(knob):
                yield self._space.canonical({**centre, knob.name: param})

    def simplified(self, config: Config) -> Config:
        """Without the changes that cannot be said to help, the least useful one first."""
        while True:
            doubtful = [
                (gain, without)
                for without, gain, deviation in self.undone(config)
                if gain < max(_PER_CHANGE, min(deviation, _DOUBTFUL)) and self._runs(without)
            ]
            if not doubtful:
                return config
            config = min(doubtful, key=lambda pair: pair[0])[1]

    def ladder(self, config: Config) -> list[Config]:
        """`config`, then each time without one more change, the least certain first, until none or one is in doubt."""
        rungs = [config]
        while True:
            doubtful = [
                (gain / deviation, without)
                for without, gain, deviation in self.undone(rungs[-1])
                if gain < _SURE * deviation and without is not self._history.default and self._runs(without)
            ]
            if not doubtful:
                return rungs
            rungs.append(min(doubtful, key=lambda pair: pair[0])[1])

    def _runs(self, config: Config) -> bool:
        return config.feasible(self._judge) if config.outcomes else bool(self._chances([config.params])[0] > 0.5)

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
        points = [each.params for each, _ in trials]
        moments = [each.moments[n] for each, n in trials]
        ran = [n for n, (each, m) in enumerate(trials) if isinstance(each.outcomes[m], Measured)]
        scores = [judged[n].score for n in ran]
        self._surrogate.learn([points[n] for n in ran], scores, [moments[n] for n in ran], noise)
        self._fails = not all(each.feasible for each in judged)
        if self._fails:
            self._feasible.learn(points, [float(each.feasible) for each in judged], moments, _DOUBT)
        self._learnt = len(trials)

    def _chances(self, points: Sequence[Params]) -> Floats:
        """That they run and keep every constraint.  A cliff would spoil a smooth model of the speed: it has its own."""
        if not self._fails:
            return np.ones(len(points))
        means, deviations = self._feasible.predict(points)
        return np.array([_NORMAL.cdf((m - 0.5) / d) for m, d in zip(means, deviations, strict=True)])

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
            yield from self._steps(centre)
        yield from itertools.islice(neighbours(self._space, centres[0], self._rng, changes=2), _PAIRS)

    def _changes(self, config: Config) -> int:
        return len(config.settings.changes_from(self._space.base))


def _params(knob: Knob) -> list[Param]:
    return list(range(len(knob.options))) if knob.ordinal else [str(option) for option in knob.options]
