"""Guesses against what the router then does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from safetensors.numpy import load_file, save_file

import streaming_core
from streaming_core import Settings
from streaming_core.errors import TraceInvalid
from streaming_core.recording import RouteRecorder
from streaming_core.route_trace import Asked, PassRecord, RouteTrace, read_routes, save_trace


def settings(**values: Any) -> Settings:
    return Settings().with_values({key.replace("__", "."): value for key, value in values.items()})


def trace_of(passes: list[PassRecord], fingerprint: str, experts: int) -> RouteTrace:
    return RouteTrace(
        fingerprint=fingerprint, experts=experts, top_k=1, chunk=1, predict_kind="none", predict_mult=1.0, ahead=1,
        passes=passes,
    )  # fmt: skip


@pytest.fixture(scope="module")
def still(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose attention and experts add nothing: every layer sees the embedding."""
    folder = tmp_path_factory.mktemp("still") / "model"
    shutil.copytree(tiny, folder)
    for shard in folder.glob("model*.safetensors"):
        tensors = load_file(shard)
        for name in tensors:
            last = any(part in name for part in ("out_proj.", "o_proj.", "down_proj."))
            if last and name.endswith(("scales", "biases")):
                tensors[name] = tensors[name] * 0
        save_file(tensors, shard)
    return folder


def recalls(model: streaming_core.StreamedModel, width: int) -> list[float | None]:
    recorder = RouteRecorder()
    model.record(recorder)
    for token in range(20, 50):
        mx.eval(model.model(mx.array([[token]])))
    return [recorder.guesses[n].recall(width) for n in sorted(recorder.guesses)]


@pytest.mark.parametrize("ahead", [0, 1, 2, 3])
def test_a_model_that_stands_still_is_guessed_perfectly(still: Path, shared_cache: Path, ahead: int) -> None:
    wanted = settings(residency__slots=6, predict__kind="gate", predict__mult=1.0, prefetch__ahead=ahead)
    with streaming_core.load(still, wanted, cache_dir=shared_cache) as model:
        found = recalls(model, model.outline.top_k)
        assert found == [1.0] * (4 - ahead)


def test_the_cheaper_guess_is_perfect_too_when_consecutive_norms_are_equal(still: Path, shared_cache: Path) -> None:
    index = json.loads((still / "model.safetensors.index.json").read_text())["weight_map"]
    assert any("post_attention_layernorm" in name for name in index)
    wanted = settings(residency__slots=6, predict__kind="gate_input", predict__mult=4.0)
    with streaming_core.load(still, wanted, cache_dir=shared_cache) as model:
        assert recalls(model, 16) == [1.0] * 3  # every expert is a candidate


def test_a_recorded_run_replayed_as_oracle_is_right_every_time(tiny: Path, shared_cache: Path, tmp_path: Path) -> None:
    recorder = RouteRecorder()
    with streaming_core.load(tiny, settings(residency__slots=6), cache_dir=shared_cache) as model:
        model.record(recorder)
        for token in range(30):
            mx.eval(model.model(mx.array([[token]])))
        path = tmp_path / "routes.json.gz"
        save_trace(path, trace_of(recorder.passes, model.outline.fingerprint, model.outline.experts))
        routes = read_routes(path, model.outline.fingerprint)
    assert routes == recorder.routes
    wanted = settings(residency__slots=10, predict__kind="oracle", prefetch__backend="slots")
    with streaming_core.load(tiny, wanted, cache_dir=shared_cache, oracle=routes) as model:
        again = RouteRecorder()
        model.record(again)
        for token in range(30):
            mx.eval(model.model(mx.array([[token]])))
        assert again.routes == routes
        assert [again.guesses[n].recall(4) for n in range(4)] == [1.0] * 4
        assert [again.guesses[n].asked // 4 for n in range(4)] == [29, 30, 30, 30]  # none for the first layer at first
        first = again.passes[0].asked[0]
        assert [row.misses for row in model.stats().layers] == [len(first.experts), 0, 0, 0]


@pytest.mark.parametrize("content", [b"", b"x" * 50, b"\x1f\x8b" + b"\0" * 20])
def test_anything_else_is_no_trace(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "routes.json.gz"
    path.write_bytes(content)
    with pytest.raises(TraceInvalid, match=r"routes\.json\.gz"):
        read_routes(path, "0" * 16)


def test_a_trace_of_another_checkpoint_or_with_strange_experts_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "routes.json.gz"
    save_trace(path, trace_of([PassRecord(1, True, [Asked(0, (1, 2))])], "a" * 16, 4))
    with pytest.raises(TraceInvalid, match="another checkpoint"):
        read_routes(path, "b" * 16)
    save_trace(path, trace_of([PassRecord(1, True, [Asked(0, (1, 9))])], "a" * 16, 4))
    with pytest.raises(TraceInvalid, match="does not have"):
        read_routes(path, "a" * 16)
