"""Others that work on the same study, as one process sees them: what they found, what they are busy with.

Machines must be alike, and each measures the default itself.  What another one measured counts by its ratio to the
default of that machine: it is carried over to the speed that it would have had here.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from optuna.trial import FrozenTrial, TrialState

from autotune.errors import StudyInvalid
from autotune.journal import Purpose, Record
from autotune.judge import score_of
from autotune.shared_study import SharedStudy
from autotune.space import Objective, Space
from autotune.trial import Measured, Outcome, outcome_from_json, outcome_to_json
from streaming_core.settings import Settings

__all__ = ["ALONE", "Peers", "Shared", "carried_over"]

_POLL_S = 0.5
_EXPLORING = (Purpose.SEARCH.value, Purpose.RANK.value)


class Peers(Protocol):
    """One trial at a time: `begin`, then `end` or `drop`."""

    @property
    def known(self) -> Mapping[int | str, Record]:
        """What others have measured, as far as it was taken in, by a name of the trial."""

    @property
    def busy(self) -> Collection[Settings]:
        """What others were measuring at the last `news`: not to be proposed."""

    def news(self) -> Sequence[str]:
        """Takes in what others have finished since; the names that are new in `known`."""

    def begin(self, record: Record, position: int) -> Outcome | None:
        """Announces a trial, its outcome still open.  What another process found for it, if that was quicker to begin:
        then it is not to be measured.
        """

    def end(self, record: Record) -> None: ...

    def drop(self) -> None: ...

    def agree(self, name: str, value: Any) -> Any:
        """Of what all must have alike, what the first of them said."""


class Alone:
    """Nobody else works on the study."""

    known: Mapping[int | str, Record] = {}
    busy: Collection[Settings] = ()

    def news(self) -> Sequence[str]:
        return ()

    def begin(self, record: Record, position: int) -> Outcome | None:
        return None

    def end(self, record: Record) -> None:
        return

    def drop(self) -> None:
        return

    def agree(self, name: str, value: Any) -> Any:
        return value


ALONE = Alone()


class Shared:
    """Processes that share a database."""

    def __init__(
        self, study: SharedStudy, owner: str, space: Space, objective: Objective, records: Sequence[Record]
    ) -> None:
        """`owner` names this process and its journal, whose `records` the database may lack after a kill."""
        self._study = study
        self._owner = owner
        self._space = space
        self._objective = objective
        self._records = records  # grows with the journal
        self._position = 0
        self.known: dict[int | str, Record] = {}
        self.busy: frozenset[Settings] = frozenset()
        self._repair()

    def agree(self, name: str, value: Any) -> Any:
        return self._study.agree(name, value)

    def news(self) -> Sequence[str]:
        trials = self._study.trials()
        self.busy = frozenset(_settings(each) for each in self._others(trials) if each.state is TrialState.RUNNING)
        return self._take_in(trials)

    def begin(self, record: Record, position: int) -> Outcome | None:
        self._position = position
        number = self._study.begin(self._attrs(record, position), record.params, self._shape(record))
        if record.purpose is not Purpose.SEARCH:  # the default, races: measured by each
            return None
        before = [each.number for each in self._rivals(self._study.trials(), record) if each.number < number]
        if not before:
            return None
        self._study.drop()
        found = self._awaited(record, before[0])
        return self.begin(record, position) if found is None else found

    def end(self, record: Record) -> None:
        if not self._study.end(_ended(record), self._score(record.outcome)):
            self._add(self._position, record)

    def drop(self) -> None:
        self._study.drop()

    def _others(self, trials: Iterable[FrozenTrial]) -> Iterator[FrozenTrial]:
        """Trials of the search that others began.  Defaults and races say how fast a machine is, not what to try."""
        for trial in trials:
            if trial.user_attrs["owner"] != self._owner and trial.user_attrs["purpose"] in _EXPLORING:
                yield trial

    def _rivals(self, trials: Iterable[FrozenTrial], record: Record) -> Iterator[FrozenTrial]:
        """Trials of these settings that were not known when they were proposed."""
        settings = Settings.from_mapping(record.settings)
        for trial in self._others(trials):
            if _name(trial) not in self.known and _settings(trial) == settings:
                yield trial

    def _awaited(self, record: Record, number: int) -> Outcome | None:
        """The outcome of another's trial; None when it was given up."""
        while True:
            trials = self._study.trials()
            rival = next((each for each in self._rivals(trials, record) if each.number == number), None)
            if rival is None:
                return None
            if rival.state is not TrialState.RUNNING:
                self.known[_name(rival)] = self._carried_over(rival, trials)
                return self.known[_name(rival)].outcome
            time.sleep(_POLL_S)

    def _take_in(self, trials: Sequence[FrozenTrial]) -> list[str]:
        ended = (each for each in self._others(trials) if each.state is not TrialState.RUNNING)
        found = [each for each in ended if _name(each) not in self.known]
        for trial in found:
            self.known[_name(trial)] = self._carried_over(trial, trials)
        return [_name(each) for each in found]

    def _carried_over(self, trial: FrozenTrial, trials: Iterable[FrozenTrial]) -> Record:
        record, owner = _record(trial), trial.user_attrs["owner"]
        ended = (each for each in trials if each.state is not TrialState.RUNNING)
        ours = _defaults(self._records)
        theirs = _defaults(_record(each) for each in ended if each.user_attrs["owner"] == owner)
        if not (isinstance(record.outcome, Measured) and ours and theirs):
            return record
        return replace(record, outcome=carried_over(record.outcome, theirs, ours))

    def _repair(self) -> None:
        """What this process's last life left undone: the journal is the truth."""
        mine = {each.user_attrs["position"]: each for each in self._study.trials() if self._is_mine(each)}
        for position, record in enumerate(self._records):
            trial = mine.pop(position, None)
            if trial is None:
                self._add(position, record)
            elif trial.state is TrialState.RUNNING:
                self._study.finish(trial._trial_id, _ended(record), self._score(record.outcome))
        for trial in mine.values():
            self._study.give_up(trial._trial_id)

    def _is_mine(self, trial: FrozenTrial) -> bool:
        return bool(trial.user_attrs["owner"] == self._owner)

    def _add(self, position: int, record: Record) -> None:
        attrs = {**self._attrs(record, position), **_ended(record)}
        self._study.add(attrs, record.params, self._shape(record), self._score(record.outcome))

    def _shape(self, record: Record) -> Mapping[str, Any]:
        return self._space.distributions(record.params)

    def _attrs(self, record: Record, position: int) -> dict[str, Any]:
        plain = record.to_json()
        begun = {name: plain[name] for name in ("purpose", "settings", "started_at")}
        return {"owner": self._owner, "position": position, **begun}

    def _score(self, outcome: Outcome) -> float | None:
        return score_of(outcome, self._objective) if isinstance(outcome, Measured) else None


def carried_over(measured: Measured, theirs: Sequence[Measured], ours: Sequence[Measured]) -> Measured:
    """A trial of another machine at this one's speed, by the defaults of both."""
    faster = _median([each.decode_tps for each in ours]) / _median([each.decode_tps for each in theirs])
    longer = _median([each.first_token_s for each in ours]) / _median([each.first_token_s for each in theirs])
    return replace(
        measured,
        samples=tuple(each * faster for each in measured.samples),
        prefill_s=tuple(each * longer for each in measured.prefill_s),
        token_p50_s=measured.token_p50_s / faster,
        token_p99_s=measured.token_p99_s / faster,
    )


def _median(values: Sequence[float]) -> float:
    return statistics.median(values)


def _name(trial: FrozenTrial) -> str:
    return f"{trial.user_attrs['owner']}-{trial.user_attrs['position']}"


def _defaults(records: Iterable[Record]) -> list[Measured]:
    return [each.outcome for each in records if each.purpose is Purpose.DEFAULT and isinstance(each.outcome, Measured)]


def _settings(trial: FrozenTrial) -> Settings:
    return Settings.from_mapping(trial.user_attrs["settings"])


def _ended(record: Record) -> dict[str, Any]:
    return {"outcome": outcome_to_json(record.outcome), "duration_s": record.duration_s}


def _record(trial: FrozenTrial) -> Record:
    attrs = trial.user_attrs
    try:
        return Record(
            purpose=Purpose(attrs["purpose"]),
            params=trial.params,
            settings=attrs["settings"],
            outcome=outcome_from_json(attrs["outcome"]),
            started_at=attrs["started_at"],
            duration_s=attrs["duration_s"],
        )
    except (KeyError, ValueError) as err:
        raise StudyInvalid(
            f"--storage: trial {trial.number} is not of this program ({err}); name another database"
        ) from err
