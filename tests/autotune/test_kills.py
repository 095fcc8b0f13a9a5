"""Runs that are killed at moments nobody chose, and carried on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tuner_fakes import hill, tuned

from autotune.journal import Journal
from autotune.testing import FakeRunner
from streaming_core.profile import Profile

HARNESS = Path(__file__).with_name("killed_run.py")
ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{HARNESS.parent}"}


def test_twenty_kills_cost_the_trials_in_flight_and_nothing_else(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(HARNESS), str(tmp_path), "20"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert not done.stderr and done.returncode == 0, done.stderr
    lives: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lives) == 21
    before: dict[str, Any] = {"begun": 0, "trials": [], "profile": None}
    for life in lives:
        assert life["trials"][: len(before["trials"])] == before["trials"]
        lost = (life["begun"] - before["begun"]) - (len(life["trials"]) - len(before["trials"]))
        assert lost in (0, 1)
        assert life["profile"] in (None, "interrupted", "measured")
        assert before["profile"] is None or life["profile"] is not None
        before = life
    assert lives[-1]["status"] == 0 and lives[-1]["profile"] == "measured"
    tuned(tmp_path / "whole", FakeRunner(hill))  # one that nobody killed
    whole = next((tmp_path / "whole").glob("studies/*"))
    killed = next(tmp_path.glob("studies/*"))
    assert sorted(each.name for each in killed.iterdir()) == sorted(each.name for each in whole.iterdir())
    with Journal(whole) as expected, Journal(killed) as carried_on:
        assert carried_on.header == expected.header
        assert len(carried_on.records) == len(lives[-1]["trials"])
        assert {tuple(each.to_json()) for each in carried_on.records} == {tuple(expected.records[0].to_json())}


@pytest.mark.usefixtures("elsewhere")
def test_a_run_of_a_real_model_is_killed_and_carried_on(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "autotune", "run", "--model", "tiny", "--trials", "4", "--repeats", "1", "--json"]
    words += ["--prompt-tokens", "8", "--warmup-tokens", "2", "--decode-tokens", "4", "--profile", "none"]
    words += ["--output", "p.yaml", "--budget", "128MiB", "--seed", "5"]
    words += ["--cache-dir", str(tmp_path / "cache")]
    with subprocess.Popen(words, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        kinds = (json.loads(line)["event"] for line in run.stdout)
        begun = 0
        while begun < 3:
            begun += next(kinds) == "trial_started"
        run.kill()
        assert "result" not in list(kinds)
    journal = next(tmp_path.glob("cache/studies/*/trials.jsonl"))
    known = journal.read_bytes().count(b"\n") - 1
    assert known >= 2
    done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert f"carrying on: {known} trials of an earlier run are known" in done.stdout
    assert Profile.read("p.yaml").entry("tiny").status == "measured"
