"""Checkpoints that many tests share; made once per run, never changed."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streaming_core.hardware import Machine, detect
from streaming_core.testing import make_checkpoint, parse_size


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """A shell that starts the tests in the background makes them and what they start deaf to Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def machine() -> Machine:
    return detect()


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`checkpoints(dtype="bfloat16", experts=3)` -> folder of a tiny checkpoint with these fields changed."""
    root = tmp_path_factory.mktemp("checkpoints")

    def make(**changes: Any) -> Path:
        name = "-".join(["tiny", *(f"{k}={v}" for k, v in sorted(changes.items()))])
        return make_checkpoint(root / name, replace(parse_size("tiny"), **changes))

    return make


@pytest.fixture(scope="session")
def tiny(checkpoints: Callable[..., Path]) -> Path:
    return checkpoints()


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder for tests that only need a packed store to be there."""
    return tmp_path_factory.mktemp("cache")
