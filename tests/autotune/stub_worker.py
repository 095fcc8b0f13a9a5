"""A worker whose trials do what the name of their model says.  Started by test_runner.py as a process."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable

from autotune.testing import FakeRunner
from autotune.trial import Outcome, Stage, TrialSpec, outcome_to_json
from autotune.worker import serve

REPLIES = os.dup(1)


def say(line: bytes) -> None:
    """Past the protocol; then waits to be killed."""
    os.write(REPLIES, line + b"\n")
    time.sleep(60)


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
        case "garbage":
            say(b"\xff not json")
        case "senseless":
            say(b'{"event": "outcome", "outcome": {"kind": "measured"}}')
        case "no event":
            say(b"[1, 2]")
        case "nan":
            outcome = {**outcome_to_json(FakeRunner(lambda settings: 5.0).run(spec)), "samples": [5.0, math.nan]}
            say(json.dumps({"event": "outcome", "outcome": outcome}).encode())
        case "pid":
            speed = float(os.getpid())
        case "limit":
            speed = float(os.environ.get("MLX_MAX_OPS_PER_BUFFER", "1000"))
        case _:
            sys.stdout.write("noise on standard output\n")
            speed = 5.0
    return FakeRunner(lambda settings: speed).run(spec)


if __name__ == "__main__":
    replies = os.fdopen(REPLIES, "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(run_trial, sys.stdin, replies)
