"""Checkpoints as people lay them out: files, names, prefixes, fused and single tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from checkpoint_cases import (
    GPT_OSS,
    MIXTRAL,
    QWEN3,
    QWEN35,
    Weights,
    build,
    flat,
    interleaved,
    is_expert,
    logits,
    plain,
    streams_like,
    unstacked,
    write,
)

import streaming_core
from autotune.cli import main
from streaming_core import Settings
from streaming_core.errors import DiskFull, ModelNotSupported, StoreInvalid
from streaming_core.hardware import FakeMachine

FOUR = {"bits": 4, "group_size": 64, "mode": "affine"}
LAYOUTS = ["packed", "checkpoint"]
GPT_OSS_AS_PUBLISHED = {**GPT_OSS, "quantization_config": {"quant_method": "mxfp4"}}


def mxfp4_experts(path: str) -> dict[str, Any] | None:
    return {"bits": 4, "group_size": 32, "mode": "mxfp4"} if is_expert(path) else None


def four(path: str) -> dict[str, Any]:
    return FOUR


def w_names(weights: Weights) -> Weights:
    return unstacked(weights, {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"})


def fused(weights: Weights) -> Weights:
    """As in the original of Qwen3.5: gate and up one after the other, no `.weight`."""
    found = {name: array for name, array in weights.items() if ".switch_mlp." not in name}
    for name, gate in weights.items():
        if name.endswith("switch_mlp.gate_proj.weight"):
            block = name.removesuffix("switch_mlp.gate_proj.weight")
            up = weights[f"{block}switch_mlp.up_proj.weight"]
            found[f"{block}experts.gate_up_proj"] = mx.concatenate([gate, up], axis=1)
            found[f"{block}experts.down_proj"] = weights[f"{block}switch_mlp.down_proj.weight"]
    return found


def renamed(weights: Weights, old: str, new: str) -> Weights:
    return {new + name.removeprefix(old) if name.startswith(old) else name: array for name, array in weights.items()}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shards", [1, 2, 5])
def test_tensors_in_one_file_or_many(tiny: Path, tmp_path: Path, shards: int, layout: str) -> None:
    resident = build(QWEN3, four)
    assert streams_like(write(tmp_path / "m", QWEN3, flat(resident), tiny, shards), resident, tmp_path, layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shards", [1, 3])
def test_one_tensor_per_expert(tiny: Path, tmp_path: Path, shards: int, layout: str) -> None:
    resident = build(QWEN3, plain)
    folder = write(tmp_path / "m", QWEN3, unstacked(flat(resident)), tiny, shards)
    assert "one tensor per expert" in streaming_core.inspect(folder).layout_text("checkpoint")
    assert streams_like(folder, resident, tmp_path, layout)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_quantised_tensor_per_expert_under_other_names(tiny: Path, tmp_path: Path, layout: str) -> None:
    resident = build(MIXTRAL, four)
    folder = write(tmp_path / "m", MIXTRAL, w_names(flat(resident)), tiny, 2)
    assert streaming_core.inspect(folder).indirect is None
    assert streams_like(folder, resident, tmp_path, layout)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_quantised_tensor_per_expert_where_mlx_lm_stacks_only_weights(
    tiny: Path, tmp_path: Path, layout: str
) -> None:
    resident = build(QWEN3, four)
    folder = write(tmp_path / "m", QWEN3, unstacked(flat(resident)), tiny, 2)
    assert streaming_core.inspect(folder).unused == ()
    assert streams_like(folder, resident, tmp_path, layout)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gate_and_up_in_one_tensor(tiny: Path, tmp_path: Path, layout: str) -> None:
    resident = build(QWEN35, plain)
    folder = write(tmp_path / "m", QWEN35, fused(flat(resident)), tiny)
    assert "gate and up in one tensor" in streaming_core.inspect(folder).layout_text("checkpoint")
    assert streams_like(folder, resident, tmp_path, layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model.", "model."])
def test_a_text_model_inside_a_vision_wrapper(tiny: Path, tmp_path: Path, prefix: str, layout: str) -> None:
    resident = build(QWEN35, four)
    weights = renamed(flat(resident), "language_model.model.", prefix)
    weights["vision_tower.blocks.0.attn.qkv.weight"] = mx.zeros((8, 8))
    config = {**QWEN35, "vision_config": {"depth": 1}, "quantization": FOUR}
    folder = write(tmp_path / "m", config, weights, tiny)
    outline = streaming_core.inspect(folder)
    assert (outline.indirect, outline.unused) == (None, ())  # mlx-lm itself leaves the tower out
    assert streams_like(folder, resident, tmp_path, layout)


def test_experts_that_mlx_lm_reorders_are_packed_and_the_program_says_why(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resident = build(GPT_OSS, mxfp4_experts)
    folder = write(tmp_path / "m", GPT_OSS_AS_PUBLISHED, interleaved(flat(resident)), tiny)
    outline = streaming_core.inspect(folder)
    assert outline.indirect is not None and "mlx-lm builds it while loading" in outline.indirect
    assert streams_like(folder, resident, tmp_path / "cache", "checkpoint")
    words = ["generate", "--model", str(folder), "--cache-dir", str(tmp_path / "cache"), "--profile", "none"]
    words += ["--raw", "--prompt", "one two", "--max-tokens", "2", "--set", "store.layout=checkpoint"]
    assert main(words) == 0
    said = capsys.readouterr().err.splitlines()
    assert sum("experts are read from packed records, not from the checkpoint: no tensor" in line for line in said) == 1


def test_nobody_is_told_to_read_what_cannot_be_read_where_the_disk_is_full(tiny: Path, tmp_path: Path) -> None:
    resident = build(GPT_OSS, mxfp4_experts)
    direct = write(tmp_path / "direct", GPT_OSS, flat(resident), tiny)
    indirect = write(tmp_path / "indirect", GPT_OSS_AS_PUBLISHED, interleaved(flat(resident)), tiny)
    for folder, told in ((direct, True), (indirect, False)):
        with pytest.raises(DiskFull, match="choose another --cache-dir") as caught:
            streaming_core.load(folder, cache_dir=tmp_path / "cache", machine=FakeMachine(free_disk=1 << 20))
        assert ("store.layout=checkpoint" in str(caught.value)) == told


def test_doctor_packs_nothing_where_packing_is_needed(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resident = build(GPT_OSS, mxfp4_experts)
    folder = write(tmp_path / "m", GPT_OSS_AS_PUBLISHED, interleaved(flat(resident)), tiny)
    words = ["doctor", "--model", str(folder), "--cache-dir", str(tmp_path / "cache"), "--profile", "none", "--json"]
    assert main([*words, "--seconds", "0.01"]) in (0, 1)  # what this machine suffers from is not the question
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["findings"]
    assert not (tmp_path / "cache" / "stores").exists()


def test_fused_tensors_in_an_order_that_is_not_the_models_are_refused_not_read_wrongly(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names and shapes cannot tell; bytes can."""
    from mlx_lm.models import qwen3_5_moe

    resident = build(QWEN35, plain)
    folder = write(tmp_path / "m", QWEN35, fused(flat(resident)), tiny)
    sanitize = qwen3_5_moe.Model.sanitize

    def swapped(model: Any, weights: Weights) -> Weights:
        found = sanitize(model, weights)
        gate, up = (f"language_model.model.layers.0.mlp.switch_mlp.{n}_proj.weight" for n in ("gate", "up"))
        found[gate], found[up] = found[up], found[gate]
        return found

    monkeypatch.setattr(qwen3_5_moe.Model, "sanitize", swapped)
    with pytest.raises(StoreInvalid, match=r"in another order on disk than in the model; use store\.layout=packed"):
        streaming_core.load(folder, Settings().with_values({"store.layout": "checkpoint"}), cache_dir=tmp_path)


@pytest.mark.parametrize("head", [False, True])
def test_tied_embeddings_with_and_without_the_head_that_nobody_needs(tiny: Path, tmp_path: Path, head: bool) -> None:
    config = {**QWEN3, "tie_word_embeddings": True}
    resident = build(config, four)
    weights = flat(resident)
    if head:
        weights |= {f"lm_head.{name}": weights[f"model.embed_tokens.{name}"] for name in ("weight", "scales", "biases")}
    folder = write(tmp_path / "m", config, weights, tiny)
    assert streams_like(folder, resident, tmp_path, "packed")
    assert streaming_core.inspect(folder).unused == (("lm_head.biases", "lm_head.scales") if head else ())


def test_tensors_that_the_model_does_not_use_are_left_out_and_named(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resident = build(QWEN3, four)
    extra = {"model.layers.2.mlp.gate.weight": mx.zeros((8, 128)), "mtp.fc.weight": mx.zeros((128, 256))}
    folder = write(tmp_path / "m", {**QWEN3, "quantization": FOUR}, flat(resident) | extra, tiny)
    assert streaming_core.inspect(folder).unused == tuple(sorted(extra))
    assert streams_like(folder, resident, tmp_path / "cache", "packed")
    assert main(["pack", "--model", str(folder), "--cache-dir", str(tmp_path / "cache")]) == 0
    assert "2 tensors of the checkpoint have no place in the model: model.layers.2.mlp.gate" in capsys.readouterr().err


def test_a_tensor_that_is_missing_is_named_and_so_is_what_has_no_place(tiny: Path, tmp_path: Path) -> None:
    weights = renamed(flat(build(QWEN3, four)), "model.norm.", "transformer.final_norm.")
    folder = write(tmp_path / "m", QWEN3, weights, tiny)
    with pytest.raises(ModelNotSupported, match=r"Missing 1 parameters: model\.norm\.weight") as caught:
        streaming_core.inspect(folder)
    message = str(caught.value)
    assert "1 tensors have no place in it, such as transformer.final_norm.weight" in message and "\n" not in message


@pytest.mark.parametrize(
    "names",
    [
        ["model.layers.0.self_attn.q_proj.bias"],
        ["lm_head.bias"],
        ["model.layers.1.mlp.shared_expert.gate_proj.weight"],
        ["model.layers.2.mlp.gate.weight", "model.layers.3.mlp.gate.weight"],
    ],
    ids=["bias", "bias of the head", "expert", "more layers than the config has"],
)
def test_a_tensor_that_would_change_what_the_model_says_is_not_left_out(
    tiny: Path, tmp_path: Path, names: list[str]
) -> None:
    weights = flat(build(QWEN3, four)) | {name: mx.zeros((8, 8)) for name in names}
    with pytest.raises(ModelNotSupported, match=rf"parameters not in model: {names[-1]}"):
        streaming_core.inspect(write(tmp_path / "m", QWEN3, weights, tiny))


def test_an_expert_that_is_missing_is_an_error_and_nothing_is_packed(tiny: Path, tmp_path: Path) -> None:
    weights = unstacked(flat(build(QWEN3, plain)))
    del weights["model.layers.1.mlp.experts.5.up_proj.weight"]
    folder = write(tmp_path / "m", QWEN3, weights, tiny)
    with pytest.raises(ModelNotSupported, match=r"experts\.5\.up_proj\.weight"):
        streaming_core.load(folder, cache_dir=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_the_layout_in_force_is_told(tiny: Path, tmp_path: Path) -> None:
    resident = build(QWEN3, plain)
    folder = write(tmp_path / "m", QWEN3, unstacked(flat(resident)), tiny)
    wanted = Settings().with_values({"residency.slots": 3, "store.layout": "checkpoint"})
    with streaming_core.load(folder, wanted, cache_dir=tmp_path) as model:
        assert model.settings.store.layout == "checkpoint"
        logits(model.model)
        assert model.stats().demand_bytes == model.stats().misses * model.outline.record_bytes
    assert json.loads((folder / "config.json").read_text())["num_experts"] == model.outline.experts
    assert not (tmp_path / "stores").exists()
