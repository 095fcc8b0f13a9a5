from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tuner_fakes import workload

from autotune.errors import WorkerFailed
from autotune.runner import WorkerRunner
from autotune.trial import Crashed, Measured, Procedure, Stage, TimedOut, TrialSpec
from streaming_core.settings import Settings

STUB = Path(__file__).with_name("stub_worker.py")
ROOT = Path(__file__).parents[2]


def environment(**extra: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **extra}


@pytest.fixture
def runner() -> Iterator[WorkerRunner]:
    with WorkerRunner(environment(), command=(sys.executable, str(STUB))) as runner:
        yield runner


def spec(model: str, **settings: object) -> TrialSpec:
    return TrialSpec(
        model=model,
        settings=Settings()
        .with_values({key.replace("__", "."): value for key, value in settings.items()})
        .to_mapping(),
        workload=workload(),
        cache_dir=Path("unused"),
        procedure=Procedure(repeats=2, silence_s=20.0),
    )


def speed(runner: WorkerRunner, model: str, **settings: object) -> float:
    outcome = runner.run(spec(model, **settings))
    assert isinstance(outcome, Measured)
    return outcome.decode_tps


def pid(runner: WorkerRunner) -> int:
    assert runner._worker is not None
    return runner._worker._popen.pid


def test_worker_measures_and_reports_stages_whatever_is_printed(runner: WorkerRunner) -> None:
    stages: list[Stage] = []
    outcome = runner.run(spec("fine"), stages.append)
    assert isinstance(outcome, Measured)
    assert len(outcome.samples) == 2
    assert stages[0] == Stage("loading", 1, 2)


def test_trials_share_a_worker_until_one_needs_another_environment(runner: WorkerRunner) -> None:
    runner.run(spec("fine"))
    first = pid(runner)
    runner.run(spec("fine", reading__threads=8))
    assert pid(runner) == first
    assert speed(runner, "limit", process__max_ops_per_buffer=5) == pytest.approx(5, rel=0.2)
    assert pid(runner) != first


def test_trials_that_share_nothing_have_a_process_each_that_is_gone_afterwards() -> None:
    alive: set[int] = set()
    with WorkerRunner(environment(), command=(sys.executable, str(STUB)), shared=False) as runner:
        for _ in range(3):
            outcome = runner.run(spec("fine"), lambda stage: alive.add(pid(runner)))
            assert isinstance(outcome, Measured)
            assert runner._worker is None
    assert len(alive) == 3


def test_a_limit_that_is_exported_by_the_user_does_not_reach_the_worker() -> None:
    exported = environment(MLX_MAX_OPS_PER_BUFFER="3")
    with WorkerRunner(exported, command=(sys.executable, str(STUB))) as runner:
        assert speed(runner, "limit") == pytest.approx(1000, rel=0.2)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("exit", "the worker ended with exit status 7: the last words"),
        ("killed", "the worker ended with SIGKILL (the system was most likely out of memory)"),
        ("raise", "KeyError: 'no such expert'"),
        ("garbage", "the worker said what is no JSON: b'\\xff not json'"),
        ("no event", "the worker said what is no event: b'[1, 2]'"),
        (
            "nan",
            "the worker said what makes no sense: StudyInvalid: speeds and times must be positive numbers, "
            "got (5.0, nan) tok/s",
        ),
    ],
)
def test_a_crash_is_an_outcome_and_the_next_trial_runs(runner: WorkerRunner, model: str, reason: str) -> None:
    assert runner.run(spec(model)) == Crashed(reason=reason)
    assert isinstance(runner.run(spec("fine")), Measured)


def test_an_outcome_that_lacks_its_numbers_is_a_crash_and_the_next_trial_runs(runner: WorkerRunner) -> None:
    outcome = runner.run(spec("senseless"))
    assert isinstance(outcome, Crashed) and "the worker said what makes no sense" in outcome.reason
    assert isinstance(runner.run(spec("fine")), Measured)


def test_a_line_without_an_end_is_a_crash(runner: WorkerRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    runner.run(spec("fine"))
    monkeypatch.setattr("autotune.runner._LONGEST_LINE", 8)
    monkeypatch.setattr("autotune.runner.os.read", lambda fd, most: b"0123456789")
    outcome = runner.run(spec("fine"))
    assert outcome == Crashed(reason="the worker said 10 bytes without an end of line")


def test_a_hang_is_an_outcome_and_its_worker_is_gone(runner: WorkerRunner) -> None:
    runner.run(spec("fine"))
    hung = pid(runner)
    quick = dataclasses.replace(spec("hang"), procedure=Procedure(silence_s=0.3))
    assert runner.run(quick) == TimedOut(after_s=0.3)
    with pytest.raises(ProcessLookupError):
        os.kill(hung, 0)
    assert isinstance(runner.run(spec("fine")), Measured)


def test_a_worker_that_died_between_trials_is_a_crash_not_an_error(runner: WorkerRunner) -> None:
    runner.run(spec("fine"))
    os.kill(pid(runner), signal.SIGKILL)
    time.sleep(0.1)
    assert isinstance(runner.run(spec("fine")), Crashed)
    assert isinstance(runner.run(spec("fine")), Measured)


def test_ctrl_c_during_a_trial_ends_the_worker(runner: WorkerRunner) -> None:
    runner.run(spec("fine"))
    hung = pid(runner)
    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        runner.run(spec("hang"))
    with pytest.raises(ProcessLookupError):
        os.kill(hung, 0)


def test_a_command_that_is_no_worker_is_one_clear_error() -> None:
    with pytest.raises(WorkerFailed, match="cannot start the worker /no/such/python"):
        WorkerRunner({}, command=("/no/such/python",)).run(spec("fine"))


def test_a_worker_that_dies_at_its_start_twice_is_a_crash_not_the_end_of_the_run() -> None:
    failing = (sys.executable, "-c", "raise SystemExit('mlx is not installed')")
    outcome = WorkerRunner(environment(), command=failing).run(spec("fine"))
    assert outcome == Crashed(reason="the worker did not start: mlx is not installed")


def test_a_worker_that_dies_at_its_start_once_is_started_again(tmp_path: Path) -> None:
    script = f"[ -e {tmp_path}/x ] || {{ touch {tmp_path}/x; exit 3; }}; exec {sys.executable} {STUB}"
    with WorkerRunner(environment(), command=("/bin/sh", "-c", script)) as runner:
        assert isinstance(runner.run(spec("fine")), Measured)


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for the process in /proc")
def test_a_worker_in_the_middle_of_a_trial_ends_with_its_parent(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import os, sys\n"
        f"sys.path[:0] = [{str(ROOT)!r}, {str(STUB.parent)!r}]\n"
        "from test_runner import STUB, environment, spec\n"
        "from autotune.runner import WorkerRunner\n"
        "runner = WorkerRunner(environment(), command=(sys.executable, str(STUB)))\n"
        "runner.run(spec('fine'))\n"
        "print(runner._worker._popen.pid, flush=True)\n"
        "runner.run(spec('hang'))\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        time.sleep(0.3)
        parent.kill()
    for _ in range(100):
        if not Path(f"/proc/{worker}").exists() or Path(f"/proc/{worker}/stat").read_text().split()[2] == "Z":
            return
        time.sleep(0.05)
    pytest.fail(f"worker {worker} outlived its parent")
