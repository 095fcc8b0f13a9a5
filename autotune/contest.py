"""Contestants measured side by side in rounds, and how many times faster one is than another."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from autotune.judge import score_of
from autotune.runner import Runner
from autotune.space import Objective
from autotune.statistics import CONFIDENCE, paired_ratio
from autotune.trial import Crashed, Infeasible, Measured, TimedOut, TrialSpec

__all__ = ["FEWEST_ROUNDS", "Contestant", "Ratio", "orders", "ratio_of", "run_rounds"]

FEWEST_ROUNDS = 3  # fewer pairs have no spread worth the name


@dataclass(slots=True)
class Contestant:
    """After a failure it is not measured again, so trial i is always that of round i."""

    name: str
    spec: TrialSpec
    trials: list[Measured] = field(default_factory=list)
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Speed of one contestant in units of another's, from the rounds that both finished."""

    median: float  # of the single rounds
    middle: float  # what the interval is around: the mean of the rounds' logarithms, extremes pulled in
    low: float | None  # None: too few rounds
    high: float | None
    level: float = CONFIDENCE
    rounds: int


def orders(contestants: Sequence[Contestant], rounds: int, seed: int) -> Iterator[list[Contestant]]:
    """Shuffled, and every second round is the one before backwards: so nobody has the first place more often."""
    rng = random.Random(seed)
    order: list[Contestant] = []
    for number in range(rounds):
        order = order[::-1] if number % 2 else rng.sample(list(contestants), len(contestants))
        yield order


def run_rounds(
    contestants: Sequence[Contestant],
    rounds: int,
    seed: int,
    runner: Runner,
    on_start: Callable[[Contestant, int], None],
    on_end: Callable[[Contestant, int], None],
) -> None:
    """Measures each once a round, into the contestants; the callbacks hear who, and the trial's number from 0."""
    turns = [each for order in orders(contestants, rounds, seed) for each in order]
    for number, contestant in enumerate(turns):
        on_start(contestant, number)
        if contestant.failure:
            continue
        outcome = runner.run(contestant.spec)
        match outcome:
            case Measured():
                contestant.trials.append(outcome)
            case Infeasible(reason=reason) | Crashed(reason=reason):
                contestant.failure = reason
            case TimedOut(after_s=after_s):
                contestant.failure = f"silent for {after_s:.0f} s"
        on_end(contestant, number)


def ratio_of(candidate: Contestant, other: Contestant, objective: Objective = Objective.DECODE) -> Ratio | None:
    """None when no round has both."""
    scores = zip(_scores(candidate, objective), _scores(other, objective), strict=False)
    pairs = list(scores)  # the shorter one failed in a later round
    if not pairs:
        return None
    interval = paired_ratio([ours for ours, _ in pairs], [theirs for _, theirs in pairs])
    enough = len(pairs) >= FEWEST_ROUNDS
    return Ratio(
        median=math.exp(statistics.median(ours - theirs for ours, theirs in pairs)),
        middle=interval.middle,
        low=interval.low if enough else None,
        high=interval.high if enough else None,
        rounds=len(pairs),
    )


def _scores(contestant: Contestant, objective: Objective) -> list[float]:
    return [score_of(trial, objective) for trial in contestant.trials]
