"""The search: the default first and again, moves along single knobs, then proposals of a model of the landscape.

It only finds candidates.  What it says about them is one noisy number each, and the best of many noisy numbers is too
good to be true: the race decides.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from autotune.coordinate import coordinate_moves
from autotune.errors import WorkerFailed
from autotune.events import BestChanged, NoiseMeasured, OnEvent
from autotune.history import Config, History
from autotune.journal import Purpose
from autotune.judge import Judge, Judgement
from autotune.knobs import Params
from autotune.landscape import Landscape
from autotune.measurer import Measurer
from autotune.proposals import Proposals
from autotune.space import Space
from autotune.statistics import Noise, measured_noise
from autotune.trial import Crashed, Infeasible, Measured, Outcome, TimedOut

__all__ = ["SLACK", "Search", "SearchPlan"]

_REPLICATES = 3  # measurements of one configuration, after which a repeated proposal teaches nothing
_SENTINEL = 8  # trials between two further measurements of the default
_MODEL_SHARE = 0.85  # of the trials, before changes are undone
_OPINION = 10  # one in so many proposals of the model is TPE's
SLACK = 1.2  # trials of a race that is cut off by the clock prove nothing, and some take longer than most
_NOTABLE = 0.01  # an improvement that resets the patience


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPlan:
    """How long to search."""

    trials: int | None = None  # in the whole study, the default's included; None: as many as the time allows
    start: float = 0.0  # by the measurer's clock
    deadline: float = math.inf  # likewise, the race included
    race_trials: int = 0  # what the race would take, once there is something to race
    least_race_trials: int = 0  # what it takes at the very least
    coordinate_share: float = 0.12  # of the trials for single-knob moves at most, the rest for the model
    patience: int = 25  # proposals of the model in a row without an improvement
    seed: int = 0


class Search:
    """One search.  `history` holds what was found, also when `run` was left by an exception."""

    def __init__(
        self, space: Space, history: History, measurer: Measurer, judge: Judge, plan: SearchPlan, on_event: OnEvent
    ) -> None:
        self._space = space
        self.history = history
        self._measurer = measurer
        self._judge = judge
        self._plan = plan
        self._on_event = on_event
        self._rng = random.Random(plan.seed)
        self._landscape = Landscape(space, history, judge, self._rng)
        self._best_ratio = 1.0
        self._since_default = 0
        self._outdated: Callable[[], bool] = lambda: False

    @property
    def noise(self) -> Noise:
        return measured_noise([measured.samples for measured in self.history.default.measured])

    @property
    def trials(self) -> int:
        return sum(len(config.outcomes) for config in self.history)

    def measure_default(self, times: int = 2, *, again: bool = False) -> None:
        """Default and default again, however short the time: one measurement has no noise.

        With `again`, once more at least: an earlier run knew another day.  Raises WorkerFailed when the default does
        not run: there is nothing to beat.
        """
        default = self.history.default
        if self._plan.trials is not None:
            times = min(times, self._plan.trials)
        times = max(times, len(default.outcomes) + again)
        while len(default.outcomes) < times:
            self._measure(default)
            if not default.measured:
                raise WorkerFailed(f"the default settings do not run: {_reason(default.outcomes[-1])}")
        self._say_noise()

    def run(
        self,
        proposals: Proposals,
        priors: Iterable[Params] = (),
        outdated: Callable[[], bool] = lambda: False,
    ) -> str:
        """Searches until the plan or the space is used up, or the space is `outdated`.  Returns why it ended."""
        self._outdated = outdated
        if not self._space.knobs:
            return "no setting is left to search"
        for params in priors:
            if self._spent():
                return self._why_spent()
            self._score(self._space.canonical(params), proposals)
        self._move_along_knobs(proposals)
        ended = self._follow_the_model(proposals, _MODEL_SHARE)
        self._undo_changes(proposals)
        return ended or self._follow_the_model(proposals) or self._why_spent()

    def _move_along_knobs(self, proposals: Proposals) -> None:
        best = next(iter(self.history.ranked(self._judge)), self.history.default)
        threshold = math.log1p(self.noise.credible_gain) / 2
        moves = coordinate_moves(self._space, best.params, best.score(self._judge), threshold=threshold, rng=self._rng)
        proposal = next(moves, None)
        while proposal is not None and not self._spent(self._plan.coordinate_share):
            score = self._score(proposal, proposals)
            try:
                proposal = moves.send(score)
            except StopIteration:
                proposal = None

    def ranked(self) -> list[Config]:
        """What was tried, the best first, by all that the trials say about each other."""
        return self._landscape.ranked(self.noise.sigma)

    def finalists(self, most: int) -> list[Config]:
        """What to race: what looks faster than the default, without the changes that prove nothing.

        The best of them comes first, then what it is without its doubtful changes, then others.
        """
        found: dict[str, Config] = {}
        for config in self._landscape.ahead(self.noise.sigma)[:most]:
            simple = self._landscape.simplified(config)
            if simple is not self.history.default:
                for each in [simple] if found else _spread(self._landscape.ladder(simple), most):
                    found.setdefault(each.key, each)
        return list(found.values())[:most]

    def _follow_the_model(self, proposals: Proposals, share: float = 1.0) -> str:
        """Empty when that share of the plan is used up; else why it ended before."""
        best, since = self._best_score(), 0
        while not self._spent(share):
            if since >= self._plan.patience:
                return f"nothing better in {since} proposals of the model"
            idea = self._landscape.next(self.noise.sigma, _REPLICATES)
            if idea is None:
                return "every setting near the best one is known"
            if not (since % _OPINION == _OPINION - 1 and self._ask_tpe(proposals)):
                proposals.add(idea.params, self._measure(idea), self._measurer.position)
            since += 1
            if (score := self._best_score()) > best + _NOTABLE:
                best, since = score, 0
        return ""

    def _undo_changes(self, proposals: Proposals) -> None:
        """The best settings without each of their changes, where it is not clear yet that the change helps."""
        best = self.ranked()[0]
        for without, gain, deviation in list(self._landscape.undone(best)):
            if self._spent():
                return
            if gain < 2 * deviation and not self.history.tried(without):
                proposals.add(without.params, self._measure(without), self._measurer.position)

    def _ask_tpe(self, proposals: Proposals) -> bool:
        """Measures what TPE proposes, unless that is known: another opinion, should the surrogate be mistaken."""
        trial, params = proposals.ask()
        config = self.history.config(params)
        if self.history.tried(config):
            proposals.drop(trial)
            return False
        try:
            judgement = self._measure(config)
        except BaseException:
            proposals.drop(trial)
            raise
        proposals.tell(trial, judgement, self._measurer.position)
        return True

    def _score(self, params: Params, proposals: Proposals) -> float:
        """The score of a proposal, measured only when it is not known.  The default is watched on the way."""
        config = self.history.config(params)
        if not config.outcomes and self.history.tried(config):
            return -math.inf  # until its outcome comes
        if not config.outcomes:
            if self._since_default >= _SENTINEL:
                proposals.add(self.history.default.params, self._measure(self.history.default), self._measurer.position)
                self._say_noise()
            proposals.add(config.params, self._measure(config), self._measurer.position)
        return config.score(self._judge)

    def _measure(self, config: Config) -> Judgement:
        is_default = config is self.history.default
        outcome = self._measurer.measure(config, Purpose.DEFAULT if is_default else Purpose.SEARCH)
        self.history.add(config, outcome)
        self._since_default = 0 if is_default else self._since_default + 1
        if is_default and not config.measured:
            return Judgement(0.0, {"failed": 1.0})
        judgement = self._judge.judge(outcome)
        self._say_if_best(config, outcome)
        return judgement

    def _say_if_best(self, config: Config, outcome: Outcome) -> None:
        ratio = math.exp(config.score(self._judge) - self._judge.default_score)
        if isinstance(outcome, Measured) and ratio > self._best_ratio and config.feasible(self._judge):
            self._best_ratio = ratio
            changes = config.settings.changes_from(self._space.base)
            self._on_event(BestChanged(outcome.decode_tps, ratio, changes))

    def _say_noise(self) -> None:
        noise = self.noise
        self._on_event(NoiseMeasured(noise.sigma, noise.credible_gain, noise.measurements))

    def _best_score(self) -> float:
        return max((config.score(self._judge) for config in self.history.ranked(self._judge)), default=-math.inf)

    def _spent(self, share: float = 1.0) -> bool:
        plan = self._plan
        if self._outdated() or (plan.trials is not None and self.trials >= plan.trials * share):
            return True
        trial_s, now = self._measurer.trial_s, self._measurer.clock()
        if now + trial_s > plan.deadline:
            return True
        if not self.history.candidates:  # a race needs something to race
            return False
        race = self._reserved()
        end = plan.deadline - SLACK * race * trial_s
        return now + trial_s > plan.start + (end - plan.start) * share

    def _reserved(self) -> int:
        """Trials to leave to the race.  None where no race fits any more: a later run can use what is found."""
        plan = self._plan
        before = 2  # the default again, a candidate
        if (before + plan.least_race_trials) * self._measurer.trial_s > plan.deadline - plan.start:
            return 0
        return plan.race_trials if self._ahead() else plan.least_race_trials

    def _ahead(self) -> bool:
        return bool(self.history.default.measured) and bool(self.history.ahead_of_default(self._judge))

    def _why_spent(self) -> str:
        plan = self._plan
        by_count = plan.trials is not None and self.trials >= plan.trials
        return f"all {plan.trials} trials were run" if by_count else "the time for the search is used up"


def _spread(rungs: Sequence[Config], most: int) -> list[Config]:
    """So many of them at most, the first and the last among them."""
    if len(rungs) <= most:
        return list(rungs)
    return [rungs[n * (len(rungs) - 1) // max(1, most - 1)] for n in range(most)]


def _reason(outcome: Outcome) -> str:
    match outcome:
        case Infeasible(reason=reason) | Crashed(reason=reason):
            return reason
        case TimedOut(after_s=after_s):
            return f"nothing was heard for {after_s:.0f} s"
        case Measured():
            return "measured"
