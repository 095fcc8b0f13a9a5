"""From a request to a proven result: probe, default, search, race, verdict."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.dead import dead_knobs, dead_notices
from autotune.errors import WorkerFailed
from autotune.events import BestChanged, Notice, OnEvent, PhaseStarted, ResultReady, TuneEvent
from autotune.history import Config, History
from autotune.journal import Journal, Purpose, Record
from autotune.judge import Judge
from autotune.knobs import Params
from autotune.measurer import Measurer
from autotune.peers import Peers
from autotune.probe import DiskRow
from autotune.proposals import Proposals
from autotune.race import RaceResult, run_race
from autotune.ranking import by_guesses, by_wait
from autotune.request import LEAST_RACE, RACE_SHARE, Subject, TuneRequest, race_plan
from autotune.result import TuneResult
from autotune.runner import Runner, ignore
from autotune.search import SLACK, Search, SearchPlan
from autotune.space import Space, SpaceFacts
from autotune.study import open_study
from autotune.trial import Measured, Outcome, TrialSpec
from autotune.verdict import Evidence, decide
from autotune.wording import seconds_text

__all__ = ["tune"]

_RANKED_FROM = 16  # trials; in a shorter search one that ranks layers is not worth it
_LEAST_TRIALS = 2 + 1 + LEAST_RACE.trials(1)  # the default twice, a candidate, a race


def tune(
    request: TuneRequest,
    subject: Subject,
    runner: Runner,
    cache_dir: Path,
    on_event: OnEvent = ignore,
    *,
    probe: Callable[[], Sequence[DiskRow]] = lambda: (),
    foresee: Callable[[Space], Sequence[Params]] = lambda space: (),
    clock: Callable[[], float] = time.monotonic,
    on_best: Callable[[TuneResult], None] = ignore,
) -> TuneResult:
    """Tunes, carrying on an earlier run of the same study.  Ctrl-C ends it with the best so far.

    `foresee` names what else is worth a trial before the search, once layers are ranked.
    `on_best` gets what Ctrl-C would give, whenever that has become another one: a kill leaves no time for anything.

    Raises:
        WorkerFailed: the default settings do not run.
        StudyInvalid: files of an earlier run are damaged or in use.
        KeyboardInterrupt: before the default was measured; there is no result yet.
    """
    start = clock()
    journal, space, peers = open_study(request, subject, cache_dir / "studies", on_event)
    with journal:
        tuning = _Tuning(request, subject, journal, space, peers, start, on_best)
        on_event(PhaseStarted("probe"))
        tuning.disk = tuple(probe())
        tuning.begin(runner, cache_dir, on_event, clock)
        result = tuning.run(on_event, foresee)
        on_event(ResultReady(result.to_json()))
        return result


class _Tuning:
    """One run.  What it has found so far can be judged at any moment after `begin`."""

    def __init__(
        self,
        request: TuneRequest,
        subject: Subject,
        journal: Journal,
        space: Space,
        peers: Peers,
        start: float,
        on_best: Callable[[TuneResult], None],
    ) -> None:
        self.disk: tuple[DiskRow, ...] = ()
        self._peers = peers
        self._on_best = on_best
        self._race_result = RaceResult()
        self._ended = ""
        self._request = request
        self._subject = subject
        self._journal = journal
        self._space = space
        self._start = start
        self._resumed = bool(journal.records)
        self._interrupted = False
        self._priors: list[Params] = []
        self._whole = space  # with the knobs that turned out to be dead
        self._dead: dict[str, str] = {}
        self._judge = Judge(request.objective, space.base.memory.budget)

    def begin(self, runner: Runner, cache_dir: Path, on_event: OnEvent, clock: Callable[[], float]) -> None:
        """Measures what layers are ranked by, unless an earlier run did: the default, and guesses for every layer."""
        spec = TrialSpec(
            model=self._subject.asked,
            settings=self._space.base.to_mapping(),
            workload=self._request.workload,
            cache_dir=cache_dir,
            procedure=self._request.procedure(),
        )
        self._prepared_s = clock() - self._start
        self._measurer = Measurer(runner, self._journal, self._judge, spec, on_event, clock, peers=self._peers)
        known = [each for each in self._journal.records if each.purpose is Purpose.DEFAULT]
        for record in known:
            if isinstance(record.outcome, Measured):
                self._measurer.durations.append(record.duration_s)
                self._measurer.learn_default(record.outcome, record.duration_s)
        on_event(PhaseStarted("default", "the default settings, twice: they also give the noise"))
        first = next((each.outcome for each in known if isinstance(each.outcome, Measured)), None)
        if first is None:
            outcome = self._measurer.measure(Config("", {}, self._space.base), Purpose.DEFAULT)
            if not isinstance(outcome, Measured):
                reason = getattr(outcome, "reason", "nothing was heard from the worker for too long")
                raise WorkerFailed(f"the default settings do not run: {reason}")
            first = outcome
        self._peers.news()  # what others know already need not be measured again
        ranking = self._peers.agree("ranking", by_wait(self._subject.facts.layers, first))
        self._rank(replace(self._space.facts, ranking=tuple(ranking)))
        try:
            guessed = self._guesses_everywhere()
        except KeyboardInterrupt:  # the default is known, so there is a result; nothing else is measured
            self._interrupted = True
        else:
            facts = self._space.facts
            ours = by_guesses(facts.ranking, guessed) if isinstance(guessed, Measured) else None
            agreed = self._peers.agree("guess_ranking", ours)
            if agreed is not None:
                self._rank(replace(facts, guess_ranking=tuple(agreed)))

    def _rank(self, facts: SpaceFacts) -> None:
        """What proposals mean depends on the rankings, so the history is made anew."""
        self._whole = replace(self._whole, facts=facts)
        self._space = self._whole.without(self._dead)
        self._history = History(self._space)
        for record in self._records():
            if record.purpose.explores:
                config = self._history.config(self._space.canonical(record.params))
                self._history.add(config, record.outcome)

    def _records(self) -> list[Record]:
        """Of this process, and of others as far as they are taken in."""
        return [*self._journal.records, *self._peers.known.values()]

    def _guesses_everywhere(self) -> Outcome | None:
        """How the trial ended that ranks layers by what guesses gain them; None where there is none.

        It comes before every trial of the search, in the journal too: a study that was begun without it stays so, or
        its proposals would change their meaning.
        """
        params = self._space.guessing_everywhere()
        if params is None:
            return None
        config = self._history.config(params)
        if config is self._history.default:
            return next(iter(config.measured), None)
        records = self._records()
        known = next((each.outcome for each in records if each.purpose is Purpose.RANK), None)
        if known is not None or any(each.purpose is Purpose.SEARCH for each in records):
            return known
        if self._trials_left() < _RANKED_FROM:
            return None
        outcome = self._measurer.measure(config, Purpose.RANK)
        self._history.add(config, outcome)
        return outcome

    def run(self, on_event: OnEvent, foresee: Callable[[Space], Sequence[Params]]) -> TuneResult:
        interrupted = False
        self._drop_dead(on_event)
        plan = self._search_plan()
        self._search = self._new_search(plan, on_event)
        if self._request.trials is not None:
            race = race_plan(self._request, self._measurer.trial_s, self._left_s())
            self._measurer.planned = self._request.trials + race.trials(race.finalists)
        try:
            if self._interrupted:
                raise KeyboardInterrupt
            self._search.measure_default(again=self._resumed)
            if self._resumed:
                self._say_best()
            self._priors = self._worth_a_trial(foresee, on_event)
            on_event(PhaseStarted("search", f"{len(self._space.knobs)} settings, {self._space.size} combinations"))
            self._run_search()
            while self._drop_dead(on_event):
                self._search = self._new_search(plan, on_event)
                self._run_search()
            self._race(on_event)
        except KeyboardInterrupt:
            interrupted = True
        on_event(PhaseStarted("verdict"))
        return self._verdict(interrupted=interrupted)

    def _verdict(self, *, interrupted: bool) -> TuneResult:
        return decide(
            Evidence(
                history=self._history,
                judge=self._judge,
                race=self._race_result,
                records=self._journal.records,
                noise=self._search.noise,
                disk=self.disk,
                base=self._request.base,
                fixed=self._request.fixed_values(),
                interrupted=interrupted,
                search=self._search_facts(),
                workload=self._request.workload_facts(),
            )
        )

    def _say_best(self) -> None:
        best = self._verdict(interrupted=True)
        if best.tuned is not None:
            self._on_best(best)

    def _new_search(self, plan: SearchPlan, on_event: OnEvent) -> Search:
        def hear(event: TuneEvent) -> None:
            on_event(event)
            if isinstance(event, BestChanged):
                self._say_best()

        return Search(self._space, self._history, self._measurer, self._judge, plan, hear)

    def _run_search(self) -> None:
        proposals = self._proposals()
        self._ended = self._search.run(proposals, self._priors, lambda: self._outdated(proposals))

    def _outdated(self, proposals: Proposals) -> bool:
        """Takes in what others found; whether the space must be made anew."""
        names = self._peers.news()
        self._history.busy = self._peers.busy
        for name in names:
            record = self._peers.known[name]
            config = self._history.config(self._space.canonical(record.params))
            self._history.add(config, record.outcome)
            proposals.add(config.params, self._judge.judge(record.outcome), name)
        if names:
            self._say_best()
        return self._dead_now().keys() != self._dead.keys()

    def _worth_a_trial(self, foresee: Callable[[Space], Sequence[Params]], on_event: OnEvent) -> list[Params]:
        """What served before, and, in a study that is new and long enough, what a simulation thinks fast."""
        known = [self._space.to_params(each) for each in self._request.priors]
        begun = any(each.purpose is Purpose.SEARCH for each in self._records())
        if begun or not self._space.knobs or self._trials_left() < _RANKED_FROM:
            return known
        on_event(PhaseStarted("simulation", "a recorded run under hundreds of settings"))
        return [*known, *foresee(self._space)]

    def _trials_left(self) -> float:
        """At most, by number and time."""
        trials = math.inf if self._request.trials is None else self._request.trials
        return min(trials, self._left_s() / max(self._measurer.trial_s, 1e-9))

    def _dead_now(self) -> dict[str, str]:
        return dead_knobs(self._whole, self._records())

    def _drop_dead(self, on_event: OnEvent) -> bool:
        """Makes the space anew without the knobs that do nothing; True if others are missing than before.

        Their trials stay, as further ones of the same settings without them.
        """
        before, self._dead = self._dead, self._dead_now()
        notices = dead_notices(before, self._dead)
        for text in notices:
            on_event(Notice(text))
        if notices:
            self._rank(self._whole.facts)
        return bool(notices)

    def _proposals(self) -> Proposals:
        return Proposals.open(
            self._journal.folder,
            self._space,
            self._journal.records,
            self._judge,
            seed=self._request.seed,
            others=self._peers.known,
        )

    def _deadline(self) -> float:
        return math.inf if self._request.time_s is None else self._start + self._request.time_s

    def _left_s(self) -> float:
        return max(0.0, self._deadline() - self._measurer.clock())

    def _search_plan(self) -> SearchPlan:
        race = race_plan(self._request, self._measurer.trial_s, self._left_s())
        return SearchPlan(
            trials=self._request.trials,
            start=self._measurer.clock(),
            deadline=self._deadline(),
            race_trials=race.trials(race.finalists),
            least_race_trials=LEAST_RACE.trials(LEAST_RACE.finalists),
            seed=self._request.seed,
        )

    def _race(self, on_event: OnEvent) -> None:
        race = self._race_result
        default = self._history.default
        plan = race_plan(self._request, self._measurer.trial_s, self._left_s() / RACE_SHARE)
        finalists = self._search.finalists(plan.finalists)
        if not finalists:
            untried = bool(self._space.knobs) and not self._history.candidates and self._request.time_s is not None
            late = untried and self._left_s() < self._measurer.trial_s
            race.reason = self._too_short("try") if late else "nothing that was tried was faster"
            return
        if LEAST_RACE.trials(1) * self._measurer.trial_s > self._left_s():
            race.reason = self._too_short("prove")
            return
        on_event(
            PhaseStarted(
                "race", f"{len(finalists)} finalists and the default, up to {plan.trials(len(finalists))} trials"
            )
        )
        plan = replace(plan, deadline=self._deadline())
        run_race(race, self._measurer, self._judge, default, finalists, plan, self._search.noise.sigma, self._say_best)

    def _too_short(self, what: str) -> str:
        trial_s = self._measurer.trial_s
        needed_s = self._prepared_s + _LEAST_TRIALS * SLACK * trial_s
        return (
            f"the time was too short to {what} anything: about {seconds_text(trial_s)} a trial, "
            f"at least {math.ceil(needed_s)} s needed; what was measured is kept, a rerun carries on"
        )

    def _search_facts(self) -> dict[str, Any]:
        return {
            "ended": self._ended,
            "seed": self._request.seed,
            "seconds": self._measurer.clock() - self._start,
            "combinations": self._space.size,
            "study": self._journal.folder.name,
            "dead": self._dead,
            **({"of_others": len(self._peers.known)} if self._request.storage is not None else {}),
        }
