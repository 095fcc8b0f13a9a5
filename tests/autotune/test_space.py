from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tuner_fakes import BUDGET_RECORDS, EXPERTS, LAYERS, TOP_K, facts, records_needed, space

from autotune.facts import BACKEND, GUESSED
from autotune.space import RESIDENT, SLOTS, Objective, build_space
from streaming_core.settings import Settings


def knob_names(**changes: object) -> list[str]:
    return [knob.name for knob in space(**changes).knobs]  # type: ignore[arg-type]


def test_default_is_on_the_grid_and_survives_the_way_there_and_back() -> None:
    the_space = space()
    params = the_space.to_params(Settings())
    assert the_space.canonical(params) == params
    found = the_space.settings(params)
    assert found == Settings()
    assert the_space.largest_slots(found) == BUDGET_RECORDS // len(LAYERS)
    assert the_space.key(params) == the_space.key(the_space.to_params(found))


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_no_proposal_exceeds_the_budget_or_has_fewer_slots_than_a_token_needs(data: st.DataObject) -> None:
    the_space = space()
    params = {
        knob.name: data.draw(
            st.integers(-3, 40) if knob.ordinal else st.sampled_from(["lru", "lfu", "keep", "nonsense"])
        )
        for knob in the_space.knobs
    }
    found = the_space.settings(the_space.canonical(params))
    assert records_needed(found) <= BUDGET_RECORDS
    assert found.residency.slots in ("auto", "all") or TOP_K <= found.residency.slots <= EXPERTS


def test_only_guesses_that_the_model_can_have_are_proposed() -> None:
    kinds = {knob.name: knob.options for knob in space(guesses=("gate", "frequency")).knobs}
    assert kinds["predict.kind"] == ("gate", "frequency")


def test_half_life_is_in_play_only_with_lfu() -> None:
    the_space = space()
    lru = the_space.canonical({"residency.policy": "lru", "residency.half_life": 3})
    lfu = the_space.canonical({"residency.policy": "lfu", "residency.half_life": 3})
    assert "residency.half_life" not in lru
    assert lfu["residency.half_life"] == 3


def test_half_life_stays_in_play_when_the_policy_is_fixed_to_lfu() -> None:
    base = Settings().with_values({"residency.policy": "lfu"})
    the_space = build_space(base, facts(), Objective.DECODE, frozenset({"residency.policy"}))
    assert "residency.policy" not in [knob.name for knob in the_space.knobs]
    assert "residency.half_life" in the_space.canonical({})


def test_nothing_about_slots_is_in_play_when_every_layer_is_resident() -> None:
    the_space = space(base=Settings().with_values({RESIDENT: 0}), fits=lambda settings: True)
    everything = the_space.canonical({RESIDENT: 99})
    assert the_space.settings(everything).residency.resident_layers == "all"
    assert not {SLOTS, "residency.policy", "residency.half_life", "reading.threads"} & everything.keys()


def test_resident_layers_follow_the_ranking() -> None:
    the_space = space()
    knob = next(knob for knob in the_space.knobs if knob.name == RESIDENT)
    count = int(knob.options[1])
    found = the_space.settings(the_space.canonical({RESIDENT: 1}))
    assert found.residency.resident_layers == f"{LAYERS[-1] - count + 1}-{LAYERS[-1]}"


def test_command_buffers_are_searched_on_gpus_and_chunks_only_when_prefill_counts() -> None:
    assert "process.max_ops_per_buffer" not in knob_names()
    assert "process.max_ops_per_buffer" in knob_names(backend="metal")
    assert "prefill.chunk" not in knob_names()
    assert "prefill.chunk" in knob_names(objective=Objective.PREFILL)


def test_the_native_reader_is_searched_where_there_is_one() -> None:
    assert "reading.reader" not in knob_names()
    assert "reading.reader" in knob_names(readers=("auto", "threads"))
    elsewhere = Settings().with_values({"reading.reader": "native"})
    assert space().settings(space().to_params(elsewhere)).reading.reader == "auto"


@pytest.mark.parametrize("backend", ["stage", "slots"])
def test_the_depth_of_guesses_is_in_play_only_with_a_backend_that_reads(backend: str) -> None:
    the_space = space()
    assert "prefetch.depth" not in the_space.canonical({"prefetch.backend": "none"})
    found = the_space.settings(the_space.canonical({"prefetch.backend": backend, "prefetch.depth": 0}))
    assert found.prefetch.depth == 2


def test_scores_are_searched_in_shares_of_what_a_token_chooses_and_only_for_routers() -> None:
    the_space = space()
    router = {"prefetch.backend": "slots", "predict.kind": "cascade", "predict.min_score": 2}
    assert the_space.settings(the_space.canonical(router)).predict.min_score == round(0.2 / the_space.facts.top_k, 4)
    assert "predict.min_score" not in the_space.canonical({**router, "predict.kind": "frequency"})


def test_hash_is_stable_and_changes_with_the_options_but_not_with_the_ranking() -> None:
    assert space().content_hash == space().content_hash
    assert space().content_hash == space(ranking=LAYERS).content_hash
    assert space().content_hash != space(experts=32).content_hash
    assert space().content_hash != space(base=Settings().with_values({"reading.threads": 3})).content_hash


def test_as_many_slots_as_fit_stays_auto_beside_resident_layers_too() -> None:
    the_space = space()
    found = the_space.settings(the_space.canonical({RESIDENT: 1}))
    assert found.residency.slots == "auto"
    assert found.residency.resident_layers not in ("auto", "none")
    fewer = the_space.settings(the_space.canonical({SLOTS: 2}))
    assert fewer.residency.resident_layers == "none"
    assert isinstance(fewer.residency.slots, int)


@pytest.mark.parametrize(
    ("key", "value", "expected"), [("reading.threads", 5, 4), ("reading.threads", 60, 32), ("reading.threads", 8, 8)]
)
def test_settings_from_elsewhere_become_the_nearest_proposal(key: str, value: int, expected: int) -> None:
    the_space = space()
    found = the_space.settings(the_space.to_params(Settings().with_values({key: value})))
    assert found.get(key) == expected


def test_slots_of_a_larger_machine_are_cut_to_what_fits() -> None:
    the_space = space()
    found = the_space.settings(the_space.to_params(Settings().with_values({SLOTS: 64, RESIDENT: 10})))
    assert records_needed(found) <= BUDGET_RECORDS


def test_the_same_proposal_gives_equal_settings() -> None:
    the_space = space()
    first, second = (the_space.settings(the_space.canonical({SLOTS: 2})) for _ in range(2))
    assert dataclasses.asdict(first) == dataclasses.asdict(second)


GUESS_ORDER = (5, 2, 9, 12, 1, 3, 4, 6, 7, 8, 10, 11)


def guessed_layers(share: float, **params: object) -> str:
    the_space = space(guess_ranking=GUESS_ORDER)
    knob = next(knob for knob in the_space.knobs if knob.name == GUESSED)
    chosen = the_space.canonical({BACKEND: "stage", GUESSED: knob.options.index(share), **params})
    return the_space.settings(chosen).prefetch.layers


def test_the_layers_to_guess_for_are_the_best_share_of_the_ranking() -> None:
    assert guessed_layers(0.25) == "2,5,9"
    assert guessed_layers(0.5) == "1-3,5,9,12"
    assert guessed_layers(1.0) == "all"


def test_resident_layers_take_no_place_among_the_layers_to_guess_for() -> None:
    the_space = space(guess_ranking=GUESS_ORDER, ranking=GUESS_ORDER)
    params = the_space.canonical({BACKEND: "stage", RESIDENT: 1, GUESSED: 0})
    found = the_space.settings(params)
    assert found.residency.resident_layers == "2,5"  # an eighth of twelve layers
    assert found.prefetch.layers == "9,12"  # a quarter of the other ten


def test_layers_to_guess_for_are_searched_only_where_guesses_are() -> None:
    the_space = space()
    assert GUESSED not in the_space.canonical({BACKEND: "none", GUESSED: 1})
    assert the_space.guessing_everywhere() is not None
    for key in (BACKEND, "predict.kind"):
        without = build_space(Settings(), facts(), Objective.DECODE, frozenset({key}))
        assert GUESSED not in [knob.name for knob in without.knobs]
        assert without.guessing_everywhere() is None


def test_layers_named_by_the_base_stay_as_they_are_named() -> None:
    base = Settings().with_values({"prefetch.layers": "4-6", BACKEND: "stage", "predict.kind": "gate"})
    the_space = space(base=base)
    assert the_space.settings(the_space.to_params(base)).prefetch.layers == "4-6"
