"""The streamed model gives the resident model's logits bit for bit, whatever the settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
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
from streaming_core.layer import StreamedLayer
from streaming_core.reading import native_available, native_missing

# prompt tokens, tokens per pass, batch
CALLS = [(1, 512, 1), (2, 512, 2), (7, 512, 1), (33, 16, 2), (100, 64, 1)]
EXPERTS, TOP_K = 16, 4


def run(model: nn.Module, length: int, chunk: int, batch: int) -> mx.array:
    """Logits of a prompt in chunks and of three more tokens.  [B, length + 3, V]"""
    vocabulary = np.random.default_rng(length).integers(0, 200, (batch, length + 3))
    cache = make_prompt_cache(model)
    steps = [*range(0, length, chunk), *range(length, length + 3)]
    out = []
    for start, end in zip(steps, [*steps[1:], length + 3], strict=True):
        out.append(model(mx.array(vocabulary[:, start:end]), cache=cache))
        mx.eval(out)
    return mx.concatenate(out, axis=1)


@pytest.fixture(scope="module")
def expected(checkpoints: Callable[..., Path]) -> Callable[..., mx.array]:
    """Logits of plain mlx-lm."""

    @cache
    def model(changes: tuple[tuple[str, Any], ...]) -> nn.Module:
        return mlx_lm.load(str(checkpoints(**dict(changes))))[0]

    @cache
    def logits(length: int, chunk: int, batch: int, changes: tuple[tuple[str, Any], ...] = ()) -> mx.array:
        return run(model(changes), length, chunk, batch)

    return logits


def settings(**values: Any) -> Settings:
    return Settings().with_values({key.replace("__", "."): value for key, value in values.items()})


@pytest.mark.parametrize("slots", [TOP_K, EXPERTS // 2, EXPERTS, "all"])
@pytest.mark.parametrize("policy", ["lru", "lfu"])
@pytest.mark.parametrize("layout", ["packed", "checkpoint"])
def test_logits_equal_the_resident_models(
    tiny: Path, shared_cache: Path, expected: Callable[..., mx.array], layout: str, policy: str, slots: int | str
) -> None:
    wanted = settings(residency__slots=slots, residency__policy=policy, store__layout=layout)
    with streaming_core.load(tiny, wanted, cache_dir=shared_cache) as model:
        for call in CALLS:
            assert mx.array_equal(run(model.model, *call), expected(*call)), call
        assert model.stats().misses > 0


@pytest.mark.skipif(not native_available(), reason=f"not built: {native_missing()}")
@pytest.mark.parametrize("threads", [1, 8])
@pytest.mark.parametrize("page_cache", ["keep", "bypass"])
@pytest.mark.parametrize("layout", ["packed", "checkpoint"])
def test_logits_equal_with_the_native_reader(
    tiny: Path, shared_cache: Path, expected: Callable[..., mx.array], layout: str, page_cache: str, threads: int
) -> None:
    wanted = settings(
        reading__reader="native",
        reading__page_cache=page_cache,
        reading__threads=threads,
        residency__slots=TOP_K,
        store__layout=layout,
    )
    with streaming_core.load(tiny, wanted, cache_dir=shared_cache) as model:
        for call in CALLS:
            assert mx.array_equal(run(model.model, *call), expected(*call))


@pytest.mark.parametrize("slots", [TOP_K, EXPERTS // 2])
@pytest.mark.parametrize("layout", ["packed", "checkpoint"])
def test_logits_equal_with_the_page_cache_bypassed(
    tiny: Path, shared_cache: Path, expected: Callable[..., mx.array], layout: str, slots: int
) -> None:
    wanted = settings(
        residency__slots=slots, store__layout=layout, reading__page_cache="bypass", residency__resident_layers="1"
    )
    with streaming_core.load(tiny, wanted, cache_dir=shared_cache) as model:
        for call in CALLS:
            assert mx.array_equal(run(model.model, *call), expected(*call)), call


def test_a_prompt_of_300_tokens_equals_too(tiny: Path, shared_cache: Path, expected: Callable[..., mx.array]) -> None:
    with streaming_core.load(tiny, settings(residency__slots=EXPERTS // 4), cache_dir=shared_cache) as model:
        assert mx.array_equal(run(model.model, 300, 512, 1), expected(300, 512, 1))


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "bfloat16"},
        {"expert_bits": 8},
        {"expert_bits": None},
        {"experts": 5, "top_k": 2},
        {"top_k": 1},
        {"shard_bytes": 100_000},
    ],
    ids=str,
)
@pytest.mark.parametrize("layout", ["packed", "checkpoint"])
def test_logits_equal_for_other_checkpoints(
    checkpoints: Callable[..., Path],
    shared_cache: Path,
    expected: Callable[..., mx.array],
    changes: dict[str, Any],
    layout: str,
) -> None:
    slots = changes.get("top_k", TOP_K)
    wanted = settings(residency__slots=slots, store__layout=layout)
    with streaming_core.load(checkpoints(**changes), wanted, cache_dir=shared_cache) as model:
        for call in [(7, 512, 1), (33, 16, 2)]:
            assert mx.array_equal(run(model.model, *call), expected(*call, tuple(changes.items()))), call


def test_logits_stay_right_when_results_are_evaluated_late_and_out_of_order(
    tiny: Path, shared_cache: Path, expected: Callable[..., mx.array]
) -> None:
    with streaming_core.load(tiny, settings(residency__slots=TOP_K), cache_dir=shared_cache) as model:
        tokens = [mx.array([[n]]) for n in range(12)]
        late = [model.model(t) for t in tokens]  # nothing evaluated by us while slots change hands
        alone = [model.model(t) for t in tokens]
        mx.eval(alone)
        for a, b in zip(reversed(late), reversed(alone), strict=True):
            assert mx.array_equal(a, b)


@pytest.mark.parametrize("slots", [TOP_K, EXPERTS])
def test_greedy_text_equals_mlx_lms(tiny: Path, shared_cache: Path, slots: int) -> None:
    reference, tokenizer = mlx_lm.load(str(tiny))
    prompt = tokenizer.encode("A pan of onions, a star and a judge walk into the garden.")
    expected = [(r.token, r.text) for r in mlx_lm.stream_generate(reference, tokenizer, prompt, max_tokens=60)]
    with streaming_core.load(tiny, settings(residency__slots=slots), cache_dir=shared_cache) as model:
        assert [(r.token, r.text) for r in model.stream(prompt, 60)] == expected
        theirs = mlx_lm.stream_generate(model.model, tokenizer, prompt, max_tokens=60)
        assert [(r.token, r.text) for r in theirs] == expected
        assert model.generate(prompt, 60) == "".join(text for _, text in expected)


@pytest.mark.parametrize("slots", [TOP_K, 10, 14, "all"])
@pytest.mark.parametrize(
    ("backend", "kind", "ahead"),
    [("none", "none", 1), ("slots", "gate", 0), ("slots", "gate", 1), ("stage", "cascade", 1)],
)
def test_experts_that_run_before_the_host_knows_whether_they_are_there(
    tiny: Path, shared_cache: Path, expected: Callable[..., mx.array], monkeypatch: pytest.MonkeyPatch,
    backend: str, kind: str, ahead: int, slots: int | str,
) -> None:  # fmt: skip
    """As on a GPU, which takes work without making the caller wait."""
    early: list[bool] = []
    run_early, fetch = StreamedLayer._run_early, StreamedLayer._fetch

    def ran(layer: StreamedLayer, x: mx.array, indices: mx.array) -> mx.array | None:
        layer._complete = 1.0  # however often it was in vain
        out = run_early(layer, x, indices)
        assert out is not None
        return out

    def fetched(layer: StreamedLayer, *args: Any) -> bool:
        early.append(fetch(layer, *args))
        return early[-1]

    monkeypatch.setattr(StreamedLayer, "_run_early", ran)
    monkeypatch.setattr(StreamedLayer, "_fetch", fetched)
    wanted = settings(
        residency__slots=slots, predict__kind=kind, prefetch__backend=backend, prefetch__ahead=ahead, predict__mult=2.0
    )
    with streaming_core.load(tiny, wanted, cache_dir=shared_cache) as model:
        model._engine.queues_work = True
        for _ in range(2):
            for call in CALLS:
                assert mx.array_equal(run(model.model, *call), expected(*call)), call
    assert not all(early)
    if slots != TOP_K:  # a token's experts push out those of the one before, so that hardly any call finds all
        assert any(early)
