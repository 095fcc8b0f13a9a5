from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from tuner_fakes import workload

from autotune.contest import Contestant, orders, ratio_of, run_rounds
from autotune.statistics import paired_ratio
from autotune.testing import FakeRunner, Weather, killed
from autotune.trial import Measured, Outcome, Procedure, TrialSpec
from streaming_core.settings import Settings

QUIET = Weather(noise=0.0)


def contestant(name: str, threads: int = 4) -> Contestant:
    settings = Settings().with_values({"reading.threads": threads}).to_mapping()
    spec = TrialSpec(
        model="demo", settings=settings, workload=workload(), cache_dir=Path("x"), procedure=Procedure(repeats=1)
    )
    return Contestant(name, spec)


def with_speeds(name: str, speeds: list[float]) -> Contestant:
    found = contestant(name)
    template = FakeRunner(lambda settings: 1.0).run(found.spec)
    assert isinstance(template, Measured)
    found.trials = [replace(template, samples=(speed,)) for speed in speeds]
    return found


def test_a_ratio_is_that_of_the_rounds_and_its_interval_the_one_that_run_decides_by() -> None:
    ours, theirs = [11.0, 10.5, 12.1, 8.4, 9.9, 10.2], [10.0, 10.0, 11.0, 8.0, 9.0, 10.0]
    ratio = ratio_of(with_speeds("streamed", ours), with_speeds("default", theirs))
    interval = paired_ratio([math.log(x) for x in ours], [math.log(x) for x in theirs], confidence=0.95)
    assert ratio is not None
    assert (ratio.low, ratio.middle, ratio.high) == pytest.approx((interval.low, interval.middle, interval.high))
    assert ratio.median == pytest.approx(math.sqrt(1.05 * 1.1))
    assert (ratio.level, ratio.rounds) == (0.95, 6)


def test_what_slows_both_down_in_a_round_does_not_widen_the_interval() -> None:
    theirs = [10.0, 5.0, 2.0, 8.0]
    ratio = ratio_of(with_speeds("streamed", [1.5 * speed for speed in theirs]), with_speeds("default", theirs))
    assert ratio is not None
    assert (ratio.low, ratio.high) == pytest.approx((1.5, 1.5))


@pytest.mark.parametrize("rounds", [1, 2])
def test_few_rounds_have_a_ratio_and_no_interval(rounds: int) -> None:
    ratio = ratio_of(with_speeds("streamed", [3.0] * rounds), with_speeds("default", [2.0] * rounds))
    assert ratio is not None
    assert (ratio.median, ratio.low, ratio.high, ratio.rounds) == (pytest.approx(1.5), None, None, rounds)


def test_rounds_that_one_did_not_finish_do_not_count() -> None:
    failed = with_speeds("default", [2.0])
    ratio = ratio_of(with_speeds("streamed", [3.0, 9.0, 9.0]), failed)
    assert ratio is not None and ratio.rounds == 1
    assert ratio_of(with_speeds("streamed", [3.0]), contestant("default")) is None


def test_places_in_a_round_are_even_over_two_rounds_and_differ_between_seeds() -> None:
    entered = [contestant(name) for name in "abc"]
    found = [[each.name for each in order] for order in orders(entered, 6, seed=1)]
    assert all(sorted(order) == ["a", "b", "c"] for order in found)
    assert found[1::2] == [order[::-1] for order in found[::2]]
    assert len({tuple(next(orders(entered, 1, seed))[n].name for n in range(3)) for seed in range(9)}) > 1


def test_who_fails_is_not_measured_again_and_the_others_are() -> None:
    answers: list[Outcome | float] = [5.0, killed()]

    def speed(settings: Settings) -> float | Outcome:
        return answers.pop(0) if settings.reading.threads == 8 else 6.0

    entered = [contestant("streamed"), contestant("default", threads=8)]
    ended: list[str] = []
    run_rounds(entered, 4, 0, FakeRunner(speed, QUIET), lambda *_: None, lambda each, _: ended.append(each.name))
    assert [len(each.trials) for each in entered] == [4, 1]
    assert entered[1].failure == "the worker ended with SIGKILL"
    assert ended.count("default") == 2
