"""Routing of a checkpoint like `demo`, but quicker: broad bands round the figures in benchmarks/routing.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.utils import load

from streaming_core.testing import make_checkpoint, parse_size, prompts
from streaming_core.testing.routing import LayerRouting, lru_hit_rate, recall, record_routing

SPEC = replace(parse_size("demo"), layers=8, hidden=256, expert_width=64, shared_width=128, linear_head_dim=32)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load(str(make_checkpoint(tmp_path_factory.mktemp("routing") / "model", SPEC)))


@pytest.fixture(scope="module")
def recorded(loaded: Any) -> list[list[LayerRouting]]:
    model, tokenizer = loaded
    return [record_routing(model, tokenizer.encode(text)) for text in prompts(3, 60, seed=2)]


def over_layers(recorded: list[list[LayerRouting]], guess: str, width: float) -> float:
    pairs = [(layer.routed, getattr(layer, guess)) for prompt in recorded for layer in prompt]
    return float(np.mean([recall(routed, ranking, width) for routed, ranking in pairs if ranking is not None]))


def miss_rate(recorded: list[list[LayerRouting]], slots: int) -> float:
    streams = [np.concatenate([prompt[layer].routed for prompt in recorded]) for layer in range(SPEC.layers)]
    return 1 - float(np.mean([lru_hit_rate(routed, slots) for routed in streams]))


@pytest.mark.parametrize(("width", "low", "high"), [(2.16, 0.80, 0.96), (4.06, 0.92, 0.995), (7.58, 0.98, 1)])
def test_same_layer_recall(recorded: list[list[LayerRouting]], width: float, low: float, high: float) -> None:
    assert low < over_layers(recorded, "same_layer", width * SPEC.top_k) <= high


@pytest.mark.parametrize(("width", "low", "high"), [(0.8, 0.35, 0.60), (2.0, 0.65, 0.88), (6.4, 0.93, 1)])
def test_next_layer_recall(recorded: list[list[LayerRouting]], width: float, low: float, high: float) -> None:
    assert low < over_layers(recorded, "next_layer", width * SPEC.top_k) <= high


@pytest.mark.parametrize(("slots", "low", "high"), [(6, 0.45, 0.72), (14, 0.22, 0.45), (26, 0.06, 0.25)])
def test_lru_misses(recorded: list[list[LayerRouting]], slots: int, low: float, high: float) -> None:
    assert low < miss_rate(recorded, slots) < high


def test_experts_used_depend_on_the_prompt(recorded: list[list[LayerRouting]]) -> None:
    def usage(prompt: list[LayerRouting], layer: int, half: int) -> Any:
        routed = np.array_split(prompt[layer].routed, 2)[half]
        return np.bincount(routed.ravel(), minlength=SPEC.experts) / routed.size

    layers = range(2, SPEC.layers)
    inside = [np.abs(usage(prompt, at, 0) - usage(prompt, at, 1)).sum() for prompt in recorded for at in layers]
    across = [np.abs(usage(recorded[0], at, 0) - usage(other, at, 1)).sum() for other in recorded[1:] for at in layers]
    assert np.mean(across) > 1.1 * np.mean(inside)


def test_routers_differ_by_layer(loaded: Any) -> None:
    gates = [np.array(layer.mlp.gate.weight) for layer in loaded[0].layers]
    assert len({gate.tobytes() for gate in gates}) == SPEC.layers


def test_recording_leaves_the_model_as_it_was(loaded: Any) -> None:
    model, tokenizer = loaded
    tokens = tokenizer.encode("the pilot")
    before = model(mx.array([tokens]))
    modules = [type(module) for _, module in model.named_modules()]
    record_routing(model, tokens)
    assert [type(module) for _, module in model.named_modules()] == modules
    assert mx.array_equal(before, model(mx.array([tokens])))


def test_recall_and_hit_rate_by_hand() -> None:
    routed = np.array([[0, 1], [1, 2], [0, 1]], dtype=np.int32)
    ranking = np.array([[0, 2, 1], [2, 1, 0], [2, 0, 1]], dtype=np.int32)
    assert recall(routed, ranking, 1) == pytest.approx(2 / 6)
    assert recall(routed, ranking, 1.5) == pytest.approx(3 / 6)  # 2 of 6 at width 1, 4 of 6 at width 2
    assert recall(routed, ranking, 3) == 1
    assert lru_hit_rate(routed, 2) == pytest.approx(2 / 6)
    assert lru_hit_rate(routed, 3) == pytest.approx(3 / 6)
