"""What a streamed model refuses: work after its end, and more context than its memory plan has room for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import pytest
from mlx_lm.models.cache import make_prompt_cache

import streaming_core
from streaming_core import Settings
from streaming_core.errors import AutotuneError, ContextExceeded, ModelClosed
from streaming_core.recording import RouteRecorder

USES: dict[str, Callable[[Any], object]] = {
    "generate": lambda model: model.generate("hello", 2),
    "stream": lambda model: model.stream([1, 2, 3], 2),
    "prefill": lambda model: model.prefill([1, 2], make_prompt_cache(model.model)),
    "make_cache": lambda model: model.make_cache(),
    "record": lambda model: model.record(RouteRecorder()),
    "with": lambda model: model.__enter__(),
    "model": lambda model: mx.eval(model.model(mx.array([[1, 2]]))),
    "mlx_lm": lambda model: mlx_lm.generate(model.model, model.tokenizer, [1, 2, 3], max_tokens=2),
}
STREAMED = {"residency.slots": 4}
GUESSING = {**STREAMED, "predict.kind": "gate", "prefetch.backend": "stage"}


def loaded(tiny: Path, cache: Path, **values: Any) -> streaming_core.StreamedModel:
    return streaming_core.load(tiny, Settings().with_values(values), cache_dir=cache)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("values", [STREAMED, GUESSING], ids=["streamed", "guessing"])
def test_a_closed_model_says_so_whatever_is_asked_of_it(
    tiny: Path, shared_cache: Path, values: dict[str, Any], use: str
) -> None:
    with loaded(tiny, shared_cache, **values) as model:
        model.generate("hello", 2)  # experts that are still in their slots do not help
    with pytest.raises(ModelClosed, match=r"^this model is closed; load it again$"):
        USES[use](model)


@pytest.mark.parametrize("use", [use for use in USES if use not in ("model", "mlx_lm")])
def test_a_closed_model_without_streamed_layers_says_so_too(tiny: Path, shared_cache: Path, use: str) -> None:
    with loaded(tiny, shared_cache, **{"residency.slots": "all"}) as model:
        model.generate("hello", 2)
    with pytest.raises(ModelClosed):
        USES[use](model)


def test_an_answer_under_way_ends_when_its_model_is_closed(tiny: Path, shared_cache: Path) -> None:
    with loaded(tiny, shared_cache, **STREAMED) as model:
        answer = model.stream([1, 2, 3], 9)
        next(answer)
    with pytest.raises(ModelClosed):
        list(answer)


def test_a_closed_model_still_tells_its_counts(tiny: Path, shared_cache: Path) -> None:
    with loaded(tiny, shared_cache, **STREAMED) as model:
        model.generate([1, 2, 3], 2)
        open_stats = model.stats()
    assert model.stats().tokens == open_stats.tokens > 0


PLANNED = {**STREAMED, "residency.resident_layers": "none", "memory.budget": "128MiB", "memory.context": 20}


@pytest.mark.parametrize(
    ("prompt", "answer", "words"),
    [
        (15, 6, "a prompt of 15 tokens and max_tokens=6 exceeds the 20 that memory.context makes room for; "
                "pass max_tokens of at most 5, or load the model with a larger memory.context"),
        (15, -1, "a prompt of 15 tokens and max_tokens=-1 exceeds the 20 .*; pass max_tokens of at most 5, or"),
        (20, 1, "a prompt of 20 tokens and max_tokens=1 exceeds the 20 .*; shorten the prompt, or"),
    ],
)  # fmt: skip
def test_a_prompt_beyond_the_planned_context_is_refused_before_anything_runs(
    tiny: Path, shared_cache: Path, prompt: int, answer: int, words: str
) -> None:
    with loaded(tiny, shared_cache, **PLANNED) as model:
        for call in (model.stream, model.generate):
            with pytest.raises(ContextExceeded, match=words) as caught:
                call(list(range(prompt)), answer)
            assert "\n" not in str(caught.value) and isinstance(caught.value, AutotuneError)
        assert model.stats().tokens == 0


def test_the_whole_planned_context_can_be_used(tiny: Path, shared_cache: Path) -> None:
    with loaded(tiny, shared_cache, **PLANNED) as model:
        *_, last = model.stream(list(range(15)), 5)
        assert last.prompt_tokens + last.generation_tokens == 20
        assert model.stats().tokens == 20


def test_what_a_cache_holds_counts_as_context(tiny: Path, shared_cache: Path) -> None:
    with loaded(tiny, shared_cache, **PLANNED) as model:
        cache = model.make_cache()
        model.prefill(list(range(12)), cache)
        with pytest.raises(
            ContextExceeded, match="a prompt of 4 tokens after 12 in the cache and max_tokens=5 exceeds"
        ):
            model.stream(list(range(4)), 5, prompt_cache=cache)
        with pytest.raises(ContextExceeded, match="a prompt of 9 tokens after 12 in the cache exceeds the 20"):
            model.prefill(list(range(9)), cache)
        assert len(list(model.stream(list(range(4)), 4, prompt_cache=cache))) == 4


def test_without_a_budget_nothing_was_planned_that_could_be_exceeded(tiny: Path, shared_cache: Path) -> None:
    with loaded(tiny, shared_cache, **{**STREAMED, "memory.context": 20}) as model:
        assert model.memory_plan.budget_bytes is None
        assert len(list(model.stream(list(range(30)), 3))) == 3


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0), (2, 0, 1)], ids=str)
def test_the_cache_limit_is_given_back_whatever_the_order_of_closing(
    tiny: Path, shared_cache: Path, order: tuple[int, ...]
) -> None:
    before = cache_limit()
    limits = [40 << 20, 30 << 20, 20 << 20]
    models = [loaded(tiny, shared_cache, **STREAMED, **{"memory.mlx_cache": limit}) for limit in limits]
    for number, closed in enumerate(order):
        models[closed].close()
        models[closed].close()
        left = [limits[n] for n in range(3) if n not in order[: number + 1]]
        assert cache_limit() == (left[-1] if left else before)


def test_a_cache_limit_that_somebody_set_between_two_models_comes_back(tiny: Path, shared_cache: Path) -> None:
    before = cache_limit()
    first = loaded(tiny, shared_cache, **STREAMED)
    mx.set_cache_limit(7 << 20)
    second = loaded(tiny, shared_cache, **STREAMED)
    first.close()
    second.close()
    assert cache_limit() == 7 << 20
    mx.set_cache_limit(before)


def cache_limit() -> int:
    limit = int(mx.set_cache_limit(0))
    mx.set_cache_limit(limit)
    return limit


SOME_RESIDENT = {**STREAMED, "residency.resident_layers": "0,2"}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (STREAMED, "4 of 16 experts of layers 0-3 in memory"),
        (SOME_RESIDENT, "4 of 16 experts of layers 1,3 in memory; all of layers 0,2"),
        ({"residency.resident_layers": "all"}, "all of layers 0-3"),
    ],
    ids=["streamed", "some resident", "resident"],
)
def test_a_model_says_what_it_is_in_one_line(
    tiny: Path, shared_cache: Path, values: dict[str, Any], words: str
) -> None:
    with loaded(tiny, shared_cache, **values) as model:
        assert repr(model) == f"<StreamedModel {model.outline.name} (qwen3_next): {words}>"
    assert repr(model) == f"<StreamedModel {model.outline.name} (qwen3_next): {words}; closed>"
