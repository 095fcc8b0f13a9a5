"""Every model file of mlx-lm that has experts is streamed, and gives the resident model's logits bit for bit."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest
from family_configs import EXPERTS, FAMILIES
from family_models import logits, make_model, model_files_with_experts, text, write_checkpoint
from family_table import PAGE, page
from mlx_lm.utils import load_model

import streaming_core
from streaming_core import Settings
from streaming_core.errors import ModelNotSupported

CALLS = [(1, 3), (7, 20), (65, 1), (200, 1)]  # tokens of a prompt, tokens decoded after it


def settings(slots: int, layout: str) -> Settings:
    return Settings().with_values({"residency.slots": slots, "store.layout": layout})


def test_every_model_file_with_experts_is_in_the_table() -> None:
    found = model_files_with_experts()
    unknown = sorted(found - FAMILIES.keys())
    assert not unknown, (
        f"this mlx-lm has model files with experts that nobody has tried to stream: {', '.join(unknown)}; "
        "give each a tiny config in tests/models/family_configs.py, and see what the other tests here say"
    )


def test_a_new_model_file_is_found_by_its_switch_or_by_what_it_builds_on(tmp_path: Path) -> None:
    sources = {
        "moe": "from .switch_layers import SwitchGLU\nclass Model: ...",
        "wrapper": "from . import base, moe\nclass Model: ...",
        "outer": "from .wrapper import Model as Inner\nclass Model: ...",
        "dense": "from .base import Args\nclass Model: ...",
        "switch_layers": "class SwitchGLU: ...",
    }
    for name, source in sources.items():
        (tmp_path / f"{name}.py").write_text(source)
    assert model_files_with_experts(tmp_path) == {"moe", "wrapper", "outer"}


def test_the_page_of_families_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python tests/models/family_table.py"


def after_prefill(model: streaming_core.StreamedModel) -> mx.array:
    """Logits of the token after a prompt that only filled caches, which leaves experts of the last layer out."""
    tokens = text(65)
    cache = model.make_cache()
    model.prefill(tokens[:64], cache)
    return model.model(mx.array([tokens[64:]]), cache=cache)[0, -1]


@pytest.mark.parametrize("quantized", [False, True], ids=["float32", "4 bits"])
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.usefixtures("without_metal")
def test_a_streamed_family_gives_the_resident_models_logits(name: str, quantized: bool, tmp_path: Path) -> None:
    config = FAMILIES[name]
    folder = write_checkpoint(tmp_path / name, make_model(config), config, quantized=quantized)
    resident, _ = load_model(folder)
    calls = [(7, 3), (65, 1)] if quantized else CALLS
    expected = [logits(resident, *call) for call in calls]
    after_prompt = logits(resident, 64, 1)[-1]
    assert all(mx.all(mx.isfinite(out)).item() for out in expected)
    top_k = streaming_core.inspect(folder).top_k
    layout = "checkpoint" if quantized else "packed"
    for slots in [top_k] if quantized else [top_k, 5, EXPERTS]:
        with streaming_core.load(folder, settings(slots, layout), cache_dir=tmp_path / "cache") as model:
            for call, out in zip(calls, expected, strict=True):
                assert mx.array_equal(logits(model.model, *call), out), (slots, call)
            assert model.stats().misses > 0
            assert mx.array_equal(after_prefill(model), after_prompt), slots


def test_the_largest_top_k_of_any_layer_counts(tmp_path: Path) -> None:
    config = FAMILIES["hunyuan"]
    assert config["moe_topk"] == [3, 2]
    folder = write_checkpoint(tmp_path / "hunyuan", make_model(config), config)
    assert streaming_core.inspect(folder).top_k == 3


@pytest.mark.skipif(mx.metal.is_available(), reason="runs where there is Metal")
def test_a_family_that_needs_metal_says_so_elsewhere(tmp_path: Path) -> None:
    config = FAMILIES["muse_spark"]
    folder = write_checkpoint(tmp_path / "muse_spark", make_model(config), config)
    with pytest.raises(ModelNotSupported, match=r"muse_spark: mlx-lm cannot run it: .*No Metal.*whether this machine"):
        streaming_core.load(folder, settings(4, "packed"), cache_dir=tmp_path / "cache")
