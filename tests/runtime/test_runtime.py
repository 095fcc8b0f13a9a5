"""Loading, counting, failing and closing of a streamed model."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

import streaming_core
from streaming_core import Settings
from streaming_core.errors import (
    BudgetTooSmall,
    ModelNotFound,
    ModelNotSupported,
    ReadError,
    SettingsError,
    StoreInvalid,
)
from streaming_core.reading import native, native_available, native_missing
from streaming_core.store import layer_file


def settings(**values: Any) -> Settings:
    return Settings().with_values({key.replace("__", "."): value for key, value in values.items()})


@pytest.fixture
def small(tiny: Path, shared_cache: Path) -> Any:
    with streaming_core.load(tiny, settings(residency__slots=4), cache_dir=shared_cache) as model:
        yield model


def test_stats_count_tokens_passes_and_one_sync_per_streamed_layer_and_pass(small: Any) -> None:
    for response in small.stream(list(range(20, 30)), 5):
        assert response.prompt_tokens == 10
    stats = small.stats()
    assert stats.tokens == 10 + 5  # mlx_lm runs one token ahead, so the last one counted is never shown
    assert stats.passes == 1 + 1 + 5
    assert stats.syncs == 4 * stats.passes - 1  # the last layer of a pass that only fills caches is left out
    assert stats.hits + stats.misses == sum(row.hits + row.misses for row in stats.layers)
    assert stats.demand_bytes == sum(row.misses for row in stats.layers) * 36_864
    small.reset_stats()
    assert (small.stats().tokens, small.stats().misses, small.stats().hit_rate) == (0, 0, 1.0)


def test_a_resident_layer_is_plain_mlx_lm_and_never_waited_for(tiny: Path, shared_cache: Path) -> None:
    wanted = settings(residency__slots=4, residency__resident_layers="0,2")
    with streaming_core.load(tiny, wanted, cache_dir=shared_cache) as model:
        names = [type(layer.mlp.switch_mlp).__name__ for layer in model.model.layers]
        assert names == ["SwitchGLU", "StreamedSwitch", "SwitchGLU", "StreamedSwitch"]
        mx.eval(model.model(mx.array([[1, 2]])))
        assert model.stats().syncs == 2
        assert [row.layer for row in model.stats().layers] == [1, 3]


def test_the_effective_settings_have_nothing_left_to_decide(tiny: Path, shared_cache: Path) -> None:
    with streaming_core.load(tiny, settings(memory__budget="123MiB"), cache_dir=shared_cache) as model:
        effective = model.settings.to_mapping()
        assert "auto" not in json.dumps(effective)
        assert streaming_core.plan(model.outline, model.settings).terms == model.memory_plan.terms


def test_closing_twice_ends_the_threads_and_restores_the_cache_limit(tiny: Path, shared_cache: Path) -> None:
    limit = mx.set_cache_limit(5 << 20)
    mx.set_cache_limit(limit)
    threads = threading.active_count()
    wanted = settings(residency__slots=4, reading__threads=6, reading__reader="threads")
    model = streaming_core.load(tiny, wanted, cache_dir=shared_cache)
    assert threading.active_count() > threads
    model.close()
    model.close()
    assert threading.active_count() == threads
    assert mx.set_cache_limit(limit) == limit


def test_memory_is_given_back_when_a_model_is_closed_and_dropped(tiny: Path, shared_cache: Path) -> None:
    def once() -> int:
        with streaming_core.load(tiny, settings(residency__slots="all"), cache_dir=shared_cache) as model:
            model.generate("hello", 3)
        del model
        mx.clear_cache()
        return int(mx.get_active_memory())

    once()
    assert once() <= once()


def test_a_read_that_fails_is_reported_and_the_expert_is_asked_for_again(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, _ = mlx_lm.load(str(tiny))
    with streaming_core.load(
        tiny, settings(residency__slots=4, reading__reader="threads"), cache_dir=tmp_path
    ) as model:
        whole, failing = os.preadv, {"now": True}

        def sometimes(fd: int, buffers: Any, offset: int) -> int:
            if failing["now"]:
                raise OSError(5, "Input/output error")
            return whole(fd, buffers, offset)

        monkeypatch.setattr(os, "preadv", sometimes)
        for length in (1, 40):  # one wave, many waves
            tokens = mx.array([list(range(length))])
            failing["now"] = True
            with pytest.raises(ReadError, match=r"expert \d+ of layer 0: .*Input/output error"):
                mx.eval(model.model(tokens))
            failing["now"] = False
            assert mx.array_equal(model.model(tokens), reference(tokens))


READERS = [
    "threads",
    pytest.param("native", marks=pytest.mark.skipif(not native_available(), reason=f"not built: {native_missing()}")),
]


@pytest.mark.parametrize("reader", READERS)
def test_a_store_file_cut_short_under_a_running_model_is_one_clear_error(
    tiny: Path, tmp_path: Path, reader: str
) -> None:
    wanted = settings(residency__slots=4, reading__reader=reader)
    with streaming_core.load(tiny, wanted, cache_dir=tmp_path) as model:
        folder = next((tmp_path / "stores").iterdir())
        for layer in range(4):
            os.truncate(layer_file(folder, layer), 20_000)
        with pytest.raises(ReadError, match=r"expert \d+ of layer \d.*the file ends at 20000"):
            model.generate("hello there", 5)
    with pytest.raises(StoreInvalid, match="bytes where its header promises"):
        streaming_core.load(tiny, wanted, cache_dir=tmp_path)


def test_a_reader_that_is_not_built_is_named_before_anything_is_packed(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "_missing", "it was not built when the package was installed")
    with pytest.raises(SettingsError, match=r"reading\.reader=native .* not built .* set reading\.reader=threads"):
        streaming_core.load(tiny, settings(reading__reader="native"), cache_dir=tmp_path)
    assert not (tmp_path / "stores").exists()


def test_a_checkpoint_is_not_read_whole_to_be_outlined(tiny: Path) -> None:
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    outline = streaming_core.inspect(tiny)
    assert mx.get_peak_memory() - before < outline.expert_bytes / 10
    assert (outline.layers, outline.experts, outline.top_k) == ((0, 1, 2, 3), 16, 4)


def test_the_planned_kv_cache_is_what_mlx_lm_allocates(tiny: Path) -> None:
    outline = streaming_core.inspect(tiny)
    model, _ = mlx_lm.load(str(tiny))
    cache = make_prompt_cache(model)
    mx.eval(model(mx.array([[1, 2, 3]]), cache=cache))
    real = 0
    for entry in cache:
        arrays = (
            [entry.keys, entry.values]
            if hasattr(entry, "keys")
            else [a for _, a in tree_flatten(entry.state) if isinstance(a, mx.array)]
        )
        real += sum(a.nbytes for a in arrays)
    assert outline.demand.kv_bytes(3) == real


def test_moving_or_touching_a_checkpoint_keeps_its_fingerprint_and_a_changed_weight_does_not(
    checkpoints: Callable[..., Path], tmp_path: Path
) -> None:
    source = checkpoints()
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in source.iterdir():
        if path.is_file():
            (copy / path.name).write_bytes(path.read_bytes())
    mark = streaming_core.inspect(source).fingerprint
    assert streaming_core.inspect(copy).fingerprint == mark
    shard = next(copy.glob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 50_000] = bytes(50_000)
    shard.write_bytes(data)
    assert streaming_core.inspect(copy).fingerprint != mark


def dense_model(folder: Path) -> Path:
    from mlx_lm.models.qwen3 import Model, ModelArgs

    config: dict[str, Any] = {
        "model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 64, "head_dim": 32,
        "num_attention_heads": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "vocab_size": 64,
        "rope_theta": 1e4, "max_position_embeddings": 128, "tie_word_embeddings": True,
    }  # fmt: skip
    model: nn.Module = Model(ModelArgs.from_dict(config))
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
    return folder


def test_what_cannot_be_loaded_is_said_in_one_line(tiny: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_bytes((tiny / "config.json").read_bytes())
    cases: list[tuple[type[Exception], str, Path, Settings]] = [
        (ModelNotFound, "nowhere", tmp_path / "nowhere", Settings()),
        (ModelNotSupported, "dense", dense_model(tmp_path / "dense"), Settings()),
        (ModelNotFound, "no model\\*.safetensors", broken, Settings()),
        (BudgetTooSmall, "smallest budget that works", tiny, settings(memory__budget="1MiB")),
        (SettingsError, "from 4", tiny, settings(residency__slots=3)),
    ]
    for kind, text, folder, wanted in cases:
        with pytest.raises(kind, match=text) as caught:
            streaming_core.load(folder, wanted, cache_dir=tmp_path / "cache")
        assert "\n" not in str(caught.value)


def test_a_shard_shorter_than_its_header_says_is_refused(tiny: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in tiny.iterdir():
        if path.is_file():
            (copy / path.name).write_bytes(path.read_bytes())
    shard = sorted(copy.glob("*.safetensors"))[-1]
    os.truncate(shard, shard.stat().st_size - 100)
    with pytest.raises(StoreInvalid, match="ends past the end of the file"):
        streaming_core.load(copy, cache_dir=tmp_path / "cache")


def test_prefill_then_decode_equals_one_whole_pass(small: Any) -> None:
    tokens = np.random.default_rng(0).integers(0, 200, 50).tolist()
    cache = small.make_cache()
    small.prefill(tokens[:-1], cache)
    after = small.model(mx.array([tokens[-1:]]), cache=cache)
    fresh = make_prompt_cache(small.model)
    small.model(mx.array([tokens[:-1]]), cache=fresh)
    assert mx.array_equal(after, small.model(mx.array([tokens[-1:]]), cache=fresh))


def test_ctrl_c_during_a_read_neither_hangs_nor_spoils_the_next_call(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, _ = mlx_lm.load(str(tiny))
    whole, calls = os.preadv, {"left": -1}

    def interrupted(fd: int, buffers: Any, offset: int) -> int:
        calls["left"] -= 1
        if calls["left"] == 0:
            raise KeyboardInterrupt
        return whole(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", interrupted)
    alone = settings(
        residency__slots=4, reading__threads=1, reading__reader="threads"
    )  # nobody else carries out what is left
    with streaming_core.load(tiny, alone, cache_dir=tmp_path) as model:
        for length in (1, 40):  # one wave, many waves
            tokens = mx.array([list(range(length))])
            calls["left"] = 2
            with pytest.raises(KeyboardInterrupt):
                mx.eval(model.model(tokens))
            assert mx.array_equal(model.model(tokens), reference(tokens))


def test_a_tokenizer_that_is_missing_or_broken_is_said_in_one_line_before_anything_is_packed(
    tiny: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in tiny.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    for damage in (lambda: (copy / "tokenizer.json").write_text("{"), lambda: (copy / "tokenizer.json").unlink()):
        damage()
        with pytest.raises(ModelNotSupported, match="its tokenizer cannot be loaded") as caught:
            streaming_core.load(copy, cache_dir=tmp_path / "cache")
        assert "\n" not in str(caught.value)
    (copy / "tokenizer_config.json").unlink()
    with pytest.raises(ModelNotSupported, match="makes no tokens of text"):
        streaming_core.load(copy, cache_dir=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("change", [{"num_experts_per_tok": 99}, {"linear_num_key_heads": 0}], ids=str)
def test_a_config_that_mlx_lm_trips_over_is_said_in_one_line(
    tiny: Path, tmp_path: Path, change: dict[str, int]
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in tiny.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(ModelNotSupported, match=r"check config\.json"):
        streaming_core.inspect(copy)
