"""A run on a fake machine that is killed again and again, then carried on to its end.  Started by test_kills.py.

It forks, which only a process without MLX and its threads may do: a life then costs no imports.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
from tuner_fakes import hill, request, subject

from autotune.result import Status, TuneResult
from autotune.runner import ignore
from autotune.testing import FakeRunner, Weather
from autotune.trial import Outcome, Stage, TrialSpec
from autotune.tuner import tune
from streaming_core.errors import ProfileInvalid
from streaming_core.hardware import FakeMachine
from streaming_core.profile import Entry, Profile, Program, load_profile

MACHINE = FakeMachine.mac("Apple M3 Max", 64 << 30)


class CountedRunner(FakeRunner):
    """Notes when a trial begins, where no kill takes it back; takes a moment, so that kills find it at work."""

    begun: Path

    def run(self, spec: TrialSpec, on_stage: Callable[[Stage], None] = ignore) -> Outcome:
        with open(self.begun, "ab", buffering=0) as file:
            file.write(b".")
        time.sleep(0.01)
        return FakeRunner.run(self, spec, on_stage)


def live(folder: Path, seed: int) -> None:
    """One process's life, as long as it lasts."""
    runner = CountedRunner(hill, Weather(noise=0.01), seed=seed)
    runner.begun = folder / "begun"

    def write(result: TuneResult) -> None:
        status = "interrupted" if result.status is Status.INTERRUPTED else "measured"
        entry = Entry(fingerprint="abc", settings=result.settings, status=status, evidence=result.evidence())
        profile = Profile(hardware=MACHINE.hardware(), program=Program(version="0"))
        profile.with_entry("owner/demo", entry).write(folder / "p.yaml")

    write(tune(request(trials=45), subject(), runner, folder, clock=runner.clock, on_best=write))


def forked(folder: Path, seed: int) -> int:
    child = os.fork()
    if child:
        return child
    try:
        live(folder, seed)
        os._exit(0)
    except BaseException:  # noqa: BLE001  a forked child must not return into its parent's code
        traceback.print_exc()
        os._exit(1)


def found(folder: Path) -> dict[str, Any]:
    """What a life left behind."""
    journal = next(iter(folder.glob("studies/*/trials.jsonl")), None)
    lines = [] if journal is None else journal.read_bytes().split(b"\n")[1:-1]
    begun = folder / "begun"
    path = folder / "p.yaml"
    try:
        profile = load_profile(path, machine=MACHINE).entry("demo") if path.exists() else None
        status = None if profile is None else profile.status
    except ProfileInvalid as err:
        status = str(err)
    return {
        "begun": begun.stat().st_size if begun.exists() else 0,
        "trials": [json.loads(line) for line in lines],
        "profile": status,
    }


def say(life: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(life) + "\n")
    sys.stdout.flush()


def main(folder: Path, kills: int) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    optuna.create_study(
        storage="sqlite://"
    )  # imports what it needs only now: here, so that no life spends its time on it
    rng = random.Random(5)
    for number in range(kills):
        child = forked(folder, number)
        time.sleep(rng.uniform(0.05, 0.9))
        os.kill(child, signal.SIGKILL)  # a child that has ended is still there until it is waited for
        os.waitpid(child, 0)
        say(found(folder))
    _, status = os.waitpid(forked(folder, kills), 0)
    say({**found(folder), "status": os.waitstatus_to_exitcode(status)})


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
