"""`mlx-autotune bench` on a machine made of formulas."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import autotune.commands.bench
import autotune.commands.tuning
from autotune.cli import main
from autotune.runner import ignore
from autotune.testing import FakeRunner, Weather, out_of_memory
from autotune.trial import Engine, Outcome, Stage, TrialSpec
from streaming_core.profile import Profile
from streaming_core.settings import Settings

QUIET = Weather(noise=0.005)
BENCH = ["bench", "--model", "tiny", "--profile", "p.yaml"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLX_AUTOTUNE_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cli-cache"))
    monkeypatch.setattr("streaming_core.profile._find.default_folders", lambda: [tmp_path / "profiles"])


class Machine(FakeRunner):
    """A fake runner in the place of the process; a resident model never fits when `small`."""

    small = False

    def run(self, spec: TrialSpec, on_stage: Callable[[Stage], None] = ignore) -> Outcome:
        if self.small and spec.engine is Engine.RESIDENT:
            return out_of_memory()
        return super().run(spec, on_stage)

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def threads_count(settings: Settings) -> float:
    return 10.0 + settings.reading.threads


def replace_runner(monkeypatch: pytest.MonkeyPatch, command: Any, speed: Any = threads_count) -> Machine:
    runner = Machine(speed, QUIET)

    def started(environment: object, **options: object) -> Machine:
        assert options == ({"shared": False} if command is autotune.commands.bench else {})
        return runner

    monkeypatch.setattr(command, "WorkerRunner", started)
    return runner


def write_profile(monkeypatch: pytest.MonkeyPatch, *words: str, speed: Any = threads_count) -> list[TrialSpec]:
    """Trials of `run`, the first of them the default."""
    runner = replace_runner(monkeypatch, autotune.commands.tuning, speed)
    fixed = [
        "--set",
        "residency.resident_layers=0",
        "--set",
        "reading.page_cache=bypass",
        "--set",
        "memory.context=900",
    ]
    assert main(["run", "--model", "tiny", *fixed, "--trials", "12", "--output", "p.yaml", "--fresh", *words]) == 0
    return runner.specs


def change_evidence(**changes: Any) -> None:
    """In the profile; None takes a key away."""
    profile = Profile.read("p.yaml")
    entry = profile.entry("tiny")
    evidence = {key: value for key, value in {**entry.evidence, **changes}.items() if value is not None}
    profile.with_entry(next(iter(profile.entries)), replace(entry, evidence=evidence)).write("p.yaml")


def result(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


@pytest.mark.parametrize("budget", [[], ["--budget", "128MiB"]])
def test_the_default_is_the_very_one_that_the_profile_was_proven_against(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, budget: list[str]
) -> None:
    tuning = write_profile(monkeypatch, *budget)
    runner = replace_runner(monkeypatch, autotune.commands.bench)
    capsys.readouterr()
    assert main([*BENCH, "--rounds", "4", "--skip-resident", "--json"]) == 0
    found = result(capsys)
    tuned = Profile.read("p.yaml").entry("tiny").settings.reading.threads
    default = [spec for spec in runner.specs if spec.settings["reading"]["threads"] == 4]
    assert len(runner.specs) == 8 and len(default) == 4 and tuned > 4
    assert all(spec.settings == tuning[0].settings for spec in default)
    assert len({spec.settings["memory"]["budget"] for spec in runner.specs}) == 1
    assert found["default"]["changes"]["reading.page_cache"] == "bypass"
    ratio = found["ratio"]
    assert ratio.keys() == {"median", "middle", "low", "high", "level", "rounds"}
    assert ratio["low"] < (10 + tuned) / 14 < ratio["high"]
    assert ratio["high"] - ratio["low"] < 0.1
    assert (ratio["level"], ratio["rounds"]) == (0.95, 4)
    assert "resident" not in found and found["ratio_to_resident"] is None
    assert found["ceiling"]["compute"] == "estimated"


def test_the_footer_has_a_line_for_each_ratio_and_the_settings_of_both(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_profile(monkeypatch)
    replace_runner(monkeypatch, autotune.commands.bench, lambda settings: 2.5 * settings.reading.threads)
    capsys.readouterr()
    monkeypatch.setenv("COLUMNS", "200")
    assert main([*BENCH, "--rounds", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    of_default = next(line for line in lines if " of the default over 3 rounds (at 95 %)" in line)
    of_resident = next(line for line in lines if " of resident over 3 rounds (at 95 %)" in line)
    assert of_default.startswith("streamed is x") and "[" in of_default
    assert of_resident.startswith(("streamed is x1.0", "streamed is x0.9"))
    assert any(line.startswith("default: ") and "page_cache=bypass" in line for line in lines)
    assert any(line.startswith("streamed: ") and "page_cache=bypass" in line for line in lines)


def test_two_rounds_have_a_ratio_and_a_word_about_the_interval(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_profile(monkeypatch)
    replace_runner(monkeypatch, autotune.commands.bench)
    capsys.readouterr()
    assert main([*BENCH, "--rounds", "2", "--quiet"]) == 0
    assert "of the default over 2 rounds; an interval needs at least 3: pass --rounds 3" in capsys.readouterr().out
    assert main([*BENCH, "--rounds", "2", "--json"]) == 0
    ratio = result(capsys)["ratio"]
    assert ratio["low"] is None and ratio["high"] is None and ratio["median"] > 1


def test_a_default_that_was_kept_is_measured_once_and_twice_when_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_profile(monkeypatch, speed=lambda settings: 10.0)
    runner = replace_runner(monkeypatch, autotune.commands.bench)
    capsys.readouterr()
    assert main([*BENCH, "--rounds", "3", "--skip-resident", "--json"]) == 0
    found = result(capsys)
    assert len(runner.specs) == 3
    assert found["default"] == found["streamed"] and found["ratio"] is None
    assert main([*BENCH, "--rounds", "3", "--skip-resident", "--always-default", "--json"]) == 0
    found = result(capsys)
    assert len(runner.specs) == 3 + 6
    assert len({json.dumps(spec.settings) for spec in runner.specs}) == 1
    assert found["ratio"]["low"] < 1 < found["ratio"]["high"]
    assert main([*BENCH, "--rounds", "1", "--skip-resident"]) == 0
    assert "--always-default measures both" in capsys.readouterr().out.replace("\n", " ")


def test_a_resident_model_that_does_not_fit_is_said_and_the_others_are_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_profile(monkeypatch)
    runner = replace_runner(monkeypatch, autotune.commands.bench)
    runner.small = True
    capsys.readouterr()
    assert main([*BENCH, "--rounds", "3"]) == 0
    out, err = capsys.readouterr()
    assert "resident was not measured: the plan exceeds the budget" in out
    assert err.count("[resident]") == 1
    assert len(runner.specs) == 6
    assert "of resident" not in out and "of the default" in out


def test_an_entry_without_fixed_settings_is_told_apart(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_profile(monkeypatch)
    change_evidence(fixed=None)
    runner = replace_runner(monkeypatch, autotune.commands.bench)
    capsys.readouterr()
    assert main([*BENCH, "--rounds", "1", "--skip-resident"]) == 0
    assert "does not say which settings were fixed" in capsys.readouterr().err
    assert {spec.settings["reading"]["page_cache"] for spec in runner.specs} == {"keep", "bypass"}


def test_a_profile_of_another_machine_lends_no_budget(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_profile(monkeypatch)
    change_evidence(budget_bytes=1 << 49)
    runner = replace_runner(monkeypatch, autotune.commands.bench)
    capsys.readouterr()
    assert main([*BENCH, "--rounds", "1", "--skip-resident"]) == 0
    assert {spec.settings["memory"]["budget"] for spec in runner.specs} == {"512TiB"}
    err = capsys.readouterr().err
    assert "memory.budget is 512TiB, as when it was tuned" in err and "--budget sets another" in err
    profile = Profile.read("p.yaml")
    replace(profile, hardware=replace(profile.hardware, chip="of another make")).write("p.yaml")
    runner.specs.clear()
    assert main([*BENCH, "--rounds", "1", "--skip-resident"]) == 0
    assert len(runner.specs) == 2
    assert "512TiB" not in {spec.settings["memory"]["budget"] for spec in runner.specs}


def test_wrong_evidence_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    write_profile(monkeypatch)
    change_evidence(fixed={"reading.page_cash": "bypass"})
    replace_runner(monkeypatch, autotune.commands.bench)
    capsys.readouterr()
    assert main(BENCH) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert "p.yaml: models.tiny" in line and "did you mean 'reading.page_cache'" in line
