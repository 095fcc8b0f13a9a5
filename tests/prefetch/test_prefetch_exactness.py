"""Guesses change when bytes are read, never what the model says: right, wrong, late, cancelled or failing."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache

import streaming_core
from streaming_core import Settings
from streaming_core.errors import ReadError
from streaming_core.reading import Urgency

BACKENDS = ["none", "advise", "stage", "slots"]
GUESSES = [("gate", 0), ("gate", 1), ("gate", 2), ("gate_input", 1), ("frequency", 1)]
CALLS = [(1, 512, 1), (7, 512, 1), (33, 16, 2)]


def settings(**values: Any) -> Settings:
    return Settings().with_values({key.replace("__", "."): value for key, value in values.items()})


def run(model: nn.Module, length: int, chunk: int, batch: int) -> mx.array:
    """Logits of a prompt in chunks and of ten more tokens.  [B, length + 10, V]"""
    tokens = np.random.default_rng(length).integers(0, 200, (batch, length + 10))
    cache = make_prompt_cache(model)
    steps = [*range(0, length, chunk), *range(length, length + 10)]
    out = []
    for start, end in zip(steps, [*steps[1:], length + 10], strict=True):
        out.append(model(mx.array(tokens[:, start:end]), cache=cache))
        mx.eval(out)
    return mx.concatenate(out, axis=1)


@pytest.fixture(scope="module")
def expected(tiny: Path) -> dict[tuple[int, int, int], mx.array]:
    reference, _ = mlx_lm.load(str(tiny))
    return {call: run(reference, *call) for call in CALLS}


@pytest.fixture
def slow_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every read takes up to 3 ms."""
    whole, rng = os.preadv, random.Random(0)

    def slow(fd: int, buffers: Sequence[Any], offset: int) -> int:
        time.sleep(rng.random() * 0.003)
        return whole(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", slow)
    yield


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("kind", "ahead"), GUESSES)
@pytest.mark.parametrize("slots", [4, 10])
def test_logits_equal_the_resident_models(
    tiny: Path, shared_cache: Path, expected: dict[Any, mx.array], backend: str, kind: str, ahead: int, slots: int
) -> None:
    wanted = settings(
        residency__slots=slots, predict__kind=kind, prefetch__backend=backend, prefetch__ahead=ahead, predict__mult=3.0
    )
    with streaming_core.load(tiny, wanted, cache_dir=shared_cache) as model:
        for call in CALLS:
            assert mx.array_equal(run(model.model, *call), expected[call]), call


@pytest.mark.parametrize("backend", ["stage", "slots"])
@pytest.mark.parametrize("threads", [1, 3, 16])
@pytest.mark.parametrize("per_layer", [1, 6, 64])
def test_late_reads_change_nothing(
    tiny: Path, shared_cache: Path, expected: dict[Any, mx.array], slow_reads: None,
    backend: str, threads: int, per_layer: int,
) -> None:  # fmt: skip
    wanted = settings(
        residency__slots=9, predict__kind="gate", prefetch__backend=backend, reading__threads=threads,
        prefetch__per_layer=per_layer, predict__mult=4.0,
    )  # fmt: skip
    with streaming_core.load(tiny, wanted, cache_dir=shared_cache) as model:
        assert mx.array_equal(run(model.model, *CALLS[1]), expected[CALLS[1]])


@pytest.mark.parametrize("backend", ["stage", "slots"])
def test_guesses_that_are_all_wrong_or_all_right_change_nothing(
    tiny: Path, shared_cache: Path, expected: dict[Any, mx.array], backend: str
) -> None:
    call = CALLS[0]
    wrong = [{layer: [12, 13, 14, 15] for layer in range(4)} for _ in range(50)]
    wanted = settings(residency__slots=8, predict__kind="oracle", prefetch__backend=backend)
    with streaming_core.load(tiny, wanted, cache_dir=shared_cache, oracle=wrong) as model:
        assert mx.array_equal(run(model.model, *call), expected[call])


def test_a_failing_read_of_a_guess_is_not_an_error_until_the_router_asks(
    tiny: Path, shared_cache: Path, expected: dict[Any, mx.array], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(1)

    class Broken:
        def fill(self, offset: int, views: Sequence[memoryview], bounce: Any, label: str) -> None:
            raise ReadError(f"{label}: broken on purpose")

    for backend in ("stage", "slots"):
        wanted = settings(residency__slots=8, predict__kind="gate", prefetch__backend=backend)
        with streaming_core.load(tiny, wanted, cache_dir=shared_cache) as model:
            submit = model._engine.reader.submit

            def half_of_the_guesses_fail(reads: Any, urgency: Any = Urgency.DEMAND, submit: Any = submit) -> Any:
                if urgency is Urgency.GUESS and rng.random() < 0.5:
                    reads = [replace(read, file=Broken()) for read in reads]
                return submit(reads, urgency)

            monkeypatch.setattr(model._engine.reader, "submit", half_of_the_guesses_fail)
            assert mx.array_equal(run(model.model, *CALLS[0]), expected[CALLS[0]])
            assert model.stats().guessed > 0


def test_syncs_per_pass_are_the_streamed_layers_for_guesses_made_ahead(tiny: Path, shared_cache: Path) -> None:
    for ahead, extra in ((0, 4), (1, 0), (2, 0)):
        wanted = settings(residency__slots=8, predict__kind="gate", prefetch__backend="slots", prefetch__ahead=ahead)
        with streaming_core.load(tiny, wanted, cache_dir=shared_cache) as model:
            for token in range(10):
                mx.eval(model.model(mx.array([[token]])))
            assert model.stats().syncs == 10 * (4 + extra)


def test_what_cannot_be_combined_is_refused_by_name(tiny: Path, shared_cache: Path) -> None:
    cases = [
        (
            {"prefetch__backend": "advise", "predict__kind": "gate", "reading__page_cache": "bypass"},
            "page_cache bypass",
        ),
        ({"prefetch__ahead": 0, "predict__kind": "frequency", "prefetch__backend": "slots"}, "ahead 0 needs"),
        ({"predict__kind": "oracle", "prefetch__backend": "slots"}, "oracle"),
    ]
    for values, text in cases:
        with pytest.raises(streaming_core.AutotuneError, match=text):
            streaming_core.load(tiny, settings(residency__slots=8, **values), cache_dir=shared_cache)
