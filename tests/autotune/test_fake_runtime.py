"""The fake machine, the score of benchmarks/search.py, and the whole tuner on both."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
from tuner_fakes import tuned, workload

from autotune.result import Status
from autotune.testing import FakeRunner, Weather
from autotune.trial import TrialSpec, outcome_to_json
from streaming_core.settings import Settings


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "search.py"
    spec = importlib.util.spec_from_file_location("search_benchmark", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_gain_of_a_tenth_is_proven_and_credited_to_its_knob_alone(tmp_path: Path) -> None:
    def speed(settings: Settings) -> float:
        return 11.0 if settings.reading.page_cache == "bypass" else 10.0

    result = tuned(tmp_path, FakeRunner(speed, Weather(noise=0.03, drift=0.1), seed=1), trials=40, seed=1)
    assert result.status is Status.PROVEN
    assert result.settings.changes_from(Settings()) == {"reading.page_cache": "bypass"}


def test_accidents_happen_as_often_as_asked_and_look_like_the_real_ones() -> None:
    runner = FakeRunner(lambda settings: 10.0, Weather(crashes=0.2, hangs=0.1), seed=4)
    spec = TrialSpec(model="m", settings=Settings().to_mapping(), workload=workload(), cache_dir=Path("unused"))
    kinds = Counter(outcome_to_json(runner.run(spec))["kind"] for _ in range(300))
    assert 40 <= kinds["crashed"] <= 80
    assert 15 <= kinds["timed_out"] <= 45
    assert kinds.total() == 300
    assert runner.now == 300 * 10.0 + kinds["timed_out"] * 60.0


def test_best_of_random_points_is_calculated_without_replacement(benchmark: ModuleType) -> None:
    assert list(benchmark.expected_best([1.0, 3.0, 2.0], 3)) == pytest.approx([2.0, 8 / 3, 3.0])


def test_score_is_one_for_the_optimum_at_once_and_negative_below_random(benchmark: ModuleType) -> None:
    speeds = [float(n) for n in range(1, 101)]
    assert benchmark.baseline_score([[1.0] * 30], speeds) == pytest.approx(1.0)
    assert benchmark.baseline_score([[0.5] * 30], speeds) < 0.0
