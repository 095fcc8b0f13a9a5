"""Trials with the real runtime, on the smallest checkpoint there is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.errors import RequestInvalid
from autotune.measure import run_trial
from autotune.trial import Engine, Infeasible, Measured, Outcome, PageState, Procedure, Stage, TrialSpec
from autotune.workload import Workload, workload_from_texts
from streaming_core.errors import ContextExceeded
from streaming_core.hardware import FakeMachine, MemoryState
from streaming_core.settings import Settings
from streaming_core.testing import prompts


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def workload() -> Workload:
    texts = workload_from_texts(prompts(2, 30, seed=0))
    return replace(texts, prompt_tokens=12, warmup_tokens=2, decode_tokens=6)


def trial(
    cache_dir: Path, engine: Engine = Engine.STREAMED, procedure: Procedure | None = None, **values: object
) -> Outcome:
    settings = Settings().with_values({key.replace("__", "."): value for key, value in values.items()})
    spec = TrialSpec(
        model="tiny",
        settings=settings.to_mapping(),
        workload=workload(),
        cache_dir=cache_dir,
        procedure=procedure or Procedure(repeats=2),
        engine=engine,
    )
    return run_trial(spec, lambda stage: None)


def measured(outcome: Outcome) -> Measured:
    assert isinstance(outcome, Measured), outcome
    return outcome


def test_streamed_and_resident_say_the_same_and_only_one_of_them_reads(cache_dir: Path) -> None:
    streamed = measured(trial(cache_dir, residency__resident_layers=0, residency__slots=4))
    resident = measured(trial(cache_dir, Engine.RESIDENT))
    assert streamed.tokens_hash == resident.tokens_hash
    assert streamed.counters.misses > 0 < streamed.counters.demand_bytes
    assert resident.counters.misses == 0
    assert len(streamed.samples) == len(streamed.prefill_s) == 2
    assert streamed.counters.tokens == 12
    assert streamed.prompt_tokens == 24
    assert streamed.token_p50_s <= streamed.token_p99_s


def test_a_resident_model_larger_than_what_is_free_is_not_tried(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(trial(cache_dir))
    small = FakeMachine(memory_reading=MemoryState(1 << 10, 0, "normal"))
    monkeypatch.setattr("autotune.measure.detect", lambda: small)
    outcome = trial(cache_dir, Engine.RESIDENT)
    assert isinstance(outcome, Infeasible)
    assert "1KiB of memory are available" in outcome.reason


def test_settings_come_back_as_the_runtime_resolved_them(cache_dir: Path) -> None:
    effective = Settings.from_mapping(measured(trial(cache_dir)).effective)
    assert effective.residency.resident_layers not in ("auto", "none")
    assert isinstance(effective.prefill.chunk, int)


def test_waits_are_counted_by_layer(cache_dir: Path) -> None:
    counters = measured(trial(cache_dir, residency__resident_layers="1", residency__slots=4)).counters
    assert {cost.layer for cost in counters.layers} == {0, 2, 3}
    assert sum(cost.misses for cost in counters.layers) == counters.misses


def test_a_budget_that_is_too_small_is_infeasible_not_a_crash(cache_dir: Path) -> None:
    outcome = trial(cache_dir, memory__budget="1MiB")
    assert isinstance(outcome, Infeasible)
    assert outcome.excess_bytes > 0
    assert "budget" in outcome.reason


def test_a_repeat_is_cut_short_at_the_limit(cache_dir: Path) -> None:
    outcome = measured(trial(cache_dir, procedure=Procedure(repeats=1, repeat_limit_s=1e-9)))
    assert outcome.partial
    assert outcome.counters.tokens == 4


def test_cold_repeats_ask_the_system_to_forget_the_store(cache_dir: Path) -> None:
    procedure = Procedure(repeats=1, pages=PageState.COLD)
    measured(trial(cache_dir, procedure=procedure, residency__resident_layers=0, residency__slots=4))


def test_stages_are_reported(cache_dir: Path) -> None:
    stages: list[Stage] = []
    spec = TrialSpec(model="tiny", settings=Settings().to_mapping(), workload=workload(), cache_dir=cache_dir)
    run_trial(spec, stages.append)
    assert Stage("decoding", 2, 3) in stages


def test_a_workload_that_has_just_enough_context_runs_and_one_token_less_is_refused(cache_dir: Path) -> None:
    context = workload().context_tokens
    workload().check_room(context)
    with pytest.raises(RequestInvalid, match=f"memory.context makes room for {context - 1};"):
        workload().check_room(context - 1)
    measured(trial(cache_dir, memory__budget="128MiB", memory__context=context))
    with pytest.raises(ContextExceeded):
        trial(cache_dir, memory__budget="128MiB", memory__context=context - 1)


@pytest.mark.parametrize("error", [RuntimeError("std::bad_alloc"), RuntimeError("Unable to allocate"), MemoryError()])
def test_memory_that_runs_out_makes_a_trial_infeasible(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise error

    monkeypatch.setattr("autotune.measure.load", fail)
    outcome = trial(cache_dir)
    assert isinstance(outcome, Infeasible)
    assert outcome.reason == f"out of memory: {str(error) or 'MemoryError'}"


@pytest.mark.parametrize(("limit", "passages"), [(1e9, 1), (1e-9, 2)])
def test_a_first_passage_below_the_limit_is_the_only_one(cache_dir: Path, limit: float, passages: int) -> None:
    found = measured(trial(cache_dir, procedure=Procedure(repeats=2, hopeless_tps=limit)))
    assert len(found.samples) == len(found.prefill_s) == passages
    assert found.hopeless is found.partial is (passages == 1)
    assert found.prompt_tokens == 12 * passages
