"""Runs one trial, writes it down, and says so."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone

from autotune.events import OnEvent, TrialFinished, TrialProgressed, TrialStarted
from autotune.history import Config
from autotune.journal import Journal, Purpose, Record
from autotune.judge import Judge
from autotune.peers import ALONE, Peers
from autotune.runner import Runner
from autotune.space import Objective
from autotune.statistics import measured_noise
from autotune.trial import Crashed, Infeasible, Measured, Outcome, TimedOut, TrialSpec, outcome_to_json
from streaming_core.settings import Settings

__all__ = ["Measurer"]

_SLOWER = 4.0  # a repeat that takes so many times the default's is cut short: it has lost
_HOPELESS = 0.5  # of the best trial's speed
_BEYOND_NOISE = 6.0  # standard deviations of a trial: a passage has more noise than the median of some
_SILENT = 20.0  # so many times the default's whole trial without a word is a hang
_LEAST_SILENCE_S = 60.0


class Measurer:
    """The one way from a configuration to an outcome.  Everything it measures is in the journal when it returns."""

    def __init__(
        self,
        runner: Runner,
        journal: Journal,
        judge: Judge,
        template: TrialSpec,
        on_event: OnEvent,
        clock: Callable[[], float] = time.monotonic,
        peers: Peers = ALONE,
    ) -> None:
        """`template` is the trial of the default; other trials differ from it in their settings."""
        self._runner = runner
        self._journal = journal
        self._judge = judge
        self._template = template
        self._base = Settings.from_mapping(template.settings)
        self._on_event = on_event
        self._peers = peers
        self.clock = clock
        self.planned: int | None = None
        self.durations: list[float] = []

    @property
    def trial_s(self) -> float:
        """What a trial takes, from those of this run; 0 before the first."""
        return sorted(self.durations)[len(self.durations) // 2] if self.durations else 0.0

    @property
    def position(self) -> int:
        """Of the last trial in the journal."""
        return len(self._journal.records) - 1

    def measure(self, config: Config, purpose: Purpose) -> Outcome:
        """The outcome; where another process was about to measure these settings in the search, that one's."""
        number = len(self._journal.records) + 1
        begun = Record(
            purpose=purpose,
            params=config.params,
            settings=config.settings.to_mapping(),
            outcome=Crashed(reason="not over"),
            started_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            duration_s=0.0,
        )
        if (elsewhere := self._peers.begin(begun, number - 1)) is not None:
            return elsewhere
        changes = config.settings.changes_from(self._base)
        self._on_event(TrialStarted(number, self.planned, purpose.value, changes))
        start = self.clock()
        procedure = replace(self._template.procedure, hopeless_tps=self._hopeless_tps(purpose))
        spec = replace(self._template, settings=config.settings.to_mapping(), procedure=procedure)
        try:
            outcome = self._runner.run(spec, lambda stage: self._on_event(TrialProgressed(stage)))
        except BaseException:
            self._peers.drop()
            raise
        duration_s = self.clock() - start
        if not (isinstance(outcome, Measured) and outcome.hopeless):  # shorter than what is to be planned for
            self.durations.append(duration_s)
        record = replace(begun, outcome=outcome, duration_s=duration_s)
        self._journal.append(record)
        self._peers.end(record)
        if purpose == Purpose.DEFAULT and isinstance(outcome, Measured):
            self.learn_default(outcome, duration_s)
        self._on_event(self._finished(number, outcome, duration_s))
        return outcome

    def _hopeless_tps(self, purpose: Purpose) -> float | None:
        """A trial of the search whose first passage is slower than this is not worth its others.  None: no limit.

        The same passage of the best trial so far is what it is compared with: passages differ, and the first finds
        the caches of the trial before.
        """
        if purpose is not Purpose.SEARCH or self._judge.objective is not Objective.DECODE:
            return None
        explored = [each.outcome for each in self._journal.records if each.purpose.explores]
        measured = [each for each in explored if isinstance(each, Measured) and self._judge.judge(each).feasible]
        noise = measured_noise([each.samples for each in self._judge.default])
        share = min(_HOPELESS, math.exp(-_BEYOND_NOISE * noise.sigma))
        best = max(measured, key=lambda each: each.decode_tps, default=None)
        return None if best is None else share * best.samples[0]

    def learn_default(self, measured: Measured, duration_s: float) -> None:
        """The default says how long a trial may take."""
        self._judge.learn_default(measured)
        decode_s = self._template.workload.decode_tokens / measured.decode_tps
        procedure = replace(
            self._template.procedure,
            repeat_limit_s=max(1.0, _SLOWER * decode_s),
            silence_s=max(_LEAST_SILENCE_S, _SILENT * duration_s),
        )
        self._template = replace(self._template, procedure=procedure)

    def _finished(self, number: int, outcome: Outcome, duration_s: float) -> TrialFinished:
        kind = outcome_to_json(outcome)["kind"]
        match outcome:
            case Measured():
                judged = self._judge.judge(outcome)
                ratio = math.exp(judged.score - self._judge.default_score)
                broken = ", ".join(name for name in judged.broken if name != "hopeless")
                detail = broken or ("cut short" if outcome.partial else "")
                return TrialFinished(number, kind, outcome.decode_tps, ratio, detail, duration_s)
            case Infeasible(reason=detail) | Crashed(reason=detail):
                return TrialFinished(number, kind, None, None, detail, duration_s)
            case TimedOut(after_s=after_s):
                return TrialFinished(number, kind, None, None, f"silent for {after_s:.0f} s", duration_s)
