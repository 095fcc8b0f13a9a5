"""A simulated run counts what the real one counts."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as profile
from hypothesis import strategies as st
from simulate_cases import PromptReader, Run, real_run, settings

from autotune.simulate import DiskTable, Simulated, TokenCosts, lru_curve, simulate
from streaming_core import Settings, assemble
from streaming_core.errors import TraceInvalid
from streaming_core.layer_set import LayerSet
from streaming_core.reading import make_reader
from streaming_core.residency.memory import MemoryPlan
from streaming_core.route_trace import Asked, PassRecord, RouteTrace, read_trace, save_trace

EXPERTS, TOP_K = 16, 4
DEMAND: list[dict[str, Any]] = [
    *({"residency__slots": n, "residency__policy": p} for n in (4, 5, 7, 8, 11, 15, "all") for p in ("lru", "lfu")),
    {"residency__slots": 6, "residency__policy": "lfu", "residency__half_life": 2},
    {"residency__slots": 6, "residency__policy": "lfu", "residency__half_life": 4000},
    {"residency__slots": 8, "residency__resident_layers": "1"},
    {"residency__slots": 5, "residency__resident_layers": "0,3"},
    {"residency__slots": 9, "residency__resident_layers": 2, "residency__policy": "lfu"},
    {"residency__slots": 6, "store__layout": "checkpoint"},
    {"residency__slots": 6, "reading__reader": "threads", "reading__threads": 1},
    {"residency__slots": 6, "predict__kind": "gate", "prefetch__backend": "none"},
    {"residency__resident_layers": "all"},
]
GUESSED: list[dict[str, Any]] = [
    {"backend": backend, "kind": kind, "slots": slots, **more}
    for backend in ("stage", "slots")
    for kind in ("gate", "gate_input", "cascade", "frequency", "oracle")
    for slots, more in (
        (9, {}),
        (12, {"prefetch__per_layer": 2, "prefetch__per_pass": 5, "residency__policy": "lfu"}),
        (6, {"prefetch__layers": "1,3", "prefetch__window": 1, "predict__min_score": 0.08}),
        (10, {"residency__resident_layers": "1"}),
    )
] + [
    {"backend": "stage", "kind": "gate", "slots": 8, "prefetch__ahead": 0},
    {"backend": "slots", "kind": "gate", "slots": 8, "prefetch__ahead": 2},
    {"backend": "advise", "kind": "gate_input", "slots": 8},
]


@pytest.fixture(scope="module")
def recordings(tiny: Path, shared_cache: Path) -> Callable[..., RouteTrace]:
    """`recordings(predict__kind="gate")`: a run with everything in memory and these settings."""

    @cache
    def record(values: frozenset[tuple[str, Any]]) -> RouteTrace:
        wanted = settings(residency__slots="all", residency__resident_layers="none", **dict(values))
        return real_run(tiny, shared_cache, wanted)[1]

    return lambda **values: record(frozenset(values.items()))


@pytest.fixture(scope="module")
def recorded(recordings: Callable[..., RouteTrace]) -> RouteTrace:
    return recordings()


def counts(run: Run) -> dict[int, tuple[int, ...]]:
    return {
        row.layer: (row.hits, row.misses, row.demand_bytes, row.guessed, row.guesses_used, row.prefetch_bytes)
        for row in run.stats.layers
    }


def simulated_counts(found: Simulated) -> dict[int, tuple[int, ...]]:
    return {
        layer: (c.hits, c.misses, c.demand_bytes, c.guessed, c.guesses_used, c.prefetch_bytes)
        for layer, c in found.layers.items()
    }


@pytest.mark.parametrize("values", DEMAND, ids=str)
def test_hits_misses_and_bytes_are_those_of_the_real_run(
    tiny: Path, shared_cache: Path, recorded: RouteTrace, values: dict[str, Any]
) -> None:
    wanted = settings(**{"residency__resident_layers": "none", **values})
    run, _ = real_run(tiny, shared_cache, wanted)
    found = simulate(recorded, wanted, run.plan, run.read_bytes)
    assert simulated_counts(found) == counts(run)
    assert found.hit_rate == run.stats.hit_rate
    assert found.tokens == run.stats.tokens or not run.plan.streamed  # resident layers count nothing
    assert sum(sum(each.misses.values()) for each in found.passes if each.counted) == run.stats.misses


@pytest.mark.parametrize("values", GUESSED, ids=str)
def test_guesses_that_take_no_time_are_counted_as_in_the_real_run(
    tiny: Path,
    shared_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    recordings: Callable[..., RouteTrace],
    values: dict[str, Any],
) -> None:
    more = {key: value for key, value in values.items() if "__" in key}
    kind, ahead = values["kind"], more.get("prefetch__ahead", 1)
    guessing = {"predict__kind": kind, "prefetch__ahead": ahead}
    trace = recordings() if kind in ("frequency", "oracle") else recordings(**guessing)
    wanted = settings(**{
        "residency__slots": values["slots"], "residency__resident_layers": "none",
        "prefetch__backend": values["backend"], **guessing, **more,
    })  # fmt: skip
    monkeypatch.setattr(assemble, "make_reader", lambda reading: PromptReader(make_reader(reading)))
    options = {"oracle": trace.routes} if kind == "oracle" else {}
    run, _ = real_run(tiny, shared_cache, wanted, **options)
    found = simulate(trace, wanted, run.plan, run.read_bytes)
    assert simulated_counts(found) == counts(run)
    assert found.total("guessed") > 0
    assert found.wasted_bytes == run.stats.wasted_bytes


def test_a_cascade_was_two_guesses_and_either_can_be_had_alone(tiny: Path, shared_cache: Path) -> None:
    def wanted(**values: Any) -> Settings:
        return settings(residency__slots=9, residency__resident_layers="none", prefetch__backend="slots", **values)

    run, both = real_run(tiny, shared_cache, wanted(predict__kind="cascade"))
    for values in ({"predict__kind": "gate_input"}, {"predict__kind": "gate", "prefetch__ahead": 0}):
        alone = real_run(tiny, shared_cache, wanted(**values))[1]
        ours, theirs = (
            simulated_counts(simulate(trace, wanted(**values), run.plan, run.read_bytes)) for trace in (both, alone)
        )
        assert ours == theirs


def test_a_saved_trace_says_the_same(tmp_path: Path, recorded: RouteTrace) -> None:
    path = tmp_path / "run.gz"
    save_trace(path, recorded)
    assert read_trace(path, recorded.fingerprint) == recorded
    assert path.stat().st_size < 60_000


def test_what_was_not_recorded_cannot_be_simulated(tiny: Path, shared_cache: Path, recorded: RouteTrace) -> None:
    run, trace = real_run(tiny, shared_cache, settings(residency__slots=6, residency__resident_layers="2"))
    with pytest.raises(TraceInvalid, match="nothing of layers 2,"):
        simulate(trace, settings(), plan_of((0, 1, 2, 3), 6), run.read_bytes)
    with pytest.raises(TraceInvalid, match="has no guesses of"):
        guessing = settings(predict__kind="gate", prefetch__backend="slots")
        simulate(recorded, guessing, plan_of((0, 1, 2, 3), 6), run.read_bytes)


# ---- the curve -------------------------------------------------------------------------------------------------------


def plan_of(streamed: tuple[int, ...], slots: int) -> MemoryPlan:
    return MemoryPlan({}, None, slots, 16, LayerSet(), streamed)


def trace_of(passes: list[PassRecord], experts: int) -> RouteTrace:
    return RouteTrace(
        fingerprint="f" * 16, experts=experts, top_k=2, chunk=16, predict_kind="none", predict_mult=2.0, ahead=1,
        passes=passes,
    )  # fmt: skip


CALLS = st.lists(
    st.tuples(st.booleans(), st.lists(st.integers(0, 8), min_size=1, max_size=4, unique=True)), min_size=1, max_size=60
)


@given(CALLS)
@profile(max_examples=60, deadline=None)
def test_one_pass_gives_the_hits_of_every_number_of_slots(calls: list[tuple[bool, list[int]]]) -> None:
    trace = trace_of([PassRecord(1, counted, [Asked(3, tuple(experts))]) for counted, experts in calls], 9)
    curve = lru_curve(trace)
    for slots in range(curve.exact_from, 10):
        found = simulate(trace, settings(), plan_of((3,), slots), {3: 10})
        assert curve.hits[3][slots] == found.total("hits")
        assert curve.hit_rate(slots) == found.hit_rate


# ---- time ------------------------------------------------------------------------------------------------------------


def costs(layer_s: float, read_s: float, miss_s: float = 0.0) -> TokenCosts:
    return TokenCosts(
        layer_s={0: layer_s, 1: layer_s}, outside_s=0.5, resident_saves_s=0.25, miss_s=miss_s,
        disk=DiskTable({10: {1: read_s}}),
    )  # fmt: skip


def two_layers(passes: int) -> RouteTrace:
    """Two experts of each of two layers, never one that was there before."""
    return trace_of(
        [PassRecord(1, True, [Asked(n, (2 * step % 8, 2 * step % 8 + 1)) for n in (0, 1)]) for step in range(passes)],
        8,
    )


def test_without_guesses_time_is_the_sum_of_the_parts() -> None:
    found = simulate(two_layers(3), settings(), plan_of((0, 1), 2), {0: 10, 1: 10}, costs(1.0, 2.0, 0.125))
    per_pass = 2 * 1.0 + 0.5 + 4 * 0.125 + 4 * 2.0
    assert found.seconds == pytest.approx(3 * per_pass)
    assert found.wait_s == pytest.approx(3 * 4 * 2.0)
    resident = simulate(two_layers(3), settings(), plan_of((1,), 2), {0: 10, 1: 10}, costs(1.0, 2.0, 0.125))
    assert resident.seconds == pytest.approx(3 * (2.5 - 0.25 + 2 * 0.125 + 2 * 2.0))


@pytest.mark.parametrize("backend", ["stage", "slots"])
def test_reads_on_right_guesses_hide_behind_computing(backend: str) -> None:
    wanted = settings(predict__kind="oracle", prefetch__backend=backend)

    def waited(layer_s: float) -> float:
        found = simulate(two_layers(4), wanted, plan_of((0, 1), 4), {0: 10, 1: 10}, costs(layer_s, 2.0))
        assert found.total("guesses_used") == 14
        return found.wait_s

    demanded = 2 * 2.0  # the first layer's in the first pass, which nothing guesses
    assert waited(4.0) == pytest.approx(demanded)  # two reads fit into a layer's time
    assert waited(3.0) == pytest.approx(demanded + 4 * 1.0 + 3 * 0.5)  # the first layer has half a second more
    assert waited(0.0) == pytest.approx(demanded + 4 * 4.0 + 3 * 3.5)


def test_a_disk_table_is_read_between_and_beyond_its_points() -> None:
    disk = DiskTable({100: {1: 1.0, 4: 2.0}, 300: {1: 2.0, 4: 6.0}})
    assert [disk.seconds(100, n) for n in (0, 1, 2, 4, 8)] == pytest.approx([0.0, 1.0, 4 / 3, 2.0, 4.0])
    assert [disk.seconds(size, 4) for size in (10, 200, 300, 600)] == pytest.approx([2.0, 4.0, 6.0, 12.0])
    times = [disk.seconds(200, n) for n in range(1, 12)]
    assert all(a <= b for a, b in pairwise(times)) and np.isfinite(times).all()
