"""The commands, and a runner for them that needs no process."""

from __future__ import annotations

from typing import Any

import pytest

import autotune.commands.bench
import autotune.commands.tuning
from autotune.testing import FakeRunner

COMMANDS = ("run", "bench", "generate", "chat", "serve", "show", "plan", "pack", "probe", "verify", "doctor", "report")


def fake_runner(monkeypatch: pytest.MonkeyPatch, runner: FakeRunner, command: Any = autotune.commands.tuning) -> None:
    class Runner:
        def __init__(self, environment: object, **options: object) -> None: ...

        def __enter__(self) -> FakeRunner:
            return runner

        def __exit__(self, *_: object) -> None:
            runner.close()

    monkeypatch.setattr(command, "WorkerRunner", Runner)
