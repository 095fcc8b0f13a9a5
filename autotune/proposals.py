"""The Optuna study behind the search: `<study folder>/study.sqlite`, for its sampler and for dashboards.

The journal is the truth.  Whatever the database lacks is added from it when it is opened, so a kill between the two
writes, or a lost database, costs nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import optuna
import sqlalchemy.exc
from optuna.trial import TrialState, create_trial
from sqlalchemy import event

from autotune.errors import StudyInvalid
from autotune.journal import Record
from autotune.judge import Judge, Judgement
from autotune.knobs import Params
from autotune.space import Space

__all__ = ["Proposals"]

_REFUSED = (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError, OSError)
_BROKEN = (*_REFUSED, RuntimeError)
_Key = int | str  # a position in the journal, or the name of another process's trial
_RECORD = "record"  # user attribute: a key
_STARTUP = 10  # trials before the model of the landscape is worth asking


class Proposals:
    """Asks TPE for proposals, and tells it about every trial, wherever the idea came from.

    Failures are told as completed trials with a pessimistic value and a broken constraint: Optuna forgets failed ones,
    and would propose the same region again and again.
    """

    def __init__(self, space: Space, study: optuna.Study, path: Path) -> None:
        self._space = space
        self._study = study
        self._path = path

    @classmethod
    def open(
        cls,
        folder: Path,
        space: Space,
        records: Sequence[Record],
        judge: Judge,
        *,
        seed: int,
        others: Mapping[_Key, Record] = {},
    ) -> Proposals:
        """`records` are the journal's; those of races stay out, they say nothing about a new point.  `others` are
        those of other processes.

        Here and in every other method StudyInvalid is raised when the database cannot be written.
        """
        path = folder / "study.sqlite"
        # The number of trials is in the seed: a search that is carried on must not propose its first ideas again.
        sampler = optuna.samplers.TPESampler(seed=seed + len(records), n_startup_trials=_STARTUP)
        name = f"space-{space.content_hash}"
        known: dict[_Key, Record] = {**dict(enumerate(records)), **others}
        try:
            return cls._opened(path, space, name, sampler, known, judge)
        except (*_BROKEN, StudyInvalid):  # it holds nothing that the journal does not
            with _said(path):
                for suffix in ("", "-wal", "-shm"):
                    path.with_name(path.name + suffix).unlink(missing_ok=True)
                return cls._opened(path, space, name, sampler, known, judge)

    @classmethod
    def _opened(
        cls,
        path: Path,
        space: Space,
        name: str,
        sampler: optuna.samplers.BaseSampler,
        records: Mapping[_Key, Record],
        judge: Judge,
    ) -> Proposals:
        proposals = cls(space, _study(path, name, sampler), path)
        proposals._repair(records, judge)
        return proposals

    @classmethod
    def in_memory(cls, space: Space, records: Sequence[Record], judge: Judge, *, seed: int) -> Proposals:
        """The same without a database: for a search that nobody carries on."""
        sampler = optuna.samplers.TPESampler(seed=seed + len(records), n_startup_trials=_STARTUP)
        proposals = cls(space, optuna.create_study(sampler=sampler, direction="maximize"), Path())
        proposals._repair(dict(enumerate(records)), judge)
        return proposals

    def ask(self) -> tuple[optuna.Trial, Params]:
        with _said(self._path):
            trial = self._study.ask()
            return trial, self._space.canonical(self._space.suggest(trial))

    def tell(self, trial: optuna.Trial, judgement: Judgement, record: _Key) -> None:
        """`record` is the position of the trial in the journal, or the name of another process's trial."""
        with _said(self._path):
            trial.set_user_attr(_RECORD, record)
            for name, value in _told(judgement).items():
                trial.set_constraint(name, value)
            self._study.tell(trial, judgement.score)

    def drop(self, trial: optuna.Trial) -> None:
        """A proposal that was not measured."""
        with _said(self._path):
            self._study.tell(trial, state=TrialState.FAIL)

    def add(self, params: Params, judgement: Judgement, record: _Key) -> None:
        """A trial that was not proposed by `ask`."""
        told = create_trial(
            state=TrialState.COMPLETE,
            value=judgement.score,
            params=dict(params),
            distributions=self._space.distributions(params),
            constraints=_told(judgement),
            user_attrs={_RECORD: record},
        )
        with _said(self._path):
            self._study.add_trial(told)

    def _repair(self, records: Mapping[_Key, Record], judge: Judge) -> None:
        known = set()
        for trial in self._study.get_trials(deepcopy=False):
            if trial.state is TrialState.RUNNING:  # of a process that is gone; left alone, it would repel the sampler
                self._study.tell(trial.number, state=TrialState.FAIL)
            elif trial.state is TrialState.COMPLETE:
                known.add(trial.user_attrs.get(_RECORD))
        for key, record in records.items():
            if record.purpose.explores and key not in known:
                self.add(self._space.canonical(record.params), judge.judge(record.outcome), key)


@contextmanager
def _said(path: Path) -> Iterator[None]:
    """What the database refuses, in words."""
    try:
        yield
    except _REFUSED as err:
        innermost: BaseException = err  # SQLAlchemy and Optuna wrap what the driver says in its statement
        while innermost.__cause__ is not None:
            innermost = innermost.__cause__
        reason = " ".join(str(innermost).split())[:200]
        raise StudyInvalid(f"{path}: {reason}; check the disk and run again: the trials so far are kept") from err


def _told(judgement: Judgement) -> dict[str, float]:
    """What is broken.  One that is kept is told too, or Optuna would take the study to be without constraints."""
    return {name: judgement.constraints[name] for name in judgement.broken} or {"failed": 0.0}


def _study(path: Path, name: str, sampler: optuna.samplers.BaseSampler) -> optuna.Study:
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    event.listen(storage.engine, "connect", _hasten)
    storage.engine.dispose()  # the connection that made the tables was not hastened
    return optuna.create_study(
        storage=storage, study_name=name, sampler=sampler, direction="maximize", load_if_exists=True
    )


def _hasten(connection: sqlite3.Connection, _: object) -> None:
    """No waiting for the disk: a trial writes some thirty times, and what a power cut takes is in the journal."""
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=OFF")
