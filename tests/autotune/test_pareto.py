"""Memory against speed: budgets, the knee, and the command that writes it."""

from __future__ import annotations

import itertools
import json
import math
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cli_cases import fake_runner
from hypothesis import given
from hypothesis import strategies as st

from autotune.cli import main
from autotune.pareto import BudgetPoint, budgets_between, knee_of
from autotune.result import Status, TuneResult
from autotune.testing import FakeRunner, Weather
from streaming_core.profile import Profile
from streaming_core.settings import Settings

MIB = 1 << 20
WORDS = ["run", "--model", "tiny", "--objective", "pareto", "--budget", "600MiB", "--trials", "8", "--output", "p.yaml"]


def point(budget: int, tps: float, needed_gain: float = 0.02) -> BudgetPoint:
    side = SimpleNamespace(decode_tps=tps)
    result = SimpleNamespace(status=Status.DEFAULT_KEPT, tuned=None, default=side, needed_gain=needed_gain)
    return BudgetPoint(budget, cast(TuneResult, result))


@given(st.integers(1, 1 << 16), st.integers(1, 1 << 16), st.integers(2, 6))
def test_budgets_fall_from_the_largest_to_the_smallest(one: int, other: int, count: int) -> None:
    smallest, largest = sorted((one * MIB, other * MIB))
    found = budgets_between(smallest, largest, count)
    assert found[0] == largest and found[-1] == smallest
    assert all(a > b for a, b in itertools.pairwise(found))
    assert len(found) <= count


def test_the_knee_is_where_memory_stops_to_pay() -> None:
    bent = [point(256, 20.0), point(512, 30.0), point(1024, 31.0), point(2048, 32.0)]
    assert knee_of(bent) is bent[1]
    assert knee_of(bent[::-1]) is bent[1]


def test_where_memory_does_nothing_the_smallest_budget_is_the_knee() -> None:
    flat = [point(256, 20.0), point(512, 20.3), point(1024, 20.2)]
    assert knee_of(flat) is flat[0]


def test_where_every_byte_pays_alike_or_more_and_more_all_of_it_is_taken() -> None:
    straight = [point(256 * 2**n, 20.0 + 5 * n) for n in range(4)]
    assert knee_of(straight) is straight[3]
    late = [point(256, 20.0), point(512, 20.5), point(1024, 22.0), point(2048, 32.0)]
    assert knee_of(late) is late[3]


def test_memory_beyond_the_fastest_point_is_never_taken() -> None:
    fallen = [point(256, 20.0), point(512, 32.0), point(1024, 30.0), point(2048, 31.0)]
    assert knee_of(fallen) is fallen[1]


def saturating(settings: Settings) -> float:
    """Fast from 160 MiB on; threads help everywhere."""
    budget = (settings.memory.budget or 0) / MIB
    return 10.0 * min(1.0, budget / 160.0) * (1 + 0.1 * math.log2(settings.reading.threads))


@pytest.mark.usefixtures("elsewhere")
def test_the_command_writes_the_knee_and_prints_the_curve(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_runner(monkeypatch, FakeRunner(saturating, Weather(noise=0.005)))
    assert main([*WORDS, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    curve = found["curve"]
    assert [row["budget_bytes"] for row in curve] == sorted((row["budget_bytes"] for row in curve), reverse=True)
    assert 2 <= len(curve) <= 4
    entry = Profile.read("p.yaml").entry("tiny")
    assert entry.status == "measured"
    assert entry.settings.memory.budget == found["knee"]["budget_bytes"]
    assert entry.evidence["curve"] == curve
    knee = next(row for row in curve if row["budget_bytes"] == found["knee"]["budget_bytes"])
    assert all(row["decode_tps"] <= 1.1 * knee["decode_tps"] for row in curve)
    assert main(WORDS) == 0
    out = capsys.readouterr().out
    assert "knee" in out and "memory buys little" in out


@pytest.mark.usefixtures("elsewhere")
def test_interrupted_in_its_second_budget_it_keeps_the_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_runner(monkeypatch, FakeRunner(saturating, Weather(noise=0.005), interrupt_at=24))
    assert main([*WORDS, "--json"]) == 130
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["interrupted"] and len(found["curve"]) == 1
    assert Profile.read("p.yaml").entry("tiny").status == "interrupted"
