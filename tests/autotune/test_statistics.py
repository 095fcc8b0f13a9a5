from __future__ import annotations

import math

import numpy as np
import pytest

from autotune.statistics import credible_gain, measured_noise, paired_ratio, round_normalised


def test_noise_of_identical_trials_is_zero_and_the_smallest_gain_three_percent() -> None:
    noise = measured_noise([[10.0, 12.0, 11.0]] * 2)
    assert noise.sigma == 0.0
    assert noise.credible_gain == 0.03


def test_noise_is_the_deviation_of_the_medians_between_trials() -> None:
    noise = measured_noise([[10.0], [11.0]])
    assert noise.sigma == pytest.approx(math.log(1.1) / math.sqrt(2) * 1.2533)


def test_passages_that_differ_in_speed_are_not_noise() -> None:
    assert measured_noise([[5.0, 50.0, 10.0], [5.0, 50.0, 10.0]]).sigma == 0.0


def test_noise_of_no_trials_is_nothing() -> None:
    assert measured_noise([]).measurements == 0


def test_credible_gain_shrinks_with_pairs_but_not_below_three_percent() -> None:
    assert credible_gain(0.04) == pytest.approx(0.12)
    assert credible_gain(0.04, 4) == pytest.approx(0.06)
    assert credible_gain(0.04, 100) == 0.03


def test_rounds_are_compared_within_themselves() -> None:
    hot = {"a": 0.0, "b": -0.1, "c": -0.2}
    cold = {name: score + 1.0 for name, score in hot.items()}
    assert round_normalised([hot, cold]) == pytest.approx({"a": 0.1, "b": 0.0, "c": -0.1})


def test_an_entrant_that_crashed_in_a_round_is_judged_by_the_others() -> None:
    assert round_normalised([{"a": 0.0, "b": -0.2}, {"b": 0.0}])["a"] == pytest.approx(0.1)


def test_interval_of_equal_pairs_is_a_point() -> None:
    interval = paired_ratio([math.log(2.0)] * 6, [0.0] * 6)
    assert (interval.low, interval.middle, interval.high) == pytest.approx((2.0, 2.0, 2.0))


def test_one_pair_proves_nothing() -> None:
    interval = paired_ratio([1.0], [0.0])
    assert interval.low == 0.0
    assert interval.high == math.inf


def test_interval_is_the_same_for_the_same_seed() -> None:
    candidate, default = [0.1, 0.2, 0.05, 0.12], [0.0, 0.01, -0.02, 0.03]
    assert paired_ratio(candidate, default, seed=3) == paired_ratio(candidate, default, seed=3)


def test_one_wild_pair_hardly_moves_the_middle() -> None:
    quiet = [0.10, 0.11, 0.09, 0.10, 0.12, 0.10, 0.11, 0.09]
    wild = [*quiet[:-1], -2.0]
    assert paired_ratio(wild, [0.0] * 8).middle == pytest.approx(paired_ratio(quiet, [0.0] * 8).middle, rel=0.02)


@pytest.mark.parametrize("pairs", [4, 8])
@pytest.mark.parametrize("sigma", [0.01, 0.10])
def test_lower_bound_of_identical_settings_exceeds_one_as_rarely_as_it_says(pairs: int, sigma: float) -> None:
    rng = np.random.default_rng(7)
    draws = rng.normal(0.0, sigma, (2, 800, pairs))
    false = sum(
        paired_ratio(a, b, resamples=400, seed=i).low > 1.0 for i, (a, b) in enumerate(zip(*draws, strict=True))
    )
    assert false / 800 <= 0.05
