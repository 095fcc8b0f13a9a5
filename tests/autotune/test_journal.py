from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from tuner_fakes import hill, identity, workbench, workload

from autotune.errors import StudyInvalid
from autotune.journal import Journal, Purpose, Record, known_repeat_s, set_aside
from autotune.testing import FakeRunner, hang, killed, out_of_memory
from autotune.trial import Outcome, Procedure, TrialSpec, outcome_from_json, outcome_to_json
from autotune.workload import Workload
from streaming_core.errors import DiskFull
from streaming_core.settings import Settings


def measured() -> Outcome:
    return FakeRunner(hill).run(spec())


def spec() -> TrialSpec:
    return TrialSpec(model="demo", settings=Settings().to_mapping(), workload=workload(), cache_dir=Path("/somewhere"))


def record(outcome: Outcome | None = None) -> Record:
    return Record(
        purpose=Purpose.SEARCH,
        params={"reading.threads": 2},
        settings=Settings().to_mapping(),
        outcome=outcome or measured(),
        started_at="2026-01-01T00:00:00+00:00",
        duration_s=1.5,
    )


def written(folder: Path, count: int = 3) -> Path:
    with Journal(folder) as journal:
        journal.start(identity(), budget_bytes=7)
        for _ in range(count):
            journal.append(record())
    return journal.path


def test_journal_reads_what_it_wrote(tmp_path: Path) -> None:
    written(tmp_path)
    with Journal(tmp_path) as journal:
        assert journal.header["budget_bytes"] == 7
        assert journal.records == [record()] * 3


@pytest.mark.parametrize("outcome", [measured(), out_of_memory(), killed(), hang()])
def test_every_outcome_survives_json(outcome: Outcome) -> None:
    assert outcome_from_json(json.loads(json.dumps(outcome_to_json(outcome)))) == outcome


def test_spec_survives_json() -> None:
    given = TrialSpec(**{**{f: getattr(spec(), f) for f in spec().__slots__}, "procedure": Procedure(repeats=7)})
    assert TrialSpec.from_json(json.loads(json.dumps(given.to_json()))) == given


@pytest.mark.parametrize("cut", [1, 20, 300])
def test_a_torn_last_line_costs_that_trial_only(tmp_path: Path, cut: int) -> None:
    path = written(tmp_path)
    path.write_bytes(path.read_bytes()[:-cut])
    with Journal(tmp_path) as journal:
        assert len(journal.records) == 2
        journal.append(record(killed()))
    with Journal(tmp_path) as journal:
        assert [type(each.outcome).__name__ for each in journal.records] == ["Measured", "Measured", "Crashed"]


def test_a_journal_torn_in_its_first_line_starts_over(tmp_path: Path) -> None:
    path = written(tmp_path, 0)
    path.write_bytes(path.read_bytes()[:-1])
    with Journal(tmp_path) as journal:
        assert not journal.header
        journal.start(identity())


@pytest.mark.parametrize(
    "line", [b"\0\0\0\n", b"{}\n", b"[1]\n", b'{"purpose": "search", "outcome": {"kind": "won"}}\n', b"\xff\n"]
)
def test_a_damaged_line_is_one_clear_error(tmp_path: Path, line: bytes) -> None:
    path = written(tmp_path, 1)
    path.write_bytes(path.read_bytes() + line)
    with pytest.raises(StudyInvalid, match=r"trials\.jsonl:3: .*--fresh") as error:
        Journal(tmp_path)
    assert "\n" not in str(error.value)


def test_a_file_of_something_else_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "trials.jsonl").write_text('{"format": 99}\n')
    with pytest.raises(StudyInvalid, match=r"trials\.jsonl:1: .*format 1"):
        Journal(tmp_path)


def test_two_processes_cannot_work_on_one_study(tmp_path: Path) -> None:
    with Journal(tmp_path), pytest.raises(StudyInvalid, match="another mlx-autotune"):
        Journal(tmp_path)
    Journal(tmp_path).close()


def test_identity_decides_the_folder() -> None:
    assert identity().name == identity().name
    assert identity(model="owner/Some Model-4bit").name.startswith("some-model-4bit-")
    names = {identity(**{key: "other"}).name for key in ("fingerprint", "hardware", "workload", "version", "objective")}
    assert len(names | {identity().name}) == 6


def test_an_old_study_is_kept_beside_the_new_one(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / "study").mkdir()
        assert set_aside(tmp_path / "study") == tmp_path / f"study.old-{number}"
    assert set_aside(tmp_path / "study") is None


def test_workload_hash_is_about_the_work_not_the_name() -> None:
    same = Workload.from_json({**workload().to_json(), "name": "other"})
    longer = Workload.from_json({**workload().to_json(), "decode_tokens": 99})
    assert same.content_hash == workload().content_hash != longer.content_hash


def test_last_text_is_continued_by_the_first() -> None:
    assert workload().passages[-1].continuation == "one two three"


def test_a_folder_that_cannot_be_made_and_a_full_disk_are_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StudyInvalid, match="Not a directory; check"):
        Journal(tmp_path / "file" / "studies" / "study")
    with Journal(tmp_path / "study") as journal:

        def full(fd: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(DiskFull, match="no room to write trials down"):
            journal.start(identity())


def test_timings_of_earlier_runs_are_found_by_model_and_machine_and_damage_is_passed_over(tmp_path: Path) -> None:
    with workbench(tmp_path / "studies" / "a", FakeRunner(hill, trial_s=12.0)).journal as journal:
        header = {"identity": {"fingerprint": "abc", "hardware": "here", "procedure": {"repeats": 3}}}
        record = {"duration_s": 12.0, "outcome": {"kind": "measured"}}
        journal.path.write_text(json.dumps(header) + "\n" + json.dumps(record) + "\n")
    (tmp_path / "studies" / "b").mkdir()
    (tmp_path / "studies" / "b" / "trials.jsonl").write_text("no JSON")
    assert known_repeat_s(tmp_path / "studies", "abc", "here") == 4.0
    assert known_repeat_s(tmp_path / "studies", "abc", "elsewhere") is None


def test_a_pipe_in_the_place_of_a_journal_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "trials.jsonl")
    with pytest.raises(StudyInvalid, match="not a regular file"):
        Journal(tmp_path)
