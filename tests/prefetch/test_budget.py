"""What a pass may fetch, decided on plain values."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from streaming_core.layer_set import LayerSet
from streaming_core.prefetch import Budget, GuessReads
from streaming_core.reading import NullReader, Read, Urgency

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


@given(
    layers=st.lists(st.tuples(st.integers(0, 5), RANKED), max_size=30), per_layer=st.integers(1, 8),
    per_pass=st.integers(0, 12), lost=st.integers(0, 2),
)  # fmt: skip
def test_a_pass_never_spends_more_than_it_has_and_takes_the_likelier_first(
    layers: list[tuple[int, list[tuple[int, float]]]], per_layer: int, per_pass: int, lost: int
) -> None:
    chance = Budget(LayerSet.parse("1-4"), per_layer, per_pass, 0.0).begin_pass()
    total = 0
    for layer, ranked in layers:
        chosen = chance.choose(layer, ranked, lambda expert: True)
        scores = dict(ranked)
        left_out = [score for expert, score in ranked if expert not in chosen]
        assert len(chosen) <= per_layer and (layer in (1, 2, 3, 4) or not chosen)
        assert not chosen or max(left_out, default=0.0) <= min(scores[expert] for expert in chosen)
        begun = max(0, len(chosen) - lost)  # the backend may have no room for some
        chance.spend(begun)
        total += begun
        assert total <= per_pass and chance.left == per_pass - total


class Held:
    """A ticket that ends when it is told to."""

    done = False
    cancelled = False

    def wait(self) -> None:
        return


class Holding(NullReader):
    def __init__(self) -> None:
        self.tickets: list[Held] = []

    def submit(self, reads: Sequence[Read], urgency: Urgency = Urgency.DEMAND) -> Held:
        self.tickets.append(Held())
        return self.tickets[-1]


class AnyLayer:
    """A layer whose records are nowhere."""

    number = 0

    def reads(self, expert: int, views: Sequence[memoryview]) -> list[Read]:
        return []


@given(steps=st.lists(st.integers(-1, 9), max_size=60), depth=st.integers(1, 6))
def test_guesses_under_way_are_never_more_than_the_depth(steps: list[int], depth: int) -> None:
    reader = Holding()
    reads = GuessReads(reader, depth)
    for step in steps:
        under_way = [ticket for ticket in reader.tickets if not ticket.done]
        assert reads.room == depth - len(under_way)
        if step < 0 and reads.room:
            reads.begin(AnyLayer(), 0, [])  # type: ignore[arg-type]
        elif step < len(under_way):
            under_way[step].done = True
