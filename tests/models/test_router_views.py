"""What a view of a router names first is what mlx-lm's own router chooses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from family_configs import FAMILIES
from family_models import logits, make_model, text, write_checkpoint
from metal_stand_ins import stand_in_for_metal
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

import streaming_core
from streaming_core import Settings
from streaming_core.errors import ModelNotSupported
from streaming_core.models.routers import router_view
from streaming_core.models.switches import find_switches, put_module
from streaming_core.observe import ObservedNorm
from streaming_core.recording import RouteRecorder

UNGUESSED = {"muse_spark"}
GUESSED = sorted(FAMILIES.keys() - UNGUESSED)
# Whose experts are given something else than the router is.
APART = {"gemma4", "gemma4_text", "kimi_k3", "nemotron_h"}
# What a decoder layer ends in: attention or its kin, and experts.
LAST = ("o_proj", "output_linear", "out_proj", "o_b_proj", "dense", "down_proj", "fc2")


class Asked(nn.Module):
    """A switch that notes what it is asked for, and gives nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: list[tuple[mx.array, np.ndarray[Any, Any]]] = []

    @property
    def seen(self) -> list[tuple[mx.array, np.ndarray[Any, Any]]]:
        return self._seen

    def __call__(self, x: mx.array, indices: mx.array) -> mx.array:
        self._seen.append((x, np.array(indices).reshape(-1, indices.shape[-1])))
        return mx.zeros((*indices.shape, x.shape[-1]), dtype=x.dtype)


def best(scores: mx.array, width: int) -> list[set[int]]:
    return [set(row) for row in np.argsort(-np.array(scores.reshape(-1, scores.shape[-1])))[:, :width].tolist()]


def observe_router(layer: nn.Module, norm: Any, see: Callable[[mx.array], None]) -> None:
    """`see` gets what the norm before the router is given; gemma4's router has that norm in itself."""
    for name, child in list(layer.items()):
        if child is norm or (name == "router" and not isinstance(norm, nn.Module)):
            layer[name] = ObservedNorm(child, see)
        elif isinstance(child, list):
            child[:] = [ObservedNorm(each, see) if each is norm else each for each in child]


@pytest.mark.parametrize("name", GUESSED)
def test_the_best_scores_are_of_the_experts_that_the_router_chooses(name: str) -> None:
    model = make_model(FAMILIES[name])
    views, before, asked = {}, defaultdict(list), defaultdict(Asked)
    for switch in find_switches(model, name):
        layer = model.layers[switch.layer]
        views[switch.layer] = view = router_view(layer)
        assert view is not None
        observe_router(layer, view.norm, before[switch.layer].append)
        put_module(model, switch.path, asked[switch.layer])
    model(mx.array([text(50)]), cache=make_prompt_cache(model))
    for number, view in views.items():
        ((given, chosen),) = asked[number].seen
        width = chosen.shape[-1]
        assert view.shares_input == (name not in APART)
        guesses = [best(view.scores(before[number][-1], normed=False), width)]
        if view.shares_input:
            guesses.append(best(view.scores(given, normed=True), width))
        for guess in guesses:
            assert all(set(row) <= named for row, named in zip(chosen.tolist(), guess, strict=True)), number
        assert len({expert for row in chosen.tolist() for expert in row}) > width  # a constant guess would not do


@pytest.mark.parametrize("name", GUESSED)
def test_a_model_that_stands_still_is_guessed_perfectly(name: str, tmp_path: Path) -> None:
    """Attention and experts add nothing, so each layer sees what the one before it saw."""
    model = make_model(FAMILIES[name])
    ends = [(path, value * 0) for path, value in tree_flatten(model.parameters()) if ends_a_layer(path)]
    model.update(tree_unflatten(ends))
    folder = write_checkpoint(tmp_path / name, model, FAMILIES[name])
    wanted = Settings().with_values(
        {"residency.slots": 8, "predict.kind": "gate", "predict.mult": 1.0, "prefetch.ahead": 1}
    )
    with streaming_core.load(folder, wanted, cache_dir=tmp_path / "cache") as streamed:
        recorder = RouteRecorder()
        streamed.record(recorder)
        cache = streamed.make_cache()
        for token in text(20):
            mx.eval(streamed.model(mx.array([[token]]), cache=cache))
        found = {n: guess.recall(streamed.outline.top_k) for n, guess in recorder.guesses.items()}
        assert found == dict.fromkeys(streamed.outline.layers[1:], 1.0)


@pytest.mark.parametrize("name", GUESSED)
def test_guesses_leave_the_logits_as_they_are(name: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / name, make_model(FAMILIES[name]), FAMILIES[name])
    resident, _ = load_model(folder)
    kind = streaming_core.inspect(folder).guess_kinds[0]
    wanted = Settings().with_values({"residency.slots": 5, "predict.kind": kind, "prefetch.backend": "slots"})
    with streaming_core.load(folder, wanted, cache_dir=tmp_path / "cache") as streamed:
        for call in [(7, 10), (65, 2)]:
            assert mx.array_equal(logits(streamed.model, *call), logits(resident, *call)), call
        assert streamed.stats().guessed > 0


def ends_a_layer(path: str) -> bool:
    in_layer = ".layers." in f".{path}" or ".h." in path
    return in_layer and path.split(".")[-2] in LAST


@pytest.mark.parametrize("name", sorted(UNGUESSED))
def test_a_family_without_a_view_says_so(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_for_metal(monkeypatch)
    folder = write_checkpoint(tmp_path / name, make_model(FAMILIES[name]), FAMILIES[name])
    wanted = Settings().with_values({"residency.slots": 4, "predict.kind": "gate"})
    with pytest.raises(ModelNotSupported, match=f"guessing by router is not known for {name}"):
        streaming_core.load(folder, wanted, cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("kind", ["gate_input", "cascade"])
def test_experts_with_a_width_of_their_own_tell_nothing_of_the_next_router(tmp_path: Path, kind: str) -> None:
    folder = write_checkpoint(tmp_path / "latent", make_model(FAMILIES["nemotron_h"]), FAMILIES["nemotron_h"])
    wanted = Settings().with_values({"residency.slots": 4, "predict.kind": kind})
    with pytest.raises(ModelNotSupported, match=r"use predict\.kind gate, frequency or none"):
        streaming_core.load(folder, wanted, cache_dir=tmp_path / "cache")
