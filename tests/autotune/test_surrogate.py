from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
from tuner_fakes import space, workbench

from autotune.coordinate import neighbours
from autotune.knobs import Params
from autotune.landscape import Landscape
from autotune.proposals import Proposals
from autotune.search import Search, SearchPlan
from autotune.surrogate import Surrogate
from autotune.testing import SPACES, FakeRunner, FakeSpace, Weather, interacting
from streaming_core.settings import Settings


def params_of(threads: int) -> Params:
    return space().to_params(Settings().with_values({"reading.threads": threads}))


def test_a_machine_that_heats_up_is_not_mistaken_for_slow_settings() -> None:
    default, other = params_of(4), params_of(8)
    points = [default, default, other, default, other, default]
    moments = [0, 1, 10, 20, 21, 22]
    heat = [-0.1 * (1 - math.exp(-moment / 10)) for moment in moments]
    surrogate = Surrogate(space())
    scores = [0.05 * (each is other) + hot for each, hot in zip(points, heat, strict=True)]
    surrogate.learn(points, scores, moments, 0.01)
    gain, deviation = surrogate.compare(other, default)
    assert gain == pytest.approx(0.05, abs=0.02)  # the difference of the plain means is 0.02
    assert deviation < 0.03


def test_what_was_measured_is_known_better_than_what_was_not() -> None:
    surrogate = Surrogate(space())
    surrogate.learn([params_of(4), params_of(4), params_of(8)], [2.0, 2.01, 2.2], [0, 1, 2], 0.01)
    means, deviations = surrogate.predict([params_of(4), params_of(8), params_of(32)])
    assert means[0] < means[1]
    assert deviations[0] < deviations[2]


@pytest.mark.parametrize("make", SPACES)
def test_fake_spaces_have_thousands_of_points_and_room_above_the_default(make: Callable[[], FakeSpace]) -> None:
    fake = make()
    rng = random.Random(0)
    some = islice(neighbours(fake.space, fake.space.to_params(fake.space.base), rng, changes=9), 150)
    assert max(fake.speed(fake.space.settings(params)) for params in some) > 1.1 * fake.speed(fake.space.base)
    assert fake.space.size >= 2000


def test_search_comes_close_to_the_best_of_an_interacting_space_in_forty_trials(tmp_path: Path) -> None:
    fake = interacting()
    bench = workbench(tmp_path, FakeRunner(fake.speed, Weather(noise=0.01), seed=1), fake.space)
    plan = SearchPlan(trials=40, seed=1)
    search = Search(bench.space, bench.history, bench.measurer, bench.judge, plan, bench.events.append)
    search.measure_default()
    search.run(Proposals.in_memory(bench.space, bench.journal.records, bench.judge, seed=1))
    assert len(bench.journal.records) <= 40
    assert fake.speed(search.finalists(1)[0].settings) > 0.95 * 25.387


def test_changes_that_prove_nothing_are_left_out_of_the_race(tmp_path: Path) -> None:
    def speed(settings: Settings) -> float:
        return 12.0 if settings.reading.page_cache == "bypass" else 10.0

    bench = workbench(tmp_path, FakeRunner(speed, Weather(noise=0.0001)))
    landscape = Landscape(bench.space, bench.history, bench.judge, random.Random(0))
    search = Search(bench.space, bench.history, bench.measurer, bench.judge, SearchPlan(trials=2), bench.events.append)
    search.measure_default()
    both = Settings().with_values({"reading.page_cache": "bypass", "store.layout": "checkpoint"})
    for changed in (both, both.with_values({"store.layout": "packed"})):
        search._measure(bench.history.config(bench.space.to_params(changed)))
    simple = landscape.ranked(0.001)[0]
    assert landscape.simplified(simple).settings.changes_from(bench.space.base) == {"reading.page_cache": "bypass"}


def test_finalists_hold_the_best_settings_with_and_without_their_doubtful_changes(tmp_path: Path) -> None:
    def speed(settings: Settings) -> float:
        bypass = settings.reading.page_cache == "bypass"
        return 10.0 * (1.3 if bypass else 1.0) * (1.03 if settings.reading.threads == 8 else 1.0)

    bench = workbench(tmp_path, FakeRunner(speed, Weather(noise=0.0001)))
    search = Search(bench.space, bench.history, bench.measurer, bench.judge, SearchPlan(trials=2), bench.events.append)
    search.measure_default()
    both = Settings().with_values({"reading.page_cache": "bypass", "reading.threads": 8})
    search._measure(bench.history.config(bench.space.to_params(both)))
    first, second = search.finalists(2)
    assert first.settings == both
    assert len(second.settings.changes_from(bench.space.base)) == 1
    assert [each.settings for each in search.finalists(1)] == [both]
