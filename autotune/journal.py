"""Every trial of a study, one JSON line each, written before anything is concluded from it.

`<cache_dir>/studies/<id>/trials.jsonl` starts with a line about the study; each further line is a `Record`.  A kill at
any time loses at most the trial in flight: a line without its end is cut off when the file is opened again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

from autotune.errors import StudyInvalid
from autotune.knobs import Params
from autotune.trial import Outcome, outcome_from_json, outcome_to_json
from streaming_core.errors import DiskFull

__all__ = ["Journal", "Purpose", "Record", "StudyIdentity", "known_repeat_s", "read_journal", "set_aside"]

_FORMAT = 1
_FILE = "trials.jsonl"
_ADVICE = "pass --fresh to start over (the old files are kept beside the new ones)"


class Purpose(Enum):
    """Why a trial was run."""

    DEFAULT = "default"  # the default again: noise, drift
    RANK = "rank"  # guesses for every layer: which layers gain most from them
    SEARCH = "search"
    RACE = "race"  # finalists and default in shuffled rounds
    PAIR = "pair"  # winner and default, alternating

    @property
    def explores(self) -> bool:
        """Whether it says something about a new point; races repeat what is known."""
        return self in (Purpose.DEFAULT, Purpose.RANK, Purpose.SEARCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyIdentity:
    """Trials can be compared, and a study carried on, while all of this is equal."""

    model: str
    fingerprint: str
    hardware: str
    workload: str  # content hash
    version: str  # of this program
    objective: str
    procedure: Mapping[str, Any]
    base: Mapping[str, Any]  # settings the search starts from
    fixed: tuple[str, ...]  # keys that are not searched

    @property
    def name(self) -> str:
        """The study's folder."""
        slug = re.sub(r"[^a-z0-9]+", "-", self.model.lower().rsplit("/", 1)[-1]).strip("-")[:40] or "model"
        return f"{slug}-{sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:10]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One trial as it was run."""

    purpose: Purpose
    params: Params
    settings: Mapping[str, Any]
    outcome: Outcome
    started_at: str  # ISO 8601, UTC
    duration_s: float

    def to_json(self) -> dict[str, Any]:
        return {
            "purpose": self.purpose.value,
            "params": dict(self.params),
            "settings": dict(self.settings),
            "outcome": outcome_to_json(self.outcome),
            "started_at": self.started_at,
            "duration_s": round(self.duration_s, 3),
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Record:
        return cls(**{**raw, "purpose": Purpose(raw["purpose"]), "outcome": outcome_from_json(raw["outcome"])})


class Journal:
    """The open journal of one study.  Holds a lock: two processes tuning the same thing disturb each other anyway."""

    def __init__(self, folder: Path) -> None:
        """Creates the folder when there is none.

        Raises:
            StudyInvalid: another process has it open, or it cannot be read or written.
            DiskFull: no room for it.
        """
        self.folder = folder
        self.records: list[Record] = []
        self.header: dict[str, Any] = {}
        with _said(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(folder)
            try:
                self._read()
                self._file: IO[bytes] = open(self.path, "ab")  # noqa: SIM115  closed by close()
            except BaseException:
                self._lock.close()
                raise

    @property
    def path(self) -> Path:
        return self.folder / _FILE

    def start(self, identity: StudyIdentity, **facts: Any) -> None:
        """Writes the first line of a new journal.  `facts` are what must stay the same when it is carried on."""
        assert not self.header, "started twice"
        self.header = {"format": _FORMAT, "identity": asdict(identity), **facts}
        self._write(self.header)

    def append(self, record: Record) -> None:
        """On disk when this returns.  Raises DiskFull, StudyInvalid."""
        self._write(record.to_json())
        self.records.append(record)

    def close(self) -> None:
        try:
            with _said(self.path):
                self._file.close()  # tries again to write what a full disk refused
        finally:
            self._lock.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, value: Mapping[str, Any]) -> None:
        with _said(self.path):
            self._file.write(json.dumps(value, sort_keys=True).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())

    def _read(self) -> None:
        if not self.path.exists():
            return
        if not self.path.is_file():
            raise StudyInvalid(f"{self.path}: not a regular file; remove it and run again")
        content = self.path.read_bytes()
        whole, end, torn = content.rpartition(b"\n")
        if torn:
            os.truncate(self.path, len(content) - len(torn))
        if end:
            self.header, self.records = _parsed(whole, self.path, _ADVICE)


def read_journal(folder: Path) -> tuple[dict[str, Any], list[Record]]:
    """Header and trials so far, without the lock and without changing anything: a run may be at work on the study.

    Raises StudyInvalid: there is no journal, or it is damaged.
    """
    path = folder / _FILE
    with _said(path):
        whole, end, _ = path.read_bytes().rpartition(b"\n")
    if not end:
        raise StudyInvalid(f"{path}: is empty; `mlx-autotune run` writes trials there")
    return _parsed(whole, path, "name another study")


def _parsed(whole: bytes, path: Path, advice: str) -> tuple[dict[str, Any], list[Record]]:
    header: dict[str, Any] = {}
    records: list[Record] = []
    for number, line in enumerate(whole.split(b"\n"), start=1):
        try:
            raw = json.loads(line)
            if number == 1:
                header = _header(raw)
            else:
                records.append(Record.from_json(raw))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, StudyInvalid) as err:
            raise StudyInvalid(f"{path}:{number}: not a trial of this program ({err}); {advice}") from err
    return header, records


def known_repeat_s(studies: Path, fingerprint: str, hardware: str) -> float | None:
    """What a repeat took, its share of the loading included: the median of earlier trials of this model and machine.

    Looks without a lock; a journal that cannot be read says nothing.
    """
    found: list[float] = []
    for path in studies.glob(f"*/{_FILE}"):
        try:
            header, *records = map(json.loads, path.read_text(encoding="utf-8").splitlines())
            identity = header["identity"]
            if (identity["fingerprint"], identity["hardware"]) == (fingerprint, hardware):
                repeats = identity["procedure"]["repeats"]
                found += [each["duration_s"] / repeats for each in records if each["outcome"]["kind"] == "measured"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return statistics.median(found) if found else None


def _header(raw: Any) -> dict[str, Any]:
    if not isinstance(raw, dict) or raw.get("format") != _FORMAT:
        raise StudyInvalid(f"format {_FORMAT} is expected in the first line")
    return raw


@contextlib.contextmanager
def _said(path: Path) -> Iterator[None]:
    """What the system refuses, in words."""
    try:
        yield
    except OSError as err:
        if err.errno == errno.ENOSPC:
            raise DiskFull(f"{path}: no room to write trials down; free space there and run again") from err
        raise StudyInvalid(
            f"{path}: {err.strerror or err}; check its permissions or choose another --cache-dir"
        ) from err


def _locked(folder: Path) -> IO[bytes]:
    lock = open(folder / "lock", "ab")  # noqa: SIM115  held until close()
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as err:
        lock.close()
        raise StudyInvalid(f"{folder}: another mlx-autotune is working on this study; wait for it or end it") from err
    return lock


def set_aside(folder: Path) -> Path | None:
    """Renames the folder of an earlier study out of the way.  None when there is none.  Raises StudyInvalid."""
    if not folder.exists():
        return None
    number = 1
    while (aside := folder.with_name(f"{folder.name}.old-{number}")).exists():
        number += 1
    with _said(folder), contextlib.suppress(FileNotFoundError):
        folder.rename(aside)
    return aside
