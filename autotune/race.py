"""The race: finalists and default measured again, side by side in time.

The best numbers of a search are partly luck, so none of them counts here.  First the finalists and the default run in
shuffled rounds; each round is divided by its median, so that a machine that heats up slows all alike.  Then the winner
of the rounds meets the default in pairs, first in half of them, and only those pairs decide.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from autotune.history import Config
from autotune.journal import Purpose
from autotune.judge import Judge, score_of
from autotune.measurer import Measurer
from autotune.statistics import Interval, credible_gain, paired_ratio, round_normalised
from autotune.trial import Measured

__all__ = ["RacePlan", "RaceResult", "run_race"]

_FEWEST_PAIRS = 4
_MOST_FAILURES = 2  # pairs lost to crashes before the winner is given up


@dataclass(frozen=True, slots=True, kw_only=True)
class RacePlan:
    """How much is measured again."""

    finalists: int = 3
    rounds: int = 3  # 0: the first finalist goes straight to the pairs
    pairs: int = 8
    deadline: float = math.inf  # by the measurer's clock
    seed: int = 0

    def trials(self, finalists: int) -> int:
        """How many trials a race of so many finalists takes at most."""
        return self.rounds * (finalists + 1) + 2 * self.pairs if finalists else 0


@dataclass(slots=True)
class RaceResult:
    """What the race showed.  Grows while it runs, so that an interrupted one can be looked at."""

    rounds: list[dict[str, float]] = field(default_factory=list)  # score by configuration key
    winner: Config | None = None  # None: no finalist was ahead of the default
    winner_trials: list[Measured] = field(default_factory=list)  # of the pairs
    default_trials: list[Measured] = field(default_factory=list)
    interval: Interval | None = None  # of winner to default
    needed_gain: float = 0.0
    reason: str = ""  # why there is no winner, or too few pairs; empty: the race was run to its end

    @property
    def proven(self) -> bool:
        interval = self.interval
        return interval is not None and not self.reason and interval.low > 1 and interval.middle >= 1 + self.needed_gain


def run_race(
    result: RaceResult,
    measurer: Measurer,
    judge: Judge,
    default: Config,
    finalists: Sequence[Config],
    plan: RacePlan,
    sigma: float,
    on_winner: Callable[[], None] = lambda: None,
) -> None:
    """Runs the race into `result`.  `sigma` is the noise of one trial, from the search.

    `on_winner` is called when the rounds are over and have one.
    """
    rng = random.Random(plan.seed)
    result.winner = _rounds(result, measurer, judge, default, finalists, plan, sigma, rng)
    if result.winner is None:
        result.reason = result.reason or "no finalist was ahead of the default when measured side by side"
        return
    on_winner()
    _pairs(result, measurer, default, plan, rng)
    count = len(result.winner_trials)
    if count < _FEWEST_PAIRS:
        result.reason = result.reason or f"the time ran out after {count} of {plan.pairs} pairs"
    if count > 1:
        result.needed_gain = credible_gain(sigma, count)
        scores = [[score_of(each, judge.objective) for each in side] for side in _sides(result)]
        result.interval = paired_ratio(*scores, seed=plan.seed)


def _sides(result: RaceResult) -> tuple[list[Measured], list[Measured]]:
    return result.winner_trials, result.default_trials


def _rounds(
    result: RaceResult,
    measurer: Measurer,
    judge: Judge,
    default: Config,
    finalists: Sequence[Config],
    plan: RacePlan,
    sigma: float,
    rng: random.Random,
) -> Config | None:
    """The finalist with the best standing, if that is ahead of the default's, less the changes that gain too little."""
    if not plan.rounds:
        return finalists[0]
    entrants = [default, *finalists]
    for _ in range(plan.rounds):
        if _late(measurer, plan, len(entrants)):
            result.reason = "the time ran out during the rounds"
            return None
        scores: dict[str, float] = {}
        for config in rng.sample(entrants, len(entrants)):
            outcome = measurer.measure(config, Purpose.RACE)
            if isinstance(outcome, Measured):
                scores[config.key] = score_of(outcome, judge.objective)
            elif config is not default:
                entrants.remove(config)
        result.rounds.append(scores)
    standings = round_normalised(result.rounds)
    left = [config for config in entrants if config.key in standings]
    best = max(left, key=lambda config: standings[config.key], default=default)
    if best is default:
        return None
    ahead = [config for config in left if standings[config.key] > standings.get(default.key, -math.inf)]
    return _simplest(best, ahead, default, result.rounds, sigma)


def _simplest(
    best: Config,
    others: Sequence[Config],
    default: Config,
    rounds: Sequence[Mapping[str, float]],
    sigma: float,
) -> Config:
    """Of `best` and those with only some of its changes the one with the fewest that is not clearly slower."""

    def changes(config: Config) -> set[tuple[str, object]]:
        return set(config.settings.changes_from(default.settings).items())

    def close(config: Config) -> bool:
        behind = [scores[best.key] - scores[config.key] for scores in rounds if {best.key, config.key} <= scores.keys()]
        return bool(behind) and statistics.fmean(behind) < math.log1p(credible_gain(noise, len(behind)))

    noise = max(sigma, _unexplained(rounds))
    simpler = [config for config in others if changes(config) < changes(best) and close(config)]
    return min([best, *simpler], key=lambda config: len(changes(config)))


def _unexplained(rounds: Sequence[Mapping[str, float]]) -> float:
    """Deviation of a score from what its round and its entrant say, over entrants that finished every round."""
    names = set(rounds[0]).intersection(*rounds[1:])
    table = np.array([[scores[name] for name in sorted(names)] for scores in rounds])
    free = (table.shape[0] - 1) * (table.shape[1] - 1)
    if free < 1:
        return 0.0
    rest = table - table.mean(axis=0) - table.mean(axis=1, keepdims=True) + table.mean()
    return math.sqrt(float((rest**2).sum()) / free)


def _pairs(result: RaceResult, measurer: Measurer, default: Config, plan: RacePlan, rng: random.Random) -> None:
    assert result.winner is not None
    first = [index % 2 == 0 for index in range(plan.pairs)]
    rng.shuffle(first)
    failures = 0
    for winner_first in first:
        if _late(measurer, plan, 2):
            return
        order = (result.winner, default) if winner_first else (default, result.winner)
        outcomes = {config.key: measurer.measure(config, Purpose.PAIR) for config in order}
        ours, theirs = outcomes[result.winner.key], outcomes[default.key]
        if isinstance(ours, Measured) and isinstance(theirs, Measured):
            result.winner_trials.append(ours)
            result.default_trials.append(theirs)
        elif not isinstance(ours, Measured):
            failures += 1
        if failures >= _MOST_FAILURES:
            result.reason = f"the winner of the rounds failed in {failures} pairs"
            return


def _late(measurer: Measurer, plan: RacePlan, trials: int) -> bool:
    return measurer.clock() + trials * measurer.trial_s > plan.deadline
