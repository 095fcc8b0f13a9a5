"""A worker whose trials do what the name of their model says.  Started by test_runner.py as a process."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable

from autotune.testing import FakeRunner
from autotune.trial import Outcome, Stage, TrialSpec
from autotune.worker import serve


def run_trial(spec: TrialSpec, on_stage: Callable[[Stage], None]) -> Outcome:
    on_stage(Stage("loading", 1, 2))
    match spec.model:
        case "exit":
            sys.stderr.write("the last words\n")
            sys.stderr.flush()
            os._exit(7)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            time.sleep(60)
        case "raise":
            raise KeyError("no such expert")
        case "pid":
            speed = float(os.getpid())
        case "limit":
            speed = float(os.environ.get("MLX_MAX_OPS_PER_BUFFER", "1000"))
        case _:
            sys.stdout.write("noise on standard output\n")
            speed = 5.0
    return FakeRunner(lambda settings: speed).run(spec)


if __name__ == "__main__":
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(run_trial, sys.stdin, replies)
