"""`mlx-autotune verify` on a machine made of formulas."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from cli_cases import fake_runner
from test_contest import contestant, with_speeds

import autotune.commands.tuning
import autotune.commands.verify
from autotune.cli import main
from autotune.commands.verify import measure_until
from autotune.screen import make_screen
from autotune.space import Objective
from autotune.standing import Standing, staleness, verified
from autotune.testing import FakeRunner, Weather, killed
from autotune.trial import Outcome
from streaming_core.hardware import FakeMachine
from streaming_core.profile import Entry, Profile, Program
from streaming_core.settings import Settings

pytestmark = pytest.mark.usefixtures("elsewhere")

QUIET = Weather(noise=0.005)
VERIFY = ["verify", "--profile", "p.yaml", "--rounds", "4"]
Speed = Callable[[Settings], float | Outcome]


def more_threads_are_faster(settings: Settings) -> float:
    return 10.0 + settings.reading.threads


def more_threads_are_slower(settings: Settings) -> float:
    return 100.0 - settings.reading.threads


def write_profile(monkeypatch: pytest.MonkeyPatch, speed: Speed = more_threads_are_faster) -> None:
    fake_runner(monkeypatch, FakeRunner(speed, QUIET), autotune.commands.tuning)
    fixed = ["--set", "residency.resident_layers=0", "--set", "memory.context=900"]
    assert main(["run", "--model", "tiny", *fixed, "--trials", "12", "--output", "p.yaml", "--fresh"]) == 0


def verify(monkeypatch: pytest.MonkeyPatch, speed: Speed, *words: str, **fake: Any) -> tuple[int, FakeRunner]:
    runner = FakeRunner(speed, QUIET, **fake)
    fake_runner(monkeypatch, runner, autotune.commands.verify)
    return main([*VERIFY, *words]), runner


def change(**changes: Any) -> None:
    """The profile's only entry, or with `hardware` and `program` the profile."""
    profile = Profile.read("p.yaml")
    (name,) = profile.entries
    of_profile = {key: changes.pop(key) for key in ("hardware", "program") if key in changes}
    replace(profile, **of_profile).with_entry(name, replace(profile.entry(name), **changes)).write("p.yaml")


def test_a_profile_that_is_still_faster_is_kept_and_the_model_need_not_be_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_profile(monkeypatch)
    capsys.readouterr()
    status, runner = verify(monkeypatch, more_threads_are_faster)
    assert status == 0
    assert "keep: still faster: x" in capsys.readouterr().out
    assert len(runner.specs) == 8
    assert len({spec.settings["memory"]["budget"] for spec in runner.specs}) == 1


def test_a_profile_that_became_slower_is_worse(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_profile(monkeypatch)
    capsys.readouterr()
    status, _ = verify(monkeypatch, more_threads_are_slower, "--json")
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert status == 4 and said["standing"] == "worse" and said["ratio"]["high"] < 1


def test_a_profile_that_no_longer_runs_is_worse_and_one_that_says_something_else_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_profile(monkeypatch)
    assert verify(monkeypatch, lambda settings: 10.0 if settings.reading.threads == 4 else killed())[0] == 4
    hashes = {"tokens_hash": lambda settings: str(settings.reading.threads)}
    assert verify(monkeypatch, more_threads_are_faster, **hashes)[0] == 1
    assert verify(monkeypatch, lambda settings: killed())[0] == 2, "nothing runs, which says nothing of the profile"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"fingerprint": "of-another"}, "the checkpoint is another one (of-another then"),
        ({"hardware": {"chip": "Z80"}}, "the machine is another one (chip 'Z80' there"),
        ({"program": Program(version="0.0.1")}, "mlx-autotune was 0.0.1, now it is"),
    ],
)
def test_what_is_stale_is_said_and_nothing_is_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], said: str
) -> None:
    write_profile(monkeypatch)
    profile = Profile.read("p.yaml")
    if "hardware" in changes:
        changes = {"hardware": replace(profile.hardware, **changes["hardware"])}
    if "program" in changes:
        (entry,) = profile.entries.values()
        changes = {**changes, "evidence": {key: value for key, value in entry.evidence.items() if key != "versions"}}
    change(**changes)
    capsys.readouterr()
    status, runner = verify(monkeypatch, more_threads_are_faster)
    assert status == 3 and not runner.specs
    out = capsys.readouterr().out
    assert said in out and "`mlx-autotune run --model" in out


def test_a_profile_that_keeps_the_default_needs_no_measuring(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_profile(monkeypatch, lambda settings: 10.0)
    status, runner = verify(monkeypatch, more_threads_are_faster)
    assert status == 0 and not runner.specs
    assert "keeps the default" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--profile", "none"], "there is no profile to verify"),
        (["--model", "demo"], "no entry for demo"),
        (["--rounds", "2"], "--rounds must be at least 3"),
        (["--time", "soon"], "a time such as"),
    ],
)
def test_wrong_words_are_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    write_profile(monkeypatch, lambda settings: 10.0)
    capsys.readouterr()
    assert verify(monkeypatch, more_threads_are_faster, *words)[0] == 2
    err = capsys.readouterr().err
    assert said in err and len(err.splitlines()) == 1


def entry(**evidence: Any) -> Entry:
    return Entry(fingerprint="abc", settings=Settings(), evidence=evidence)


def test_versions_and_the_system_count_where_the_profile_tells_them() -> None:
    here = FakeMachine.mac().hardware()
    now = {"mlx-autotune": "1", "mlx": "2", "mlx-lm": "3"}
    profile = Profile(hardware=here)
    assert staleness(profile, entry(), "abc", here, now) == []
    assert staleness(profile, entry(versions=now), "abc", here, now) == []
    assert staleness(profile, entry(versions={**now, "mlx": "1.9"}), "abc", here, now) == ["mlx was 1.9, now it is 2"]
    assert staleness(profile, entry(versions={"optuna": "0"}), "abc", here, now) == []
    old = Profile(hardware=replace(here, os_version="25.1"))
    assert staleness(old, entry(), "abc", here, now) == ["macOS was 25.1, now it is 26.0"]
    linux = FakeMachine().hardware()
    old = Profile(hardware=replace(linux, os_version="kernel 5"))
    assert staleness(old, entry(), "abc", linux, now) == [], "kernels come and go"


def test_the_objective_of_the_profile_decides() -> None:
    ours, default = with_speeds("profile", [9.0] * 4), with_speeds("default", [10.0] * 4)
    assert verified(ours, default, Objective.DECODE).standing is Standing.WORSE
    ours.trials = [replace(trial, prefill_s=(0.1,)) for trial in ours.trials]
    assert verified(ours, default, Objective.PREFILL).standing is Standing.KEEP


def test_a_ratio_around_one_keeps_the_profile() -> None:
    ours, default = with_speeds("profile", [10.0, 9.0, 11.0, 10.0]), with_speeds("default", [10.0, 10.0, 10.0, 10.1])
    found = verified(ours, default, Objective.DECODE)
    assert found.standing is Standing.KEEP and "cannot be told from the default" in found.reason


@pytest.mark.parametrize(("deadline", "rounds"), [(0.0, 4), (130.0, 6), (1e9, 9)])
def test_no_round_begins_that_would_end_late_but_an_interval_has_its_rounds(deadline: float, rounds: int) -> None:
    import io

    runner = FakeRunner(more_threads_are_faster, QUIET, trial_s=10.0)
    sides = (contestant("profile", threads=8), contestant("default"))
    screen = make_screen(json_lines=False, quiet=True, out=io.StringIO(), err=io.StringIO())
    assert measure_until(sides, 9, 0, deadline, runner, screen, clock=runner.clock) == rounds
    assert [len(each.trials) for each in sides] == [rounds, rounds]
