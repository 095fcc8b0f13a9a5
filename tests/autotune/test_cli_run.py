"""`mlx-autotune run`: what it plans, writes and says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from cli_cases import fake_runner
from tuner_fakes import hill

from autotune.cli import main
from autotune.testing import FakeRunner, Weather
from streaming_core.profile import Profile

pytestmark = pytest.mark.usefixtures("elsewhere")


def test_dry_run_tells_the_plan_as_json_and_runs_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runner = FakeRunner(hill)
    fake_runner(monkeypatch, runner)
    own_cache = ["--cache-dir", str(tmp_path / "cache")]  # else it goes by other tests' fake trials, which take no time
    assert main(["run", "--model", "tiny", "--dry-run", "--json", "--trials", "9", *own_cache]) == 0
    plan = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert plan["search_trials"] == 9
    assert "reading.threads" in plan["knobs"]
    assert plan["total_s"] > 0
    assert not runner.specs
    assert not Path("profiles").exists()


def test_a_short_dry_run_is_told_in_seconds_and_a_longer_one_as_a_range(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["run", "--model", "tiny", "--dry-run", "--quiet", "--cache-dir", str(tmp_path)]  # with no earlier run
    assert main([*words, "--time", "1s"]) == 0
    assert "about 1 s" in capsys.readouterr().out
    assert main(words) == 0
    assert re.search(r"\d+ (min )?to \d+ ?", capsys.readouterr().out)


def test_a_proven_run_writes_a_profile_that_show_explains(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_runner(monkeypatch, FakeRunner(lambda settings: 10.0 + settings.reading.threads, Weather(noise=0.01)))
    words = ["run", "--model", "tiny", "--set", "residency.resident_layers=0", "--trials", "20", "--output", "p.yaml"]
    monkeypatch.setenv("COLUMNS", "40")
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "tuned" in out and "default" in out and "p.yaml" in out
    entry = Profile.read("p.yaml").entry("tiny")
    assert entry.status == "measured"
    assert entry.settings.reading.threads > 4
    assert entry.evidence["status"] == "proven"
    assert entry.command.startswith("mlx-autotune run --model tiny")
    assert main(["show", "--model", "tiny", "--profile", "p.yaml"]) == 0
    out = capsys.readouterr().out
    assert f"reading.threads = {entry.settings.reading.threads}" in out
    assert "verdict:" in out


def test_a_run_without_a_winner_keeps_the_default_and_says_so_in_its_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_runner(monkeypatch, FakeRunner(lambda settings: 10.0, Weather(noise=0.02)))
    assert main(["run", "--model", "tiny", "--trials", "6", "--output", "p.yaml", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("default_kept: the default is kept") and len(out.splitlines()) == 1
    assert err == ""
    assert (
        not Profile.read("p.yaml")
        .entry("tiny")
        .settings.changes_from(Profile.read("p.yaml").entry("tiny").settings.__class__())
    )


def test_an_interrupted_run_leaves_a_marked_profile(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_runner(monkeypatch, FakeRunner(lambda settings: 10.0, interrupt_at=4))
    assert main(["run", "--model", "tiny", "--seed", "77", "--output", "p.yaml", "--json"]) == 130
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[-1]["event"] == "result" and lines[-1]["status"] == "interrupted"
    assert Profile.read("p.yaml").entry("tiny").status == "interrupted"


def test_an_interrupt_before_any_result_leaves_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_runner(monkeypatch, FakeRunner(hill, interrupt_at=0))
    assert main(["run", "--model", "tiny", "--seed", "78", "--output", "p.yaml"]) == 130
    assert "mlx-autotune: interrupted" in capsys.readouterr().err
    assert not Path("p.yaml").exists()


def test_an_interrupted_run_keeps_the_finished_result_and_says_where_its_trials_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["run", "--model", "tiny", "--seed", "79", "--trials", "4", "--output", "p.yaml"]
    fake_runner(monkeypatch, FakeRunner(lambda settings: 10.0))
    assert main(words) == 0
    before = Path("p.yaml").read_bytes()
    fake_runner(monkeypatch, FakeRunner(lambda settings: 10.0, interrupt_at=3))
    assert main([*words, "--fresh"]) == 130
    err = capsys.readouterr().err
    assert Path("p.yaml").read_bytes() == before
    assert "studies/tiny-" in err and "the same command carries on" in err
    assert "p.yaml keeps its finished result for tiny" in err


def test_a_run_that_tried_nothing_keeps_the_finished_result(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["run", "--model", "tiny", "--seed", "79", "--output", "p.yaml"]
    fake_runner(monkeypatch, FakeRunner(lambda settings: 10.0))
    assert main([*words, "--trials", "4"]) == 0
    before = Path("p.yaml").read_bytes()
    assert main([*words, "--trials", "1", "--fresh"]) == 0
    assert "p.yaml keeps its finished result for tiny" in capsys.readouterr().err
    assert Path("p.yaml").read_bytes() == before


def test_an_output_that_cannot_be_written_is_said_before_anything_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = FakeRunner(hill)
    fake_runner(monkeypatch, runner)
    Path("file.yaml").touch()
    assert main(["run", "--model", "tiny", "--output", "file.yaml/x.yaml"]) == 2
    assert "is no folder that can be written to" in capsys.readouterr().err
    assert not runner.specs
