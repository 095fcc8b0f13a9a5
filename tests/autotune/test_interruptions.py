"""A run that is stopped while finalists and default race: by Ctrl-C, by SIGTERM, by a kill that nothing can catch."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from cli_cases import fake_runner
from tuner_fakes import hill, tuned

from autotune.cli import main
from autotune.events import Notice, TuneEvent
from autotune.result import Status
from autotune.testing import FakeRunner, Weather
from streaming_core.profile import Profile
from streaming_core.settings import Settings

QUIET = Weather(noise=0.01)


def purposes(folder: Path) -> list[str]:
    """Of the trials of a run that nobody stops."""
    return [row.purpose for row in tuned(folder, FakeRunner(hill, QUIET)).trials]


@pytest.mark.parametrize(("stage", "after"), [("race", 0), ("race", 3), ("pair", 3)])
def test_ctrl_c_in_the_race_gives_the_best_so_far_and_a_rerun_proves_it(tmp_path: Path, stage: str, after: int) -> None:
    at = purposes(tmp_path / "whole").index(stage) + after
    events: list[TuneEvent] = []
    stopped = tuned(tmp_path, FakeRunner(hill, QUIET, interrupt_at=at), events)
    assert stopped.status is Status.INTERRUPTED
    assert len(stopped.trials) == at and stopped.trials[-1].purpose in ("search", "race", "pair")
    assert hill(stopped.settings) > 1.3 * hill(Settings())
    assert "not proven" in stopped.reason and stopped.interval is None
    again = tuned(tmp_path, FakeRunner(hill, QUIET, seed=9), events)
    assert again.status is Status.PROVEN
    assert any(isinstance(event, Notice) and f"{at} trials of an earlier run" in event.text for event in events)


def test_ctrl_c_in_the_race_of_a_gain_too_small_to_believe_gives_the_default(tmp_path: Path) -> None:
    def hardly(settings: Settings) -> float:
        return 10.2 if settings.reading.page_cache == "bypass" else 10.0

    weather = Weather(noise=0.002)
    one_knob = frozenset(Settings.keys()) - {"reading.page_cache"}
    rows = tuned(tmp_path / "whole", FakeRunner(hardly, weather, seed=3), fixed=one_knob).trials
    at = [row.purpose for row in rows].index("race") + 2
    stopped = tuned(tmp_path, FakeRunner(hardly, weather, seed=3, interrupt_at=at), fixed=one_knob)
    assert stopped.status is Status.INTERRUPTED
    assert stopped.settings == Settings()
    assert "before anything was credibly faster" in stopped.reason


# Stops itself at the third trial of one purpose: no clock, no guess how far it has come.
STOPPED = textwrap.dedent("""
    import os, sys
    import autotune.commands.tuning
    from autotune.cli import entry
    from autotune.measurer import Measurer
    from autotune.testing import FakeRunner, Weather

    purpose, number = sys.argv.pop(1), int(sys.argv.pop(1))
    measure, seen = Measurer.measure, []

    def measure_or_stop(self, config, why):
        seen.append(why.value)
        if why.value == purpose and seen.count(purpose) == 3:
            os.kill(os.getpid(), number)
        return measure(self, config, why)

    class Runner(FakeRunner):
        def __init__(self, environment):
            super().__init__(lambda settings: 10.0 + settings.reading.threads, Weather(noise=0.01))
        def __enter__(self):
            return self
        def __exit__(self, *_):
            self.close()

    Measurer.measure = measure_or_stop
    autotune.commands.tuning.WorkerRunner = Runner
    entry()
""")


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    ("number", "purpose"), [(signal.SIGKILL, "pair"), (signal.SIGTERM, "race"), (signal.SIGINT, "pair")]
)
def test_a_process_stopped_in_the_race_is_carried_on_to_a_valid_profile(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int, purpose: str
) -> None:
    words = ["run", "--model", "tiny", "--set", "residency.resident_layers=0", "--trials", "14", "--json"]
    words += ["--profile", "none", "--output", "p.yaml", "--cache-dir", str(tmp_path / "cache")]
    command = [sys.executable, "-c", STOPPED, purpose, str(int(number)), *words]
    stopped = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "Traceback" not in stopped.stderr
    finished = [json.loads(line) for line in stopped.stdout.splitlines()]
    trials = sum(event["event"] == "trial_finished" for event in finished)
    if number == signal.SIGKILL:
        assert stopped.returncode == -signal.SIGKILL
    else:
        assert stopped.returncode == 130, stopped.stderr
    entry = Profile.read("p.yaml").entry("tiny")
    assert entry.status == "interrupted" and entry.settings.reading.threads > 4
    if number != signal.SIGKILL:
        assert finished[-1]["status"] == "interrupted"
    runner = FakeRunner(lambda settings: 10.0 + settings.reading.threads, Weather(noise=0.01), seed=9)
    fake_runner(monkeypatch, runner)
    assert main(words) == 0
    out = capsys.readouterr().out
    assert f"carrying on: {trials} trials of an earlier run are known" in out
    entry = Profile.read("p.yaml").entry("tiny")
    assert (entry.status, entry.evidence["status"]) == ("measured", "proven")
    assert entry.settings.reading.threads > 4
    assert len(runner.specs) < entry.evidence["search"]["trials"]
