"""The plan fits the budget or says, in numbers that work, why not."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming_core.errors import BudgetTooSmall, SettingsError
from streaming_core.residency.memory import MemoryDemand, plan_memory
from streaming_core.settings import Settings
from streaming_core.units import GIB, MIB, parse_size

DEMAND = MemoryDemand(
    trunk_bytes=90 * MIB,
    slot_bytes=dict.fromkeys(range(4), 2 * MIB),
    experts=128,
    top_k=8,
    kv_fixed_bytes=6 * MIB,
    kv_token_bytes=4096,
    row_bytes=47_104,
    token_bytes=400_000,
    score_bytes=128,
    scan_bytes=0,
)


def settings(**values: object) -> Settings:
    return Settings().with_values({key.replace("__", "."): value for key, value in values.items()})


@given(
    budget=st.integers(64 * MIB, 3 * GIB),
    layers=st.one_of(st.just("auto"), st.integers(0, 4), st.sampled_from(["all", "none", "1,3"])),
    chunk=st.one_of(st.just("auto"), st.integers(1, 4096)),
    context=st.integers(1, 40_000),
)
def test_an_accepted_plan_is_within_the_budget_and_a_refused_one_names_a_budget_that_works(
    budget: int, layers: int | str, chunk: int | str, context: int
) -> None:
    wanted = settings(residency__resident_layers=layers, prefill__chunk=chunk, memory__context=context)
    wanted = wanted.with_values({"memory.budget": budget})
    try:
        plan = plan_memory(DEMAND, wanted, 0)
    except BudgetTooSmall as err:
        assert err.needed_bytes > budget
        printed = re.search(r"smallest budget that works is (\S+);", str(err))
        assert printed is not None
        if chunk != "auto":  # a larger budget also allows a larger automatic chunk
            plan_memory(DEMAND, wanted.with_values({"memory.budget": err.smallest_bytes}), 0)
            plan_memory(DEMAND, wanted.with_values({"memory.budget": printed[1]}), 0)
        return
    assert plan.total_bytes <= budget
    if plan.streamed:
        assert DEMAND.top_k <= plan.slots <= DEMAND.experts


def test_the_smallest_budget_works_with_an_automatic_chunk_too() -> None:
    with pytest.raises(BudgetTooSmall) as caught:
        plan_memory(DEMAND, settings(memory__budget="64MiB"), 0)
    printed = re.search(r"smallest budget that works is (\S+);", str(caught.value))
    assert printed is not None
    plan_memory(DEMAND, settings(memory__budget=printed[1]), 0)
    assert parse_size(printed[1]) < caught.value.smallest_bytes * 1.02


def test_everything_resident_when_everything_fits() -> None:
    plan = plan_memory(DEMAND, Settings(), 4 * GIB)
    assert (str(plan.resident), plan.streamed, plan.slots) == ("0-3", (), 0)


def test_explicit_slots_need_no_budget() -> None:
    plan = plan_memory(DEMAND, settings(residency__slots=16), default_budget_bytes=1)
    assert (plan.slots, plan.budget_bytes) == (16, None)


def test_explicit_slots_beyond_the_budget_are_refused_with_what_would_fit() -> None:
    with pytest.raises(BudgetTooSmall, match=r"residency\.slots up to \d+ would fit") as caught:
        plan_memory(DEMAND, settings(residency__slots="all", memory__budget="800MiB"), 0)
    fits = re.search(r"slots up to (\d+)", str(caught.value))
    assert fits is not None
    plan_memory(DEMAND, settings(residency__slots=int(fits[1]), memory__budget="800MiB"), 0)


def test_a_context_too_long_is_refused_with_the_longest_that_fits() -> None:
    wanted = settings(memory__context=200_000, memory__budget="800MiB", residency__slots=8)
    with pytest.raises(BudgetTooSmall, match=r"memory\.context up to \d+ would fit") as caught:
        plan_memory(DEMAND, wanted, 0)
    fits = re.search(r"context up to (\d+)", str(caught.value))
    assert fits is not None
    plan_memory(DEMAND, wanted.with_values({"memory.context": int(fits[1]), "prefill.chunk": 16}), 0)


@pytest.mark.parametrize("slots", [7, 129])
def test_slots_below_top_k_or_above_the_experts_are_refused(slots: int) -> None:
    with pytest.raises(SettingsError, match=r"from 8 .* to 128"):
        plan_memory(DEMAND, settings(residency__slots=slots), 0)


def test_a_resident_layer_the_model_lacks_is_named() -> None:
    with pytest.raises(SettingsError, match="names layer 9"):
        plan_memory(DEMAND, settings(residency__resident_layers="0,9"), GIB)


def test_routed_rows_of_a_chunk_stay_below_the_limit_of_mlx() -> None:
    plan = plan_memory(replace(DEMAND, top_k=10), settings(prefill__chunk=8192, residency__slots=16), 0)
    assert plan.chunk * 10 <= 32_768


def test_a_batch_that_does_not_fit_is_refused_with_the_advice_to_make_it_smaller() -> None:
    with pytest.raises(BudgetTooSmall, match="fewer sequences at once need less"):
        plan_memory(replace(DEMAND, batch=10_000), settings(memory__budget="800MiB"), 0)
