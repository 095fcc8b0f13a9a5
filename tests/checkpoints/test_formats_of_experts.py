"""Bits, group sizes and modes are those of the tensors, whatever the config says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checkpoint_cases import GPT_OSS, QWEN3, build, flat, is_expert, streams_like, write

import streaming_core
from streaming_core.errors import ModelNotSupported
from streaming_core.kernels.formats import ExpertFormat

AFFINE = [
    {"bits": bits, "group_size": group, "mode": "affine"} for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128)
]
FLOATS = [
    {"bits": 4, "group_size": 32, "mode": "mxfp4"},
    {"bits": 8, "group_size": 32, "mode": "mxfp8"},
    {"bits": 4, "group_size": 16, "mode": "nvfp4"},
]
TRUNK = {"bits": 8, "group_size": 64, "mode": "affine"}


def named(value: object) -> str:
    return "-".join(str(each) for each in value.values()) if isinstance(value, dict) else str(value)


@pytest.mark.parametrize("layout", ["packed", "checkpoint"])
@pytest.mark.parametrize("format_", [*AFFINE, *FLOATS, None], ids=named)
def test_every_format_streams_without_a_word_in_the_config(
    tiny: Path, tmp_path: Path, format_: dict[str, Any] | None, layout: str
) -> None:
    resident = build(QWEN3, lambda path: format_ if is_expert(path) else TRUNK)
    folder = write(tmp_path / "m", QWEN3, flat(resident), tiny)
    found = streaming_core.inspect(folder).formats[0]
    assert isinstance(found, ExpertFormat)
    if format_ is not None:
        assert f"{format_['mode']} {format_['bits']} bits, groups of {format_['group_size']}" in str(found)
    assert streams_like(folder, resident, tmp_path, layout)


def test_a_model_that_is_not_quantised_at_all_streams(tiny: Path, tmp_path: Path) -> None:
    resident = build(QWEN3)
    folder = write(tmp_path / "m", QWEN3, flat(resident), tiny)
    assert streams_like(folder, resident, tmp_path, "packed")


def mixed(path: str) -> dict[str, Any]:
    if not is_expert(path):
        return TRUNK
    return {"bits": 8, "group_size": 32, "mode": "affine"} if "down_proj" in path else AFFINE[7]


WRONG = {"group_size": 64, "bits": 4, "mode": "affine"}
CONFIGS: dict[str, dict[str, Any]] = {
    "one default": {"quantization": WRONG},
    "no mode": {"quantization": {"group_size": 64, "bits": 4}},
    "another name space": {
        "quantization": {
            **WRONG,
            "language_model.model.layers.0.mlp.switch_mlp.down_proj": {"group_size": 32, "bits": 8},
            "model.language_model.layers.0.mlp.gate": {"group_size": 64, "bits": 8},
        }
    },
    "stale entries": {
        "quantization": {
            **WRONG,
            "model.layers.0.mlp.switch_mlp.down_proj": {"group_size": 64, "bits": 4},
            "model.layers.1.mlp.switch_mlp.gate_proj": False,
        }
    },
    "only the other key": {"quantization_config": WRONG},
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_mixed_precision_inside_an_expert_needs_no_right_config(
    tiny: Path, tmp_path: Path, config: dict[str, Any]
) -> None:
    resident = build(QWEN3, mixed)
    folder = write(tmp_path / "m", {**QWEN3, **config}, flat(resident), tiny)
    assert "4 bits, groups of 64, down 128x128 affine 8 bits, groups of 32" in str(
        streaming_core.inspect(folder).formats[0]
    )
    assert streams_like(folder, resident, tmp_path, "packed")


def test_an_expert_that_is_quantised_only_in_part_streams(tiny: Path, tmp_path: Path) -> None:
    resident = build(QWEN3, lambda path: None if "down_proj" in path else TRUNK)
    folder = write(tmp_path / "m", QWEN3, flat(resident), tiny)
    assert streams_like(folder, resident, tmp_path, "packed")


@pytest.mark.parametrize("format_", [FLOATS[0], TRUNK], ids=named)
@pytest.mark.parametrize("layout", ["packed", "checkpoint"])
def test_biases_of_experts_stream(tiny: Path, tmp_path: Path, format_: dict[str, Any], layout: str) -> None:
    resident = build(GPT_OSS, lambda path: format_ if is_expert(path) else TRUNK)
    folder = write(tmp_path / "m", {**GPT_OSS, "quantization": WRONG}, flat(resident), tiny)
    assert any(name.endswith("experts.down_proj.bias") for name in flat(resident))
    assert streams_like(folder, resident, tmp_path, layout)


def test_tensors_that_fit_no_format_are_refused_in_one_line(tiny: Path, tmp_path: Path) -> None:
    weights = flat(build(QWEN3, lambda path: TRUNK))
    name = "model.layers.1.mlp.switch_mlp.up_proj.scales"
    weights[name] = weights[name][..., :1]
    with pytest.raises(ModelNotSupported, match="mlx-lm cannot load it") as caught:
        streaming_core.inspect(write(tmp_path / "m", QWEN3, weights, tiny))
    assert "\n" not in str(caught.value)
