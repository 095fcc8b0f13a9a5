"""What a pass may fetch, decided on plain values."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streaming_core.layer_set import LayerSet
from streaming_core.prefetch import Budget

RANKED = st.lists(st.tuples(st.integers(0, 20), st.floats(0, 1)), max_size=20, unique_by=lambda pair: pair[0]).map(
    lambda pairs: sorted(pairs, key=lambda pair: -pair[1])
)


@given(
    ranked=RANKED, per_layer=st.integers(1, 8), per_pass=st.one_of(st.none(), st.integers(0, 12)),
    min_score=st.floats(0, 1), resident=st.sets(st.integers(0, 20)),
)  # fmt: skip
def test_a_choice_is_absent_likely_enough_within_both_limits_and_the_best_there_is(
    ranked: list[tuple[int, float]], per_layer: int, per_pass: int | None, min_score: float, resident: set[int]
) -> None:
    chance = Budget(LayerSet(None), per_layer, per_pass, min_score).begin_pass()
    total = 0
    for _ in range(3):
        chosen = chance.choose(5, ranked, lambda expert: expert not in resident)
        eligible = [e for e, score in ranked if score >= min_score and e not in resident]
        assert chosen == eligible[: len(chosen)]
        room = per_layer if per_pass is None else min(per_layer, per_pass - total)
        assert len(chosen) == min(len(eligible), max(0, room))
        chance.spend(len(chosen))
        total += len(chosen)


def test_other_layers_get_nothing_and_every_pass_starts_afresh() -> None:
    budget = Budget(LayerSet.parse("1-3"), 4, 4, 0.0)
    first = budget.begin_pass()
    assert first.choose(0, [(1, 0.9)], lambda e: True) == []
    first.spend(4)
    assert first.choose(2, [(1, 0.9)], lambda e: True) == []
    assert budget.begin_pass().choose(2, [(1, 0.9)], lambda e: True) == [1]
