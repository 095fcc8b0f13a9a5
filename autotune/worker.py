"""The process that trials run in: `python -m autotune.worker`.

Protocol: one JSON line a trial on standard input, one JSON line an event on what was standard output when the
process started.  Everything anybody prints goes to standard error.  Events are `{"event": "ready"}`,
`{"event": "stage", "stage": ..., "done": ..., "total": ...}` and, last, `{"event": "outcome", "outcome": {...}}`.
The worker ends when its standard input does, also in the middle of a trial: it never outlives its parent.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable
from typing import TextIO

from autotune.trial import Crashed, Outcome, Stage, TrialSpec, outcome_to_json

__all__ = ["RunTrial", "main", "serve"]


RunTrial = Callable[[TrialSpec, Callable[[Stage], None]], Outcome]


def serve(run_trial: RunTrial, requests: TextIO, replies: TextIO) -> None:
    """Runs trials until `requests` ends.  An exception of a trial is its outcome, not the end of the worker."""

    def say(event: str, **values: object) -> None:
        replies.write(json.dumps({"event": event, **values}) + "\n")
        replies.flush()

    def say_stage(stage: Stage) -> None:
        say("stage", stage=stage.name, done=stage.done, total=stage.total)

    lines = _lines(requests)
    say("ready")
    while True:
        spec = TrialSpec.from_json(json.loads(lines.get()))
        say("outcome", outcome=outcome_to_json(_outcome(run_trial, spec, say_stage)))


def _outcome(run_trial: RunTrial, spec: TrialSpec, on_stage: Callable[[Stage], None]) -> Outcome:
    try:
        return run_trial(spec, on_stage)
    except Exception as err:  # noqa: BLE001  whatever a configuration breaks is a result about that configuration
        traceback.print_exc(file=sys.stderr)
        return Crashed(reason=f"{type(err).__name__}: {err}".splitlines()[0])


def _lines(requests: TextIO) -> queue.Queue[str]:
    """Requests as they come.  Read by a thread, so that the end of the input is noticed during a trial too."""
    found: queue.Queue[str] = queue.Queue()

    def read() -> None:
        for line in requests:
            found.put(line)
        os._exit(0)

    threading.Thread(target=read, name="requests", daemon=True).start()
    return found


def main() -> None:
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # MLX, tokenizers and friends print; the protocol stays clean
    from autotune.measure import run_trial

    serve(run_trial, sys.stdin, replies)


if __name__ == "__main__":
    main()
