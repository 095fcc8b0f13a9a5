"""An Optuna study in a database that several machines read and write: every trial of theirs, who runs it, how it ended.

Next to it is a second study, `<name>/agreed`, of what must be the same for all: the first to say something is right.
Which of two was first is decided by the numbers of trials, which the database gives out one at a time.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import optuna
import sqlalchemy.exc
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from autotune.errors import RequestInvalid, StudyInvalid

__all__ = ["SharedStudy", "without_password"]

_BEAT_S = 10.0  # between two signs of life
_GONE_S = 60  # without one
_LOCKED_S = 30.0  # how long SQLite waits for another process
_OPENINGS = 5  # two that make the tables of an empty database at once: one of them is refused
_WRONG_URL = (sqlalchemy.exc.ArgumentError, ImportError, ValueError)
_REFUSED = (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError, RuntimeError)


class SharedStudy:
    """One trial at a time may be in flight.  Every method raises StudyInvalid when the database refuses."""

    def __init__(self, url: str, name: str) -> None:
        """Raises RequestInvalid where the address is none."""
        self._where = without_password(url)
        with _said(self._where):
            self._storage = _opened(url)
            self._study = _study(self._storage, name)
            self._agreed = _study(self._storage, f"{name}/agreed")
        self._study_id = self._storage.get_study_id_from_name(name)
        self._flight: _Flight | None = None

    @property
    def where(self) -> str:
        """The address, without a password."""
        return self._where

    def agree(self, name: str, value: Any) -> Any:
        """What the first of all processes said; `value` if that is this one.  Plain data."""
        with _said(self._where):
            found = self._first(name)
            if found is None:
                self._agreed.add_trial(create_trial(state=TrialState.PRUNED, user_attrs={name: [value]}))
                found = self._first(name)
            assert found is not None
            return found[0]

    def _first(self, name: str) -> list[Any] | None:
        notes = sorted(self._agreed.get_trials(deepcopy=False), key=lambda each: each.number)
        return next((each.user_attrs[name] for each in notes if name in each.user_attrs), None)

    def trials(self) -> list[FrozenTrial]:
        """Those running or ended with an outcome, by number; running ones of processes that are gone are given up."""
        with _said(self._where):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                optuna.storages.fail_stale_trials(self._study)
            found = self._study.get_trials(deepcopy=False)
            return sorted((each for each in found if each.state is not TrialState.FAIL), key=lambda each: each.number)

    def begin(self, attrs: Mapping[str, Any], params: Mapping[str, Any], shape: Mapping[str, BaseDistribution]) -> int:
        """Makes a running trial, at once visible to all, and says from then on that its process lives."""
        assert self._flight is None, "a trial is in flight"
        running = create_trial(
            state=TrialState.RUNNING, params=dict(params), distributions=dict(shape), user_attrs=dict(attrs)
        )
        with _said(self._where):
            trial_id = self._storage.create_new_trial(self._study_id, running)
            self._storage.record_heartbeat(trial_id)
            number = self._storage.get_trial_number_from_id(trial_id)
        self._flight = _Flight(self._storage, trial_id)
        return number

    def end(self, attrs: Mapping[str, Any], score: float | None) -> bool:
        """The trial in flight has ended, without a score if it failed.  False: it had been given up as stale."""
        assert self._flight is not None, "no trial is in flight"
        trial_id = self._flight.land()
        self._flight = None
        return self.finish(trial_id, attrs, score)

    def drop(self) -> None:
        """The trial in flight, if there is one, was not measured."""
        if self._flight is not None:
            trial_id = self._flight.land()
            self._flight = None
            self.give_up(trial_id)

    def finish(self, trial_id: int, attrs: Mapping[str, Any], score: float | None) -> bool:
        """False: it was given up before."""
        with _said(self._where):
            try:
                for name, value in attrs.items():
                    self._storage.set_trial_user_attr(trial_id, name, value)
                state = TrialState.COMPLETE if score is not None else TrialState.PRUNED
                self._storage.set_trial_state_values(trial_id, state, None if score is None else [score])
            except optuna.exceptions.UpdateFinishedTrialError:
                return False
        return True

    def give_up(self, trial_id: int) -> None:
        with _said(self._where):
            try:
                self._storage.set_trial_state_values(trial_id, TrialState.FAIL)
            except optuna.exceptions.UpdateFinishedTrialError:  # another process did
                return

    def add(
        self,
        attrs: Mapping[str, Any],
        params: Mapping[str, Any],
        shape: Mapping[str, BaseDistribution],
        score: float | None,
    ) -> None:
        """A trial that has ended."""
        state = TrialState.COMPLETE if score is not None else TrialState.PRUNED
        with _said(self._where):
            self._study.add_trial(
                create_trial(
                    state=state, value=score, params=dict(params), distributions=dict(shape), user_attrs=dict(attrs)
                )
            )


class _Flight:
    """Signs of life while a trial runs.  Optuna gives them only within `study.optimize`."""

    def __init__(self, storage: optuna.storages.RDBStorage, trial_id: int) -> None:
        self._storage = storage
        self._trial_id = trial_id
        self._landed = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def land(self) -> int:
        self._landed.set()
        self._thread.join()
        return self._trial_id

    def _beat(self) -> None:
        while not self._landed.wait(_BEAT_S):
            try:
                self._storage.record_heartbeat(self._trial_id)
            except _REFUSED:  # a database that is away for a moment; one that stays away is found out at the end
                continue


def _opened(url: str) -> optuna.storages.RDBStorage:
    address = sqlalchemy.engine.make_url(url)
    if address.get_backend_name() == "sqlite" and address.database in (None, "", ":memory:"):
        raise ValueError("it names no file, and a database in memory is shared with nobody")
    options = {"connect_args": {"timeout": _LOCKED_S}} if url.startswith("sqlite:") else {"pool_pre_ping": True}
    for attempt in range(_OPENINGS):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                return optuna.storages.RDBStorage(url, options, heartbeat_interval=int(_BEAT_S), grace_period=_GONE_S)
        except (sqlalchemy.exc.OperationalError, sqlalchemy.exc.IntegrityError) as err:
            if ("exist" not in str(err) and "UNIQUE" not in str(err)) or attempt == _OPENINGS - 1:
                raise
    raise AssertionError("unreachable")


def _study(storage: optuna.storages.RDBStorage, name: str) -> optuna.Study:
    return optuna.create_study(storage=storage, study_name=name, direction="maximize", load_if_exists=True)


def without_password(url: str) -> str:
    """The address as it may be shown."""
    try:
        return sqlalchemy.engine.make_url(url).render_as_string(hide_password=True)
    except (sqlalchemy.exc.ArgumentError, ValueError):
        return "the address"


@contextmanager
def _said(where: str) -> Iterator[None]:
    """What the database refuses, in words."""
    try:
        yield
    except _WRONG_URL as err:
        remedy = "give a database such as sqlite:////shared/folder/study.db, and install the driver that it needs"
        raise RequestInvalid(f"--storage {where}: {_innermost(err)}; {remedy}") from err
    except _REFUSED as err:
        remedy = "check that it is there, writable and not locked, then run again: the trials so far are kept"
        raise StudyInvalid(f"--storage {where}: {_innermost(err)}; {remedy}") from err


def _innermost(err: BaseException) -> str:
    while err.__cause__ is not None:  # SQLAlchemy and Optuna wrap what the driver says in its statement
        err = err.__cause__
    return " ".join(str(err).split())[:200]
