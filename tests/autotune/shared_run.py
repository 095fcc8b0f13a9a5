"""One of several processes that tune on fake machines through one database.  Started by test_shared.py."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import optuna
from tuner_fakes import hill, request, subject

from autotune.runner import ignore
from autotune.testing import FakeRunner, Weather
from autotune.trial import Outcome, Stage, TrialSpec
from autotune.tuner import tune


class SlowRunner(FakeRunner):
    """Takes long enough for others to be at work at the same time."""

    def run(self, spec: TrialSpec, on_stage: Callable[[Stage], None] = ignore) -> Outcome:
        time.sleep(0.02)
        return FakeRunner.run(self, spec, on_stage)


def main(folder: Path, url: str, speed: float, trials: int) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    runner = SlowRunner(lambda settings: speed * hill(settings), Weather(noise=0.01), seed=round(speed))
    result = tune(request(trials=trials, storage=url), subject(), runner, folder, clock=runner.clock)
    gain = hill(result.settings) / hill(request().base.with_values({"residency.slots": 21}))
    found = {"status": result.status.value, "gain": gain, "trials": len(result.trials), "search": result.search}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
