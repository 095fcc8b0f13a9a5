"""make_checkpoint: mlx-lm loads what it writes; it writes the same bytes again, once, whole or not at all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm import stream_generate
from mlx_lm.utils import load
from safetensors import safe_open

from streaming_core.testing import CheckpointSpec, make_checkpoint, parse_size, prompts
from streaming_core.testing.quantize import quantize, random_quantized

TINY = parse_size("tiny")
SMALL = replace(
    TINY, layers=2, full_attention_interval=2, experts=8, top_k=2
)  # the quickest one that has both attentions


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("synthetic") / "tiny", TINY)


@pytest.fixture(scope="module")
def loaded(tiny: Path) -> Any:
    return load(str(tiny))


def greedy(model: Any, tokenizer: Any, prompt: str, count: int) -> list[int]:
    return [piece.token for piece in stream_generate(model, tokenizer, prompt, max_tokens=count)]


def test_greedy_text_neither_ends_nor_falls_into_a_short_cycle(loaded: Any) -> None:
    model, tokenizer = loaded
    tokens = greedy(model, tokenizer, prompts(1, 30, seed=5)[0], 300)
    assert len(tokens) == 300
    assert len(set(tokens)) >= 60
    assert not any(tokens[-2 * length : -length] == tokens[-length:] for length in range(1, 20))


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "bfloat16"},
        {"dtype": "float16"},
        {"expert_bits": None},  # in float32: MLX has no gather_mm of half precision on the CPU
        {"expert_bits": 8, "expert_group_size": 32},
        {"expert_bits": 2},
        {"hidden": 256, "expert_width": 128, "expert_group_size": 128},
        {"layers": 5, "full_attention_interval": 3, "experts": 12, "top_k": 3},
        {"hidden": 64},
    ],
    ids=str,
)
def test_mlx_lm_loads_variants(tmp_path: Path, change: dict[str, Any]) -> None:
    spec = replace(SMALL, **change)
    model, tokenizer = load(str(make_checkpoint(tmp_path / "model", spec)))
    assert len(greedy(model, tokenizer, "the captain", 3)) == 3
    switch = model.layers[0].mlp.switch_mlp
    assert sum(part[0].nbytes for name in switch.children() for part in _arrays(switch[name])) == spec.record_bytes
    assert model.layers[0].mlp.gate.bits == 8
    assert model.layers[0].input_layernorm.weight.dtype == getattr(mx, spec.dtype)


def _arrays(module: Any) -> list[mx.array]:
    return [value for value in getattr(module, "parameters", dict)().values() if isinstance(value, mx.array)]


def test_index_names_every_tensor_of_every_shard(tiny: Path) -> None:
    index = json.loads((tiny / "model.safetensors.index.json").read_text())
    shards = sorted(path.name for path in tiny.glob("*.safetensors"))
    assert len(shards) > 1
    assert shards == [f"model-{n:05d}-of-{len(shards):05d}.safetensors" for n in range(1, len(shards) + 1)]
    found = {}
    for shard in shards:
        with safe_open(tiny / shard, framework="numpy") as file:
            found.update(dict.fromkeys(file.keys(), shard))
    assert index["weight_map"] == found
    contents: list[Any] = [mx.load(str(tiny / shard)) for shard in shards]
    assert index["metadata"]["total_size"] == sum(array.nbytes for arrays in contents for array in arrays.values())


def test_same_spec_gives_same_bytes_and_another_seed_others(tiny: Path, tmp_path: Path) -> None:
    again = make_checkpoint(tmp_path / "again", TINY)
    names = sorted(path.name for path in tiny.iterdir())
    assert names == sorted(path.name for path in again.iterdir())
    assert all((tiny / name).read_bytes() == (again / name).read_bytes() for name in names)
    other = make_checkpoint(tmp_path / "other", replace(TINY, seed=1))
    shard = next(iter(tiny.glob("*.safetensors"))).name
    assert (other / shard).read_bytes() != (tiny / shard).read_bytes()


def test_global_random_states_are_left_alone(tmp_path: Path) -> None:
    np.random.seed(3)
    mx.random.seed(3)
    expected = (np.random.random(), mx.random.uniform().item())
    np.random.seed(3)
    mx.random.seed(3)
    make_checkpoint(tmp_path / "model", SMALL)
    assert (np.random.random(), mx.random.uniform().item()) == expected


def test_a_finished_checkpoint_is_reused_and_anything_else_refused(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model", SMALL)
    calls: list[tuple[int, int]] = []
    make_checkpoint(folder, SMALL, lambda *progress: calls.append(progress))
    assert calls == []
    with pytest.raises(FileExistsError, match=r"is not the 'tiny' checkpoint asked for; remove it"):
        make_checkpoint(folder, replace(SMALL, seed=9))
    next(iter(folder.glob("*.safetensors"))).unlink()
    with pytest.raises(FileExistsError):
        make_checkpoint(folder, SMALL)


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    make_checkpoint(tmp_path / "model", SMALL, lambda *progress: calls.append(progress))
    written, totals = zip(*calls, strict=True)
    assert list(written) == sorted(written)
    assert {written[-1]} == set(totals)


def test_a_killed_writer_leaves_nothing_in_place_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from streaming_core.testing import *\n"
        "die = lambda done, total: done * 2 > total and os.kill(os.getpid(), signal.SIGKILL)\n"
        "make_checkpoint(Path(sys.argv[1]), parse_size('tiny'), die)"
    )
    folder = tmp_path / "model"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    killed = subprocess.run([sys.executable, "-c", code, str(folder)], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not folder.exists()
    assert list(tmp_path.glob(".model.partial-*"))
    make_checkpoint(folder, TINY)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail(done: int, total: int) -> None:
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        make_checkpoint(tmp_path / "model", SMALL, fail)
    assert list(tmp_path.iterdir()) == []


def test_writers_of_one_folder_wait_for_each_other(tmp_path: Path) -> None:
    totals: list[int] = []
    folder = tmp_path / "model"

    def make() -> None:
        make_checkpoint(folder, SMALL, lambda done, total: totals.append(total) if done == total else None)

    threads = [threading.Thread(target=make) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(totals) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": 100}, "hidden must be a multiple of 64, got 100"),
        ({"top_k": 17}, r"top_k must be <= experts \(16\), got 17"),
        ({"expert_bits": 3}, "expert_bits must be 2, 4, 8 or None, got 3"),
        ({"dtype": "int8"}, "dtype must be one of"),
    ],
)
def test_a_spec_that_cannot_be_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TINY, **change)


def test_sizes_have_names() -> None:
    assert parse_size("demo").record_bytes == 245_760
    assert (parse_size("layers:7").layers, parse_size("layers:7").experts) == (7, 512)
    assert isinstance(parse_size("tiny"), CheckpointSpec)
    for wrong in ("huge", "layers:0", "layers:", "layers:x"):
        with pytest.raises(ValueError, match="known: tiny, demo, layers:N"):
            parse_size(wrong)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_our_quantisation_is_mlx_quantisation(bits: int) -> None:
    matrix = np.random.default_rng(0).standard_normal((3, 4, 128), dtype=np.float32)
    matrix[0, 0] = 0
    words, scales, biases = (mx.array(part) for part in quantize(matrix, 64, bits))
    back = np.array(mx.dequantize(words, scales, biases, group_size=64, bits=bits))
    step = np.repeat(np.array(scales), 64, axis=-1)
    assert (back[0, 0] == 0).all()
    assert np.abs(back - matrix).max() <= (1.01 * step).max()
    assert np.abs(back - matrix).mean() <= 0.3 * step.mean()


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_drawn_words_have_the_asked_mean_and_deviation(bits: int) -> None:
    rows, columns = np.array([1.0, 3.0] * 64), np.repeat([0.5, 2.0], 256)
    parts = random_quantized(np.random.default_rng(0), rows, columns, 64, bits)
    words, scales, biases = (mx.array(part) for part in parts)
    values = np.array(mx.dequantize(words, scales, biases, group_size=64, bits=bits))
    unit = values / np.outer(rows, columns)
    assert abs(unit.mean()) < 0.02
    assert unit.std() == pytest.approx(1, abs=0.15)
