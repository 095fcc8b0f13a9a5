"""Several processes that share a study through a database."""

from __future__ import annotations

import itertools
import json
import os
import sqlite3
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState
from tuner_fakes import hill, tuned

from autotune.cli import main
from autotune.commands.run import _shown
from autotune.errors import RequestInvalid, StudyInvalid
from autotune.events import Notice, TuneEvent
from autotune.journal import Journal
from autotune.result import Status
from autotune.shared_study import SharedStudy
from autotune.testing import FakeRunner, Weather

SCRIPT = Path(__file__).with_name("shared_run.py")
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{SCRIPT.parents[2]}{os.pathsep}{SCRIPT.parent}"}
QUIET = Weather(noise=0.01)
EXPLORING = ("search", "rank")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/shared.db"


def trials_name(url: str) -> str:
    return next(each for each in optuna.get_all_study_names(url) if not each.endswith("/agreed"))


def trials_in(url: str) -> list[FrozenTrial]:
    return optuna.load_study(study_name=trials_name(url), storage=url).get_trials(deepcopy=False)


def journal_of(folder: Path) -> Journal:
    return Journal(next(folder.glob("studies/*")))


def test_two_processes_share_their_trials_lose_none_and_repeat_none(tmp_path: Path, url: str) -> None:
    folders = [tmp_path / "fast", tmp_path / "slow"]
    speeds = ("2", "1")  # machines of one kind that are not equally fast today
    words = [[sys.executable, str(SCRIPT), str(each), url, s, "24"] for each, s in zip(folders, speeds, strict=True)]
    running = [
        subprocess.Popen(each, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for each in words
    ]
    ended = [each.communicate(timeout=120) for each in running]
    assert [each.returncode for each in running] == [0, 0], ended
    results = [json.loads(out) for out, _ in ended]
    assert [each["status"] for each in results] == ["proven", "proven"]
    assert all(each["gain"] > 1.3 for each in results)

    trials = [each for each in trials_in(url) if each.state is not TrialState.FAIL]
    assert {each.state for each in trials} <= {TrialState.COMPLETE, TrialState.PRUNED}
    by_owner: dict[str, list[FrozenTrial]] = defaultdict(list)
    for trial in trials:
        by_owner[trial.user_attrs["owner"]].append(trial)
    for folder, result in zip(folders, results, strict=True):
        with journal_of(folder) as journal:
            mine = by_owner.pop(journal.header["owner"])
            assert [each.user_attrs["position"] for each in mine] == list(range(len(journal.records)))
            plain = json.loads(json.dumps([each.to_json() for each in journal.records]))
            assert [each.user_attrs["outcome"] for each in mine] == [each["outcome"] for each in plain]
            assert [each.params for each in mine] == [each["params"] for each in plain]
        assert result["search"]["of_others"] > 0
    assert not by_owner

    searched = [each for each in trials if each.user_attrs["purpose"] in EXPLORING]
    for one, other in itertools.combinations(searched, 2):
        same = one.user_attrs["settings"] == other.user_attrs["settings"]
        if same and {one.user_attrs["purpose"], other.user_attrs["purpose"]} == {"search"}:
            assert one.datetime_complete is not None and other.datetime_start is not None
            assert one.datetime_complete <= other.datetime_start  # measured again on purpose, knowing the first


def test_what_others_found_is_carried_over_by_the_ratio_of_the_defaults(tmp_path: Path, url: str) -> None:
    fast = tuned(tmp_path / "fast", FakeRunner(lambda settings: 10 * hill(settings), QUIET), storage=url)
    assert fast.status is Status.PROVEN
    assert "rank" in [row.purpose for row in fast.trials]
    slow = FakeRunner(hill, QUIET, seed=4)
    result = tuned(tmp_path / "slow", slow, storage=url)
    assert result.search["of_others"] >= 10
    assert "rank" not in [row.purpose for row in result.trials]
    assert result.status is Status.PROVEN and result.tuned is not None
    assert result.tuned.decode_tps < 21
    assert sum(row.purpose == "search" for row in result.trials) < sum(
        each.user_attrs["purpose"] == "search" for each in trials_in(url)
    )


def test_a_process_killed_between_the_journal_and_the_database_puts_that_right(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    whole, ends = SharedStudy.end, itertools.count()
    monkeypatch.setattr(SharedStudy, "end", lambda *words: killed() if next(ends) == 4 else whole(*words))
    with pytest.raises(Killed):
        tuned(tmp_path, FakeRunner(hill, QUIET), storage=url)
    monkeypatch.undo()
    assert [each.state for each in trials_in(url)].count(TrialState.RUNNING) == 1
    events: list[TuneEvent] = []
    result = tuned(tmp_path, FakeRunner(hill, QUIET, seed=3), events, storage=url)
    assert any(isinstance(event, Notice) and "5 trials of an earlier run" in event.text for event in events)
    kept = [each for each in trials_in(url) if each.state is not TrialState.FAIL]
    assert [each.user_attrs["position"] for each in kept] == list(range(len(result.trials)))


def test_a_lost_database_is_made_again_from_the_journal(tmp_path: Path, url: str) -> None:
    tuned(tmp_path, FakeRunner(hill, QUIET, interrupt_at=8), storage=url)
    (tmp_path / "shared.db").unlink()
    result = tuned(tmp_path, FakeRunner(hill, QUIET, seed=3), storage=url)
    assert len(trials_in(url)) == len(result.trials) > 8


def age(folder: Path) -> None:
    """As if no trial had given a sign of life for years."""
    with sqlite3.connect(folder / "shared.db") as database:
        database.execute("UPDATE trial_heartbeats SET heartbeat = '2020-01-01 00:00:00'")


def test_a_trial_without_signs_of_life_is_given_up_and_its_late_end_is_noticed(tmp_path: Path, url: str) -> None:
    study = SharedStudy(url, "study")
    study.begin({"owner": "gone"}, {}, {})
    assert len(SharedStudy(url, "study").trials()) == 1
    age(tmp_path)
    assert not SharedStudy(url, "study").trials()
    assert not study.end({"outcome": {}}, 1.0)


def test_a_running_trial_gives_signs_of_life(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    study = SharedStudy(url, "study")
    monkeypatch.setattr("autotune.shared_study._BEAT_S", 0.01)
    study.begin({"owner": "here"}, {}, {})
    age(tmp_path)
    with sqlite3.connect(tmp_path / "shared.db") as database:
        beats = (database.execute("SELECT heartbeat FROM trial_heartbeats").fetchone()[0] for _ in range(10_000))
        assert any(not beat.startswith("2020") for beat in beats)
    assert study.end({"outcome": {}}, 1.0)
    assert [each.state for each in study.trials()] == [TrialState.COMPLETE]


def test_an_outcome_that_comes_after_the_trial_was_given_up_is_told_all_the_same(tmp_path: Path, url: str) -> None:
    class Asleep(FakeRunner):
        def run(self, spec, on_stage=lambda stage: None):  # type: ignore[no-untyped-def]
            if len(self.specs) == 3:
                age(tmp_path)
                SharedStudy(url, trials_name(url)).trials()
            return FakeRunner.run(self, spec, on_stage)

    result = tuned(tmp_path, Asleep(hill, QUIET), storage=url, trials=6)
    states = [each.state for each in trials_in(url)]
    assert states.count(TrialState.FAIL) == 1
    assert len(states) - 1 == len(result.trials)


def test_the_first_to_say_something_is_right(url: str) -> None:
    first, second = SharedStudy(url, "study"), SharedStudy(url, "study")
    assert first.agree("budget_bytes", 7) == 7
    assert second.agree("budget_bytes", 8) == 7
    assert second.agree("ranking", None) is None
    assert first.agree("ranking", [1]) is None


def test_a_new_start_is_refused_where_others_work_too(tmp_path: Path, url: str) -> None:
    with pytest.raises(RequestInvalid, match="--fresh"):
        tuned(tmp_path, FakeRunner(hill), storage=url, fresh=True)


@pytest.mark.parametrize(
    ("storage", "said"),
    [
        ("nonsense", "--storage the address: "),
        ("postgresql+nodriver://me:secret@host/db", "--storage postgresql+nodriver://me:***@host/db: "),
        ("postgresql://me:secret@host/db", "install the driver that it needs"),
        ("sqlite:////no/such/folder/study.db", "unable to open database file"),
        ("sqlite://", "a database in memory is shared with nobody"),
        ("sqlite:///:memory:", "a database in memory is shared with nobody"),
    ],
)
def test_a_database_that_cannot_be_used_is_said_in_one_line(tmp_path: Path, storage: str, said: str) -> None:
    with pytest.raises((RequestInvalid, StudyInvalid)) as caught:
        tuned(tmp_path, FakeRunner(hill), storage=storage)
    assert said in str(caught.value) and "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_command_in_a_profile_shows_no_password() -> None:
    url = "postgresql://me:secret@host/db"
    shown = _shown(f"mlx-autotune run --storage={url} --model tiny", url)
    assert shown == "mlx-autotune run --storage=postgresql://me:***@host/db --model tiny"


@pytest.mark.usefixtures("elsewhere")
def test_a_locked_database_ends_the_command_with_one_line_and_status_2(
    tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    SharedStudy(url, "study")
    monkeypatch.setattr("autotune.shared_study._LOCKED_S", 0.1)
    holder = sqlite3.connect(tmp_path / "shared.db", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    assert main(["run", "--model", "tiny", "--storage", url, "--output", "p.yaml", "--quiet"]) == 2
    holder.close()
    err = capsys.readouterr().err
    assert "database is locked" in err and len(err.splitlines()) == 1
