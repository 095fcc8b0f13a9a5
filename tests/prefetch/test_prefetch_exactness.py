"""Guesses change when bytes are read, never what the model says: right, wrong, late, cancelled or failing.

One suite over every backend and reader.  What goes wrong is done by a reader of the tests' own around the real one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import pytest
from cuda_stand_ins import with_backend, without_kernels
from prefetch_cases import READERS, Call, Manners, PutIn, run, settings

import streaming_core
from streaming_core import banks
from streaming_core.errors import ReadError
from streaming_core.hardware import Machine
from streaming_core.reading import Urgency
from streaming_core.recording import RouteRecorder

# A token and some more; two prompts in chunks that run in waves, and some tokens of each.
CALLS: list[Call] = [(1, 512, 1), (24, 16, 2)]
Routes = list[dict[int, list[int]]]


@pytest.fixture(scope="module")
def expected(tiny: Path) -> dict[Call, mx.array]:
    reference, _ = mlx_lm.load(str(tiny))
    return {call: run(reference, *call) for call in CALLS}


@pytest.fixture(scope="module")
def right(tiny: Path, shared_cache: Path) -> Routes:
    """What every layer asks for in every pass of CALLS."""
    recorder = RouteRecorder()
    with streaming_core.load(tiny, settings(residency__slots=6), cache_dir=shared_cache) as model:
        model.record(recorder)
        for call in CALLS:
            run(model.model, *call)
    return [{layer: list(experts) for layer, experts in route.items()} for route in recorder.routes]


@pytest.fixture(scope="module")
def wrong(right: Routes) -> Routes:
    return [{layer: [e for e in range(16) if e not in route[layer]] for layer in route} for route in right]


@dataclass(frozen=True)
class Scene:
    values: dict[str, Any]
    manners: Manners = field(default_factory=Manners)
    oracle: str | None = None
    layouts: tuple[str, ...] = ("packed",)


BOTH = ("packed", "checkpoint")
FOR_EVER = 1 << 30
SCENES = {
    "right": Scene({"residency.slots": 10}, oracle="right", layouts=BOTH),
    "right, slots for one token": Scene({"residency.slots": 4}, oracle="right", layouts=BOTH),
    "wrong": Scene({"residency.slots": 10, "prefetch.per_layer": 64, "prefetch.depth": 64}, oracle="wrong"),
    "late": Scene(
        {"residency.slots": 9, "predict.mult": 4.0, "prefetch.depth": 5, "reading.threads": 1}, Manners(polls=6),
        layouts=BOTH,
    ),
    "late, many": Scene(
        {"residency.slots": 12, "predict.mult": 4.0, "prefetch.depth": 64, "prefetch.per_layer": 64,
         "prefetch.ahead": 2, "reading.threads": 16}, Manners(polls=20),
    ),
    "right, begun when waited for": Scene({"residency.slots": 9}, Manners(polls=FOR_EVER), "right"),
    "wrong, never begun": Scene(
        {"residency.slots": 9, "prefetch.per_layer": 64, "prefetch.depth": 64}, Manners(polls=FOR_EVER), "wrong"
    ),
    "failing": Scene({"residency.slots": 9, "predict.mult": 3.0}, Manners(polls=2, failing=0.5), layouts=BOTH),
    "refused": Scene({"residency.slots": 9, "predict.mult": 3.0}, Manners(refused=0.5)),
    "few": Scene({"residency.slots": 9, "prefetch.per_layer": 2, "prefetch.per_pass": 5, "prefetch.depth": 1}),
}  # fmt: skip


COPIED = "stage-copied"  # with banks that cannot take a side buffer over, as on a GPU


def combinations() -> list[Any]:
    return [
        pytest.param(backend, name, layout, id=f"{backend}-{name}-{layout}")
        for backend in ("none", "advise", "stage", COPIED, "slots")
        for name, scene in SCENES.items()
        for layout in scene.layouts
        if backend in ("stage", COPIED, "slots") or name == "right"
    ]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(("backend", "name", "layout"), combinations())
def test_logits_equal_the_resident_models(
    tiny: Path, shared_cache: Path, expected: dict[Call, mx.array], right: Routes, wrong: Routes, put_in: PutIn,
    backend: str, reader: str, name: str, layout: str, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if backend == COPIED:
        monkeypatch.setattr(banks, "_MOST", 0)
        backend = "stage"
    scene = SCENES[name]
    made = put_in(scene.manners)
    kind = "oracle" if scene.oracle else "gate"
    base = {"predict.kind": kind, "prefetch.backend": backend, "reading.reader": reader, "store.layout": layout}
    oracle = {"right": right, "wrong": wrong, None: None}[scene.oracle]
    wanted = settings(**base, **scene.values)
    with streaming_core.load(tiny, wanted, cache_dir=shared_cache, oracle=oracle) as model:
        for call in CALLS:
            assert mx.array_equal(run(model.model, *call), expected[call]), call
        stats = model.stats()
    (unruly,) = made
    assert unruly.most_under_way <= wanted.prefetch.depth
    assert (stats.guessed > 0) == (backend != "none")
    if backend in ("stage", "slots"):
        if scene.oracle == "right":
            assert stats.guesses_used > 0
        if scene.manners.failing:
            assert unruly.failures > 0
        if scene.manners.refused:
            assert unruly.refusals > 0
        if scene.oracle == "wrong" and scene.manners.polls:
            assert unruly.cancelled > 0


@pytest.mark.parametrize("backend", ["stage", "slots"])
@pytest.mark.parametrize(
    ("kind", "ahead", "slots"),
    [("gate", 0, 10), ("gate", 2, 4), ("gate_input", 1, 10), ("cascade", 1, 10), ("frequency", 1, 10)],
)
def test_it_does_not_matter_where_guesses_come_from(
    tiny: Path, shared_cache: Path, expected: dict[Call, mx.array], backend: str, kind: str, ahead: int, slots: int
) -> None:
    wanted = settings(
        residency__slots=slots, predict__kind=kind, prefetch__backend=backend, prefetch__ahead=ahead, predict__mult=3.0
    )
    with streaming_core.load(tiny, wanted, cache_dir=shared_cache) as model:
        for call in CALLS:
            assert mx.array_equal(run(model.model, *call), expected[call]), call


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("backend", ["stage", "slots"])
@pytest.mark.parametrize("depth", [1, 5, 40])
def test_no_more_guesses_are_under_way_than_the_depth_allows_and_as_many(
    tiny: Path, shared_cache: Path, put_in: PutIn, backend: str, reader: str, depth: int
) -> None:
    made = put_in(Manners(polls=FOR_EVER))
    oracle = [{0: [], 1: list(range(16)), 2: list(range(16)), 3: list(range(16))}] * 12
    wanted = settings(
        residency__slots=15, residency__resident_layers="none", predict__kind="oracle", prefetch__backend=backend,
        prefetch__per_layer=16, prefetch__depth=depth, reading__reader=reader,
    )  # fmt: skip
    with streaming_core.load(tiny, wanted, cache_dir=shared_cache, oracle=oracle) as model:
        for token in range(12):
            mx.eval(model.model(mx.array([[token]])))
            assert len([guess for guess in made[0].guesses if not guess.ended]) <= depth
    assert made[0].most_under_way <= depth
    assert made[0].most_under_way == depth or depth == 40


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("backend", ["stage", "slots"])
@pytest.mark.parametrize("layout", BOTH)
def test_what_is_on_its_way_as_a_guess_is_awaited_not_read_again(
    tiny: Path, shared_cache: Path, right: Routes, put_in: PutIn, backend: str, reader: str, layout: str
) -> None:
    made = put_in(Manners(polls=FOR_EVER))  # under way until somebody waits
    wanted = settings(
        residency__slots=10, predict__kind="oracle", prefetch__backend=backend, reading__reader=reader,
        store__layout=layout,
    )  # fmt: skip
    awaited = 0
    with streaming_core.load(tiny, wanted, cache_dir=shared_cache, oracle=right) as model:
        (unruly,) = made
        reads_of_one = len(model._engine.store.reads(0, 0, model._engine.layers[0].bank.destinations([0])[0]))
        tokens = mx.array([[5]])
        for _ in range(5):
            unruly.log.clear()
            mx.eval(model.model(tokens))
            counts = Counter(label for _, label in unruly.log)
            guessed = {label for urgency, label in unruly.log if urgency is Urgency.GUESS}
            assert set(counts.values()) <= {reads_of_one}
            awaited += len(guessed)
    assert awaited > 0


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("backend", ["none", "stage", "slots"])
def test_a_demand_read_that_fails_is_reported_and_the_next_call_is_right(
    tiny: Path, shared_cache: Path, expected: dict[Call, mx.array], put_in: PutIn, backend: str, reader: str
) -> None:
    made = put_in(Manners(polls=3, failing=0.3))
    wanted = settings(
        residency__slots=9, predict__kind="gate", prefetch__backend=backend, reading__reader=reader, predict__mult=3.0
    )
    with streaming_core.load(tiny, wanted, cache_dir=shared_cache) as model:
        for call in CALLS:
            made[0].demands_fail = True
            with pytest.raises(ReadError, match=r"^expert \d+ of layer \d: broken on purpose$"):
                run(model.model, *call)
            made[0].demands_fail = False
            assert mx.array_equal(run(model.model, *call), expected[call]), call


def test_syncs_per_pass_are_the_streamed_layers_for_guesses_made_ahead(tiny: Path, shared_cache: Path) -> None:
    for ahead, extra in ((0, 4), (1, 0), (2, 0)):
        wanted = settings(residency__slots=8, predict__kind="gate", prefetch__backend="slots", prefetch__ahead=ahead)
        with streaming_core.load(tiny, wanted, cache_dir=shared_cache) as model:
            for token in range(10):
                mx.eval(model.model(mx.array([[token]])))
            assert model.stats().syncs == 10 * (4 + extra)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"prefetch__backend": "advise", "predict__kind": "gate", "reading__page_cache": "bypass"}, "bypass"),
        ({"prefetch__ahead": 0, "predict__kind": "frequency", "prefetch__backend": "slots"}, "ahead 0 needs"),
        ({"predict__kind": "oracle", "prefetch__backend": "slots"}, "oracle"),
    ],
)
def test_what_cannot_be_combined_is_refused_by_name(
    tiny: Path, shared_cache: Path, values: dict[str, Any], text: str
) -> None:
    with pytest.raises(streaming_core.AutotuneError, match=text):
        streaming_core.load(tiny, settings(residency__slots=8, **values), cache_dir=shared_cache)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", ["none", "gate", "cascade"])
@pytest.mark.parametrize("slots", [4, 9, 16])
def test_records_that_go_through_a_stage_to_another_memory(
    tiny: Path, shared_cache: Path, expected: dict[Call, mx.array], put_in: PutIn, machine: Machine,
    monkeypatch: pytest.MonkeyPatch, kind: str, reader: str, slots: int,
) -> None:  # fmt: skip
    """As on CUDA."""
    without_kernels(monkeypatch)
    made = put_in(Manners(polls=4, failing=0.2))
    wanted = settings(
        residency__slots=slots, predict__kind=kind, prefetch__backend="none" if kind == "none" else "stage",
        predict__mult=3.0, reading__reader=reader,
    )  # fmt: skip
    elsewhere = with_backend(machine, "cuda")
    with streaming_core.load(tiny, wanted, cache_dir=shared_cache, machine=elsewhere) as model:
        for call in CALLS:
            assert mx.array_equal(run(model.model, *call), expected[call]), call
        assert model.stats().guesses_used > 0 or kind == "none" or slots == 16
    assert made[0].failures > 0 or kind == "none"
