"""The slot table against a model of itself, and the policies against their definitions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming_core.residency.policy import Lfu, Lru, make_policy
from streaming_core.residency.table import Plan, SlotTable

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


# ---- any sequence of calls, against tiny models ----------------------------------------------------------------------

EXPERT = st.integers(0, 7)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["plan", "admit", "unhold", "lose", "release", "clear"]),
        st.lists(EXPERT, min_size=1, max_size=4, unique=True),
        st.sets(EXPERT, max_size=3),
    ),
    max_size=50,
)


@given(steps=STEPS, slots=st.integers(1, 8), name=st.sampled_from(["lru", "lfu"]))
def test_holds_and_slots_follow_a_tiny_model_whatever_the_calls(
    steps: list[tuple[str, list[int], set[int]]], slots: int, name: str
) -> None:
    table = SlotTable(8, slots, make_policy(name, 4))
    plans: list[Plan] = []
    arriving: list[int] = []  # admitted, held
    for step, experts, likely in steps:
        before = {e: table.slot(e) for e in table.resident}
        held = set(arriving).union(*(plan.experts for plan in plans))
        if step == "plan":
            if len(held | set(experts)) > slots:
                with pytest.raises(ValueError, match="slots"):
                    table.plan(experts)
                assert {e: table.slot(e) for e in table.resident} == before
            else:
                plans.append(table.plan(experts))
                assert {m.expert for m in plans[-1].misses} == set(experts) - before.keys()
                assert set(experts) <= set(table.resident)
        elif step == "admit":
            misses = table.admit(experts, likely)
            absent = [e for e in experts if e not in before]
            room = slots - len(before) + len(before.keys() - held - likely)
            assert [m.expert for m in misses] == absent[: max(0, room)]
            assert likely & before.keys() <= set(table.resident)
            arriving += [m.expert for m in misses]
        elif step in ("unhold", "lose") and arriving:
            expert = arriving.pop(0)
            table.unhold(expert)
            if step == "lose" and not any(expert in plan.experts for plan in plans):
                table.forget(expert)
                assert expert not in table
        elif step == "release" and plans:
            table.release(plans.pop(0))
        elif step == "clear":
            table.clear()
            plans, arriving, held = [], [], set()
            assert not set(table.resident)
        now = {e: table.slot(e) for e in table.resident}
        assert set(now.values()) <= set(range(slots)) and len(set(now.values())) == len(now)
        assert all(now[e] == before[e] for e in now.keys() & before.keys())  # nobody moves
        if step != "lose":
            assert held <= now.keys()


USES = st.lists(
    st.tuples(st.sampled_from(["use", "use", "use", "admit", "drop"]), st.integers(0, 6)), min_size=1, max_size=80
)


@given(uses=USES, half_life=st.integers(1, 20), held=st.sets(st.integers(0, 6), max_size=3), count=st.integers(0, 7))
def test_the_policies_name_the_victims_of_their_definitions(
    uses: list[tuple[str, int]], half_life: int, held: set[int], count: int
) -> None:
    lru, lfu = Lru(), Lfu(half_life)
    order: list[int] = []  # residents as lru lets them go
    since: list[int] = []  # residents, the oldest use or arrival first
    history: dict[int, list[int]] = {}  # expert -> when it was used
    for now, (what, expert) in enumerate(uses):
        for policy in (lru, lfu):
            policy.begin()
        if what == "admit" and expert in order:
            continue  # only absent experts are admitted
        for policy in (lru, lfu):
            {"use": policy.use, "admit": policy.admit, "drop": policy.drop}[what](expert)
        order = [e for e in order if e != expert]
        since = [e for e in since if e != expert]
        if what == "use":
            history.setdefault(expert, []).append(now)
        if what != "drop":
            order = [*order, expert] if what == "use" else [expert, *order]
            since.append(expert)

    def score(expert: int) -> float:
        return sum(2.0 ** ((used - len(uses)) / half_life) for used in history.get(expert, ()))

    assert lru.victims(count, held) == [e for e in order if e not in held][:count]
    found = lfu.victims(count, held)
    free = sorted((e for e in since if e not in held), key=score)
    assert [round(score(e), 9) for e in found] == [round(score(e), 9) for e in free[:count]]
    assert len(set(found)) == len(found) and set(found) <= set(since) - held
