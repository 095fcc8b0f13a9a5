"""Trials that have lost after their first passage."""

from __future__ import annotations

from pathlib import Path

import pytest
from tuner_fakes import hill, tuned, workbench

from autotune.history import Config
from autotune.journal import Journal, Purpose
from autotune.result import Status
from autotune.space import Objective
from autotune.testing import FakeRunner, Weather
from autotune.trial import Measured
from streaming_core.settings import Settings

QUIET = Weather(noise=0.01)


def far_slower(settings: Settings) -> float:
    return hill(settings) * (0.2 if settings.reading.page_cache == "bypass" else 1.0)


def test_they_are_cut_and_kept_and_never_win(tmp_path: Path) -> None:
    result = tuned(tmp_path, FakeRunner(far_slower, QUIET), trials=24)
    assert result.status is Status.PROVEN and result.settings.reading.page_cache != "bypass"
    with Journal(next(tmp_path.glob("studies/*"))) as journal:
        measured = [each for each in journal.records if isinstance(each.outcome, Measured)]
    slow = [each.outcome for each in measured if each.settings["reading"]["page_cache"] == "bypass"]
    assert slow and all(each.hopeless and each.partial and len(each.samples) == 1 for each in slow)
    others = [each for each in measured if each.outcome not in slow]
    speeds = [far_slower(Settings.from_mapping(each.settings)) for each in others]
    for each, speed in zip(others, speeds, strict=True):
        assert each.outcome.hopeless == (len(each.outcome.samples) < 3)
        assert not each.outcome.hopeless or speed < 0.6 * max(speeds)  # as slow for another reason
    assert {each.purpose for each in others} >= {Purpose.DEFAULT, Purpose.RACE, Purpose.PAIR}


@pytest.mark.parametrize(
    ("noise", "objective", "speed", "cut"),
    [
        (0.01, Objective.DECODE, 0.4, True),
        (0.01, Objective.DECODE, 0.6, False),
        (0.01, Objective.PREFILL, 0.4, False),  # it may be the fastest to its first token
        (0.5, Objective.DECODE, 0.4, False),  # on such a machine the next passage may say the opposite
    ],
)
def test_only_what_is_clearly_slower_by_the_objective_is_cut(
    tmp_path: Path, noise: float, objective: Objective, speed: float, cut: bool
) -> None:
    slow = Settings().with_values({"reading.threads": 1})
    runner = FakeRunner(lambda settings: 10.0 * (speed if settings == slow else 1.0), Weather(noise=noise), seed=1)
    bench = workbench(tmp_path, runner)
    bench.judge.objective = objective
    for _ in range(3):
        bench.measurer.measure(bench.history.default, Purpose.DEFAULT)
    runner.weather = Weather(noise=0.0)
    outcome = bench.measurer.measure(Config("slow", {}, slow), Purpose.SEARCH)
    assert isinstance(outcome, Measured) and outcome.hopeless is cut
    if cut:
        assert bench.judge.judge(outcome).broken == ["hopeless"]
    raced = bench.measurer.measure(Config("slow", {}, slow), Purpose.RACE)
    assert isinstance(raced, Measured) and not raced.hopeless
