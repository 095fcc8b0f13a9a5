"""The slot table against a model of itself, and the policies against their definitions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming_core.residency.policy import Lfu, Lru, make_policy
from streaming_core.residency.table import SlotTable

CALLS = st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=4, unique=True), max_size=60)


@given(calls=CALLS, slots=st.integers(4, 12), name=st.sampled_from(["lru", "lfu"]))
def test_every_asked_expert_gets_one_slot_and_no_slot_two_experts(
    calls: list[list[int]], slots: int, name: str
) -> None:
    table = SlotTable(12, slots, make_policy(name, 4))
    contents: dict[int, int] = {}  # slot -> expert, as reads would leave it
    for experts in calls:
        before = set(table.resident)
        plan = table.plan(experts)
        assert plan.experts == tuple(experts)
        assert {m.expert for m in plan.misses} == set(experts) - before
        assert plan.hits + len(plan.misses) == len(experts)
        for miss in plan.misses:
            contents[miss.slot] = miss.expert
        assert all(contents[table.slot(e)] == e for e in table.resident)
        assert set(experts) <= set(table.resident)
        assert len(set(table.resident)) <= slots
        table.release(plan)


@given(first=st.sets(st.integers(0, 11), min_size=2, max_size=2), then=st.sets(st.integers(0, 11), max_size=2))
def test_a_held_expert_is_never_a_victim(first: set[int], then: set[int]) -> None:
    table = SlotTable(12, 4, Lru())
    held = table.plan(sorted(first))
    table.release(table.plan(sorted(then)))
    assert first <= set(table.resident)
    table.release(held)


def test_more_held_experts_than_slots_is_refused_and_changes_nothing() -> None:
    table = SlotTable(8, 3, Lru())
    plan = table.plan([0, 1])
    with pytest.raises(ValueError, match="3 slots"):
        table.plan([2, 3])
    assert set(table.resident) == {0, 1}
    table.release(plan)
    table.release(table.plan([2, 3, 4]))
    assert set(table.resident) == {2, 3, 4}


@pytest.mark.parametrize("expert", [-1, 8])
def test_an_expert_the_layer_does_not_have_is_refused(expert: int) -> None:
    table = SlotTable(8, 4, Lru())
    with pytest.raises(ValueError, match="the layer has 8"):
        table.plan([0, expert])
    table.release(table.plan([0, 1, 2, 3]))  # no hold was left behind


def test_a_forgotten_expert_is_read_again() -> None:
    table = SlotTable(8, 4, Lru())
    plan = table.plan([5])
    table.forget(5)
    table.release(plan)
    assert 5 not in table
    assert [m.expert for m in table.plan([5]).misses] == [5]


def test_lru_drops_the_longest_unused() -> None:
    table = SlotTable(8, 3, Lru())
    for experts in ([0], [1], [2], [0], [3]):
        table.release(table.plan(experts))
    assert set(table.resident) == {2, 0, 3}


def test_lfu_keeps_the_often_used_through_a_burst_of_strangers() -> None:
    table = SlotTable(16, 3, Lfu(half_life=100))
    for _ in range(10):
        table.release(table.plan([7]))
    for stranger in range(6):
        table.release(table.plan([stranger]))
    assert 7 in table


def test_lfu_forgets_old_fame_after_some_half_lives() -> None:
    table = SlotTable(16, 2, Lfu(half_life=2))
    for _ in range(20):
        table.release(table.plan([7]))
    for n in range(40):
        table.release(table.plan([n % 2]))
    assert 7 not in table


def test_lfu_scores_stay_finite_over_many_calls() -> None:
    policy = Lfu(half_life=1)
    for n in range(5000):
        policy.begin()
        policy.use(n % 5)
    assert policy.victims(2, held=set()) == [0, 1]
