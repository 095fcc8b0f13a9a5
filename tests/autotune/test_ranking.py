from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tuner_fakes import LAYERS, hill, tuned

from autotune.ranking import by_guesses
from autotune.result import Status
from autotune.testing import FakeRunner, Weather
from autotune.trial import Counters, LayerCost, Measured
from streaming_core.layer_set import LayerSet
from streaming_core.settings import Settings

QUIET = Weather(noise=0.01)
BEST_FIRST = [12, 1, 11, 2, 10, 3, 9, 4, 8, 5, 7, 6]  # the outer layers are guessed best


def outer(layer: int) -> float:
    return 1.0 - 0.05 * BEST_FIRST.index(layer)


def guesses_pay(settings: Settings) -> float:
    """Guessing pays in the outer layers only."""
    if settings.prefetch.backend == "none":
        return 10.0
    named = LayerSet.parse(settings.prefetch.layers)
    return 10.0 + sum((2.0 if n in BEST_FIRST[:3] else -0.5) for n in LAYERS if n in named)


def fake(speed: Any = guesses_pay, **changes: Any) -> FakeRunner:
    return FakeRunner(speed, QUIET, layers=LAYERS, guess_recall=changes.pop("guess_recall", outer), **changes)


def records(folder: Path) -> list[dict[str, Any]]:
    (path,) = folder.glob("studies/*/trials.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def guessed_for(folder: Path) -> list[tuple[list[int], list[int]]]:
    """The layers that guesses were tried for where it was not all, and as many of the best streamed ones."""
    found = []
    for each in records(folder):
        resident = each["settings"]["residency"]["resident_layers"]
        streamed = [n for n in BEST_FIRST if resident == "auto" or n not in LayerSet.parse(resident)]
        named = LayerSet.parse(each["settings"]["prefetch"]["layers"])
        tried = [n for n in BEST_FIRST if n in named]
        if len(tried) < len(LAYERS):
            found.append((tried, streamed[: len(tried)]))
    return found


def test_layers_are_ranked_by_reads_avoided_less_reads_in_vain() -> None:
    costs = [(1, 10, 5), (2, 10, 9), (3, 0, 0), (4, 2, 2), (5, 30, 11)]
    layers = tuple(LayerCost(layer=n, misses=0, wait_s=0.0, guessed=g, guesses_used=u) for n, g, u in costs)
    measured = Measured(
        samples=(1.0,), prefill_s=(1.0,), prompt_tokens=1, token_p50_s=1.0, token_p99_s=1.0, load_s=1.0,
        base_rss_bytes=1, peak_rss_bytes=1, mlx_peak_bytes=1, needed_bytes=1, tokens_hash="", effective={},
        counters=Counters(layers=layers),
    )  # fmt: skip
    assert by_guesses((1, 2, 3, 4, 5, 6), measured) == (2, 4, 1, 5, 3, 6)


def test_a_trial_with_guesses_for_every_layer_ranks_them_before_the_search(tmp_path: Path) -> None:
    result = tuned(tmp_path, fake(), trials=40)
    purposes = [each["purpose"] for each in records(tmp_path)]
    assert purposes[:3] == ["default", "rank", "default"]
    assert purposes.count("rank") == 1
    ranked = records(tmp_path)[1]["settings"]
    assert (ranked["prefetch"]["layers"], ranked["prefetch"]["backend"]) == ("all", "stage")
    assert guessed_for(tmp_path)
    assert all(tried == best for tried, best in guessed_for(tmp_path))
    assert result.status is Status.PROVEN
    assert guesses_pay(result.settings) >= 0.95 * (10.0 + 3 * 2.0)  # of the best three's


def test_a_search_that_is_carried_on_keeps_the_ranking_it_was_begun_with(tmp_path: Path) -> None:
    tuned(tmp_path, fake(interrupt_at=6), trials=40)
    other_day = fake(guess_recall=lambda layer: 1.0 - outer(layer), seed=5)
    tuned(tmp_path, other_day, trials=40)
    assert [each["purpose"] for each in records(tmp_path)].count("rank") == 1
    assert guessed_for(tmp_path)
    assert all(tried == best for tried, best in guessed_for(tmp_path))


def test_a_search_begun_without_a_ranking_is_carried_on_without_one(tmp_path: Path) -> None:
    tuned(tmp_path, fake(), trials=5)
    tuned(tmp_path, fake(), trials=20)
    assert "rank" not in [each["purpose"] for each in records(tmp_path)]


def test_interrupted_while_layers_are_ranked_gives_the_default(tmp_path: Path) -> None:
    result = tuned(tmp_path, fake(hill, interrupt_at=1), trials=40)
    assert result.status is Status.INTERRUPTED
    assert result.settings == Settings()


@pytest.mark.parametrize("fixed", ["prefetch.backend", "predict.kind", "prefetch.layers"])
def test_nothing_is_ranked_when_guesses_or_their_layers_are_not_searched(tmp_path: Path, fixed: str) -> None:
    tuned(tmp_path, fake(hill), trials=18, fixed=frozenset({fixed}))
    assert "rank" not in [each["purpose"] for each in records(tmp_path)]
