from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tuner_fakes import Workbench, workbench

from autotune.history import Config
from autotune.journal import Purpose
from autotune.race import RacePlan, RaceResult, run_race
from autotune.testing import FakeRunner, Weather, killed
from autotune.trial import Outcome
from streaming_core.settings import Settings

PLAN = RacePlan(finalists=3, rounds=3, pairs=8)


def by_threads(speeds: dict[int, float | Outcome]) -> Callable[[Settings], float | Outcome]:
    return lambda settings: speeds.get(settings.reading.threads, 10.0)


def finalists(bench: Workbench, *threads: int) -> list[Config]:
    params = [bench.space.to_params(Settings().with_values({"reading.threads": count})) for count in threads]
    return [bench.history.config(each) for each in params]


def race(bench: Workbench, entrants: list[Config], plan: RacePlan = PLAN, sigma: float = 0.01) -> RaceResult:
    result = RaceResult()
    bench.journal._write = lambda value: None  # type: ignore[method-assign]  # hundreds of races, no disk
    bench.measurer.measure(bench.history.default, Purpose.DEFAULT)
    bench.runner.specs.clear()
    bench.journal.records.clear()
    bench.runner.now = 0.0
    run_race(result, bench.measurer, bench.judge, bench.history.default, entrants, plan, sigma)
    return result


def test_a_true_gain_is_proven_through_drift_and_outliers(tmp_path: Path) -> None:
    weather = Weather(noise=0.03, drift=0.3, outliers=0.04)
    bench = workbench(tmp_path, FakeRunner(by_threads({8: 12.0, 16: 11.0}), weather, seed=3))
    result = race(bench, finalists(bench, 2, 8, 16))
    assert result.proven
    assert result.winner is not None and result.winner.settings.reading.threads == 8
    assert result.interval is not None and result.interval.low < 1.2 < result.interval.high * 1.05


def test_only_fresh_pairs_count_and_the_winner_goes_first_in_half_of_them(tmp_path: Path) -> None:
    bench = workbench(tmp_path, FakeRunner(by_threads({8: 15.0})))
    race(bench, finalists(bench, 8))
    pairs = [spec.settings["reading"]["threads"] for spec in bench.runner.specs[6:]]
    assert len(pairs) == 16
    assert sum(first == 8 for first in pairs[::2]) == 4
    assert sorted(pairs) == [4] * 8 + [8] * 8


def test_finalists_behind_the_default_need_no_pairs(tmp_path: Path) -> None:
    bench = workbench(tmp_path, FakeRunner(by_threads({8: 7.0, 16: 8.0})))
    result = race(bench, finalists(bench, 8, 16))
    assert result.winner is None and not result.proven
    assert len(bench.runner.specs) == 9


def test_a_finalist_that_crashes_is_out_of_the_race(tmp_path: Path) -> None:
    bench = workbench(tmp_path, FakeRunner(by_threads({8: 14.0, 16: killed()})))
    result = race(bench, finalists(bench, 8, 16))
    assert result.proven
    assert sum(spec.settings["reading"]["threads"] == 16 for spec in bench.runner.specs) == 1


def test_a_race_without_time_proves_nothing(tmp_path: Path) -> None:
    bench = workbench(tmp_path, FakeRunner(by_threads({8: 14.0}), trial_s=10.0))
    result = race(bench, finalists(bench, 8), RacePlan(deadline=100.0))
    assert not result.proven
    assert "the time ran out after 2 of 8 pairs" in result.reason


@pytest.mark.parametrize("sigma", [0.02, 0.08])
def test_identical_settings_are_hardly_ever_accepted(tmp_path: Path, sigma: float) -> None:
    accepted = 0
    bench = workbench(tmp_path, FakeRunner(lambda settings: 10.0))
    for seed in range(40):
        runner = FakeRunner(lambda settings: 10.0, Weather(noise=sigma, outliers=0.04, drift=0.1), seed=seed)
        bench.measurer._runner = bench.runner = runner
        accepted += race(bench, finalists(bench, 2, 8, 16), sigma=sigma / 3**0.5).proven
    assert accepted <= 2


def test_pairs_are_written_down_as_such(tmp_path: Path) -> None:
    bench = workbench(tmp_path, FakeRunner(by_threads({8: 15.0})))
    race(bench, finalists(bench, 8))
    purposes = [record.purpose for record in bench.journal.records]
    assert purposes == [Purpose.RACE] * 6 + [Purpose.PAIR] * 16


@pytest.mark.parametrize("gain, kept", [(1.0, False), (1.2, True)])
def test_a_change_that_gains_too_little_beside_the_others_is_left_out(tmp_path: Path, gain: float, kept: bool) -> None:
    def speed(settings: Settings) -> float:
        bypass = settings.reading.page_cache == "bypass"
        return 10.0 * (1.2 if bypass else 1.0) * (gain if settings.reading.threads == 8 else 1.0)

    for seed in range(10):  # without a rule the one with the idle change would win half of them
        bench = workbench(tmp_path / str(seed), FakeRunner(speed, Weather(noise=0.01, drift=0.1), seed=seed))
        alone = Settings().with_values({"reading.page_cache": "bypass"})
        one, both = (
            bench.history.config(bench.space.to_params(each))
            for each in (alone, alone.with_values({"reading.threads": 8}))
        )
        result = race(bench, [both, one])
        assert result.winner is (both if kept else one)
        assert result.proven
