"""Runs trials.  `Runner` is the seam that the search, the race and the benches see."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Protocol

from autotune.errors import StudyInvalid, WorkerFailed
from autotune.trial import Crashed, Measured, Outcome, Stage, TimedOut, TrialSpec, outcome_from_json

__all__ = ["Runner", "WorkerRunner", "ignore", "process_environment"]

_READY_S = 120.0  # importing mlx_lm on a busy machine with a cold disk
_LONGEST_LINE = 64 << 20
_MAX_OPS = "MLX_MAX_OPS_PER_BUFFER"


def ignore(_: object) -> None:
    """The callback of those who do not listen."""


class Runner(Protocol):
    """Measures one trial at a time.  An exception means that nothing at all can be measured."""

    def run(self, spec: TrialSpec, on_stage: Callable[[Stage], None] = ignore) -> Outcome: ...

    def close(self) -> None: ...


class WorkerRunner:
    """Keeps one worker process up, as long as trials can share it and it lives; or gives each trial one of its own.

    The worker leads a process group of its own: Ctrl-C at the terminal reaches only the parent, which then closes the
    runner, and whatever the worker started dies with it.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        command: Sequence[str] = (sys.executable, "-m", "autotune.worker"),
        shared: bool = True,
    ) -> None:
        """`environment` is what a worker starts with; settings of `process` are added to it.

        `shared=False` starts a worker for every trial: slower, and nothing is left over from the trial before.
        """
        self._environment = dict(environment)
        self._command = tuple(command)
        self._shared = shared
        self._worker: _Worker | None = None

    def run(self, spec: TrialSpec, on_stage: Callable[[Stage], None] = ignore) -> Outcome:
        """Raises WorkerFailed when the worker's command cannot be run at all."""
        process = dict(spec.settings.get("process", {}))
        if self._worker is not None and self._worker.process != process:
            self.close()
        if self._worker is None:
            try:
                self._worker = self._started(process)
            except _DiedAtStart as err:
                return Crashed(reason=str(err))
        clean = False
        try:
            outcome = self._worker.run(spec, on_stage)
            clean = isinstance(outcome, Measured)
        finally:  # also on Ctrl-C: a trial in flight cannot be stopped otherwise
            if not (clean and self._shared):  # what a failed trial leaves in memory would be charged to the next one
                self.close()
        return outcome

    def _started(self, process: Mapping[str, Any]) -> _Worker:
        """A start may fail for a moment, with memory short for one; a second one that fails is the trial's outcome."""
        try:
            return _Worker(self._command, self._environment, process)
        except _DiedAtStart:
            return _Worker(self._command, self._environment, process)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    def __enter__(self) -> WorkerRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _DiedAtStart(Exception):
    """The process was started, and ended or fell silent before its first word."""


class _Garbage(Exception):
    """What came from the worker is no event of the protocol."""


class _Worker:
    """One worker process and the lines that come from it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], process: Mapping[str, Any]) -> None:
        self.process = dict(process)
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the process
        try:
            self._popen = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env=process_environment(environment, process),
                start_new_session=True,
            )
        except OSError as err:
            raise WorkerFailed(f"cannot start the worker {command[0]}: {err.strerror}") from err
        self._lines = _LineReader(self._popen)
        try:
            self._greet()
        except BaseException:
            self.kill()
            raise

    def _greet(self) -> None:
        try:
            event = self._lines.next(time.monotonic() + _READY_S)
        except TimeoutError:
            raise _DiedAtStart(f"the worker said nothing for {_READY_S:.0f} s after its start") from None
        except _Garbage as err:
            raise _DiedAtStart(str(err)) from err
        if event is None:
            raise _DiedAtStart(f"the worker did not start: {_last_line(self._log)}")

    def run(self, spec: TrialSpec, on_stage: Callable[[Stage], None]) -> Outcome:
        assert self._popen.stdin is not None
        try:
            self._popen.stdin.write(json.dumps(spec.to_json()).encode() + b"\n")
            self._popen.stdin.flush()
        except OSError:  # it died between two trials; why is found below
            return self._death()
        while True:
            try:
                event = self._lines.next(time.monotonic() + spec.procedure.silence_s)
                if event is None:
                    return self._death()
                said = _understood(event)
            except TimeoutError:
                return TimedOut(after_s=spec.procedure.silence_s)
            except _Garbage as err:
                return Crashed(reason=str(err))
            if not isinstance(said, Stage):
                return said
            on_stage(said)

    def kill(self) -> None:
        """Ends the process and everything it started."""
        with contextlib.suppress(ProcessLookupError):  # all of it is gone already
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()
        self._lines.close()
        for pipe in (self._popen.stdin, self._popen.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:  # a request that the dead worker never read
                continue
        self._log.close()

    def _death(self) -> Crashed:
        code = self._popen.wait()
        how = f"exit status {code}" if code >= 0 else signal.Signals(-code).name
        if code == -signal.SIGKILL:
            how += " (the system was most likely out of memory)"
        words = _last_line(self._log)
        return Crashed(reason=f"the worker ended with {how}" + (f": {words}" if words else ""))


def process_environment(base: Mapping[str, str], process: Mapping[str, Any]) -> dict[str, str]:
    """MLX reads the limit once, when its first stream is made: only a fresh process can change it."""
    environment = {name: value for name, value in base.items() if name != _MAX_OPS}
    limit = process.get("max_ops_per_buffer")
    return environment if limit is None else {**environment, _MAX_OPS: str(limit)}


class _LineReader:
    """JSON lines from a pipe, with a deadline."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        assert popen.stdout is not None
        self._fd = popen.stdout.fileno()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._fd, selectors.EVENT_READ)
        self._pending = b""

    def next(self, deadline: float) -> dict[str, Any] | None:
        """The next event; None at the end of the stream.  Raises TimeoutError at the deadline."""
        while b"\n" not in self._pending:
            left = deadline - time.monotonic()
            if left <= 0 or not self._selector.select(left):
                raise TimeoutError
            piece = os.read(self._fd, 1 << 16)
            if not piece:
                return None
            self._pending += piece
            if len(self._pending) > _LONGEST_LINE and b"\n" not in self._pending:
                raise _Garbage(f"the worker said {len(self._pending)} bytes without an end of line")
        line, _, self._pending = self._pending.partition(b"\n")
        try:
            event = json.loads(line)
        except ValueError as err:
            raise _Garbage(f"the worker said what is no JSON: {line[:40]!r}") from err
        if not isinstance(event, dict):
            raise _Garbage(f"the worker said what is no event: {line[:40]!r}")
        return event

    def close(self) -> None:
        self._selector.close()


def _understood(event: Mapping[str, Any]) -> Stage | Outcome:
    """Raises _Garbage."""
    try:
        if event["event"] == "outcome":
            return outcome_from_json(event["outcome"])
        return Stage(event["stage"], event["done"], event["total"])
    except (StudyInvalid, KeyError, TypeError, ValueError) as err:
        raise _Garbage(f"the worker said what makes no sense: {type(err).__name__}: {err}") from err


def _last_line(log: IO[bytes]) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - 4096))
    lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""
