from __future__ import annotations

import os
from pathlib import Path

import pytest
from tuner_fakes import hill, request, space, subject, workload

from autotune.knobs import Params
from autotune.prepare import Place, outline_of
from autotune.simulate.outlook import Outlook
from autotune.simulate.priors import best_of, candidates, foreseen
from autotune.space import Objective, Space, build_space
from autotune.subject import subject_of
from autotune.testing import FakeRunner, Weather
from autotune.tuner import tune
from streaming_core.errors import AutotuneError
from streaming_core.hardware import Machine
from streaming_core.settings import Settings


def test_candidates_begin_with_the_default_and_are_all_different() -> None:
    the_space = space()
    found = candidates(the_space, seed=1)
    assert the_space.settings(found[0]) == the_space.base
    assert len({the_space.key(params) for params in found}) == len(found) > 100
    assert found == candidates(the_space, seed=1) != candidates(the_space, seed=2)


def test_candidates_leave_alone_what_no_simulation_tells() -> None:
    the_space = space()
    for params in candidates(the_space, seed=0):
        settings = the_space.settings(params)
        assert settings.reading.threads == Settings().reading.threads
        assert settings.prefetch.ahead == Settings().prefetch.ahead
        assert settings.predict.kind in ("none", "gate_input", "frequency")
        assert the_space.facts.fits(settings)


def test_the_best_few_are_faster_than_the_default_and_not_alike() -> None:
    proposals: list[Params] = [{"a": 0, "b": 0}, {"a": 1, "b": 0}, {"a": 1, "b": 1}, {"a": 0, "b": 1}, {"a": 2, "b": 2}]
    assert best_of({0: 10.0, 1: 13.0, 2: 12.9, 3: 12.0, 4: 11.0}, proposals) == [
        {"a": 1, "b": 0},
        {"a": 0, "b": 1},
        {"a": 2, "b": 2},
    ]
    assert best_of({0: 10.0, 1: 10.1, 4: 9.0}, proposals) == []
    assert best_of({1: 10.0}, proposals) == []  # nothing is known of the default


def test_what_is_foreseen_is_tried_before_the_search_and_only_once(tmp_path: Path) -> None:
    tried: list[Settings] = []
    asked: list[Space] = []
    wanted = Settings().with_values({"reading.threads": 16, "residency.policy": "lfu"})

    class Noting(FakeRunner):
        def run(self, spec, on_stage=lambda stage: None):  # type: ignore[no-untyped-def]
            tried.append(Settings.from_mapping(spec.settings))
            return FakeRunner.run(self, spec, on_stage)

    def foresee(the_space: Space) -> list[Params]:
        asked.append(the_space)
        return [the_space.to_params(wanted)]

    runner = Noting(hill, Weather(noise=0.01))
    for trials in (18, 20):
        tune(request(trials=trials), subject(), runner, tmp_path, foresee=foresee, clock=runner.clock)
    first = next(n for n, settings in enumerate(tried) if settings.residency.policy == "lfu")
    assert tried[first].reading.threads == 16
    assert all(settings.reading.threads == Settings().reading.threads for settings in tried[:first])
    assert len(asked) == 1  # a study that is carried on knows better


def test_a_short_search_foresees_nothing(tmp_path: Path) -> None:
    def foresee(the_space: Space) -> list[Params]:
        raise AssertionError("there is no time for it")

    runner = FakeRunner(hill, Weather(noise=0.01))
    tune(request(trials=6), subject(), runner, tmp_path, foresee=foresee, clock=runner.clock)


def test_a_process_of_its_own_predicts_the_speed_of_a_real_model(
    tiny: Path, shared_cache: Path, machine: Machine
) -> None:
    place = Place(machine, shared_cache)
    real = subject_of(str(tiny), outline_of(str(tiny), place), place)
    base = Settings().with_values({"memory.budget": "256MiB", "residency.slots": 8})
    the_space = build_space(base, real.facts, Objective.DECODE)
    values = [
        base.to_mapping(),
        base.with_values({"residency.slots": 4, "residency.resident_layers": "none"}).to_mapping(),
        base.with_values({"memory.budget": 1000}).to_mapping(),  # does not fit
    ]
    asked = Outlook(
        model=str(tiny), cache_dir=shared_cache, workload=workload(), base=the_space.base.to_mapping(),
        candidates=values, limit_s=60.0,
    )  # fmt: skip
    found = foreseen(asked, os.environ)
    assert set(found) == {0, 1}
    assert all(tps > 0 for tps in found.values())
    with pytest.raises(AutotuneError, match="nowhere"):
        foreseen(Outlook.from_json({**asked.to_json(), "model": str(tiny / "nowhere")}), os.environ)
