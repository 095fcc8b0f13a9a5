"""Finds a study and reads it without disturbing a run that may be at work on it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autotune.errors import StudyInvalid
from autotune.journal import Purpose, Record, read_journal
from autotune.judge import Judge
from autotune.space import Objective
from autotune.trial import Infeasible, Measured, TimedOut
from streaming_core.errors import SettingsError
from streaming_core.models.resolve import model_names
from streaming_core.settings import Settings

__all__ = ["Study", "find_study", "read_study"]

_FILE = "trials.jsonl"
_COUNTED = ("tokens", "hits", "misses", "demand_bytes", "prefetch_bytes", "wait_s")


@dataclass(frozen=True, slots=True)
class Study:
    """At least one trial of the default was measured."""

    folder: Path
    identity: Mapping[str, Any]
    budget_bytes: int | None
    shared: bool  # other machines have trials of it too
    records: Sequence[Record]

    @property
    def default_settings(self) -> Mapping[str, Any]:
        return next(each.settings for each in self.records if each.purpose is Purpose.DEFAULT)

    @property
    def objective(self) -> Objective:
        return Objective(self.identity["objective"])

    def judge(self) -> Judge:
        """As the search had it in the end."""
        judge = Judge(self.objective, self.budget_bytes)
        for record in self.records:
            if record.purpose is Purpose.DEFAULT and isinstance(record.outcome, Measured):
                judge.learn_default(record.outcome)
        return judge


def find_study(studies: Path, named: str | None, model: str | None) -> Path:
    """The folder of the study: a path or a name under `studies`, else the newest of the model.  Raises StudyInvalid."""
    if named is not None:
        for folder in (Path(named), studies / named):
            if (folder / _FILE).is_file():
                return folder
        raise StudyInvalid(f"{named}: no such study, nor in {studies}; {_there(studies)}")
    wanted = {name.rpartition("/")[2] if "/" not in str(model) else name for name in model_names(str(model))}
    found = [path for path in _folders(studies) if wanted & _names_in(path)]
    if not found:
        raise StudyInvalid(f"{studies}: no study of {model}; {_there(studies)}")
    return max(found, key=lambda path: (path / _FILE).stat().st_mtime)


def read_study(folder: Path) -> Study:
    """Raises StudyInvalid: damaged, or nothing was measured yet."""
    header, records = read_journal(folder)
    try:
        identity = header["identity"]
        study = Study(folder, identity, header.get("budget_bytes"), "owner" in header, records)
        for key in ("model", "fingerprint", "hardware", "workload", "version"):
            if not isinstance(identity[key], str):
                raise TypeError(f"{key} must be text")
        Objective(identity["objective"])
    except (KeyError, TypeError, ValueError) as err:
        raise StudyInvalid(f"{folder / _FILE}:1: not a study of this program ({err}); name another study") from err
    for line, record in enumerate(records, 2):
        try:
            _check(record)
        except (SettingsError, TypeError, ValueError) as err:
            raise StudyInvalid(f"{folder / _FILE}:{line}: not a trial of this program ({err}); name another") from err
    if not any(each.purpose is Purpose.DEFAULT and isinstance(each.outcome, Measured) for each in records):
        raise StudyInvalid(
            f"{folder}: nothing was measured yet: no trial of the default came to its end; let `mlx-autotune run` go on"
        )
    return study


def _check(record: Record) -> None:
    """What the journal takes as it comes, but a report computes with."""
    Settings.from_mapping(record.settings)
    _numbers(duration_s=record.duration_s)
    if not isinstance(record.started_at, str) or not isinstance(record.params, Mapping):
        raise TypeError("started_at must be text, params a mapping")
    outcome = record.outcome
    match outcome:
        case Measured():
            if not all(isinstance(each, Mapping) for each in (outcome.effective, *outcome.effective.values())):
                raise TypeError("effective must be settings by section")
            counters = asdict(outcome.counters)
            _numbers(**{key: counters[key] for key in _COUNTED}, needed_bytes=outcome.needed_bytes)
            _numbers(prompt_tokens=outcome.prompt_tokens, swap_in_bytes=outcome.swap_in_bytes or 0)
        case Infeasible():
            _numbers(excess_bytes=outcome.excess_bytes)
        case TimedOut():
            _numbers(after_s=outcome.after_s)


def _numbers(**values: object) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise TypeError(f"{name} must be a number from 0 up, got {value!r:.60}")


def _folders(studies: Path) -> list[Path]:
    """Without those that were set aside."""
    found = studies.glob(f"*/{_FILE}")
    return sorted(path.parent for path in found if ".old-" not in path.parent.name)


def _names_in(folder: Path) -> set[str]:
    try:
        with open(folder / _FILE, "rb") as file:
            name = json.loads(file.readline())["identity"]["model"]
    except (OSError, ValueError, KeyError, TypeError):
        return set()
    return {str(name), str(name).rpartition("/")[2]}


def _there(studies: Path) -> str:
    names = [path.name for path in _folders(studies)]
    if not names:
        return "there is none yet: `mlx-autotune run` begins one"
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"there: {', '.join(names[:5])}{more}"
