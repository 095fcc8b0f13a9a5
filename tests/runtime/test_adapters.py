"""LoRA adapters of mlx-lm on a streamed model: on the trunk they work; the experts that stream refuse them by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchGLU, SwitchLinear
from mlx_lm.tuner.lora import LoRASwitchLinear
from mlx_lm.tuner.utils import linear_to_lora_layers, load_adapters, remove_lora_layers

import streaming_core
from streaming_core import Settings
from streaming_core.errors import AutotuneError, ExpertsNotInMemory

STREAMED = {"residency.slots": 4, "residency.resident_layers": "none"}
GUESSING = {**STREAMED, "predict.kind": "gate", "predict.mult": 2.0, "prefetch.backend": "stage"}
TRUNK = ["self_attn.q_proj", "self_attn.v_proj", "linear_attn.out_proj", "mlp.gate", "mlp.shared_expert.up_proj"]
EXPERTS = ["self_attn.q_proj", "mlp.switch_mlp.up_proj"]
TOKENS = mx.array([[5, 17, 99, 3, 250, 42, 7, 8, 300, 12]])


def loaded(tiny: Path, cache: Path, **values: Any) -> streaming_core.StreamedModel:
    return streaming_core.load(tiny, Settings().with_values({**STREAMED, **values}), cache_dir=cache)


def make_adapter(tiny: Path, folder: Path, keys: list[str] | None) -> Path:
    """Of rank 2 on the last two layers, with random weights, in mlx-lm's files."""
    parameters = {"rank": 2, "scale": 4.0, "dropout": 0.0} | ({} if keys is None else {"keys": keys})
    model = mlx_lm.load(str(tiny))[0]
    model.freeze()
    linear_to_lora_layers(model, 2, parameters)
    mx.random.seed(3)
    weights = {name: 0.1 * mx.random.normal(a.shape) for name, a in tree_flatten(model.trainable_parameters())}
    folder.mkdir()
    mx.save_safetensors(str(folder / "adapters.safetensors"), weights)
    config = {"fine_tune_type": "lora", "num_layers": 2, "lora_parameters": parameters}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("values", [STREAMED, GUESSING], ids=["streamed", "guessing"])
def test_an_adapter_on_the_trunk_gives_the_resident_models_logits(
    tiny: Path, shared_cache: Path, tmp_path: Path, values: dict[str, Any]
) -> None:
    adapter = make_adapter(tiny, tmp_path / "adapter", TRUNK)
    plain = mlx_lm.load(str(tiny))[0](TOKENS)
    adapted = mlx_lm.load(str(tiny), adapter_path=str(adapter))[0](TOKENS)
    assert not mx.allclose(plain, adapted)
    with loaded(tiny, shared_cache, **values) as model:
        load_adapters(model.model, str(adapter))
        assert mx.array_equal(model.model(TOKENS), adapted)
        remove_lora_layers(model.model)
        assert mx.array_equal(model.model(TOKENS), plain)


@pytest.mark.parametrize("keys", [EXPERTS, None], ids=["named", "every linear module"])
def test_an_adapter_on_experts_that_stream_is_refused_by_name(
    tiny: Path, shared_cache: Path, tmp_path: Path, keys: list[str] | None
) -> None:
    adapter = make_adapter(tiny, tmp_path / "adapter", keys)
    with loaded(tiny, shared_cache) as model:
        with pytest.raises(ExpertsNotInMemory) as caught:
            load_adapters(model.model, str(adapter))
        message = str(caught.value)
        assert "_proj of layer 2, whose experts stream from disk" in message and "\n" not in message
        assert "lora_parameters.keys" in message and isinstance(caught.value, AutotuneError)


def test_an_adapter_on_experts_works_in_layers_that_are_in_memory(
    tiny: Path, shared_cache: Path, tmp_path: Path
) -> None:
    adapter = make_adapter(tiny, tmp_path / "adapter", EXPERTS)
    adapted = mlx_lm.load(str(tiny), adapter_path=str(adapter))[0](TOKENS)
    with loaded(tiny, shared_cache, **{"residency.resident_layers": "2-3"}) as model:
        load_adapters(model.model, str(adapter))
        assert any(isinstance(module, LoRASwitchLinear) for module in model.model.modules())
        assert mx.array_equal(model.model(TOKENS), adapted)
        assert model.stats().misses > 0


def test_dora_on_experts_and_weights_that_replace_them_are_refused_too(
    tiny: Path, shared_cache: Path, tmp_path: Path
) -> None:
    parameters = {"rank": 2, "scale": 4.0, "dropout": 0.0, "keys": ["mlp.switch_mlp.up_proj"]}
    name = "model.layers.3.mlp.switch_mlp.up_proj.weight"
    mx.save_safetensors(str(tmp_path / "adapters.safetensors"), {name: mx.zeros((16, 64, 16), mx.uint32)})
    (tmp_path / "adapter_config.json").write_text(json.dumps({"fine_tune_type": "full"}))
    with loaded(tiny, shared_cache) as model:
        with pytest.raises(ValueError, match="Can't convert layer of type StreamedProjection"):
            linear_to_lora_layers(model.model, 2, parameters, use_dora=True)
        with pytest.raises(ValueError, match=f"{name}: not an adapter parameter"):
            load_adapters(model.model, str(tmp_path))


def loss(model: nn.Module, tokens: mx.array) -> mx.array:
    return nn.losses.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:]).mean()


def gradients(model: nn.Module, tokens: mx.array) -> dict[str, mx.array]:
    model.freeze()
    mx.random.seed(0)
    linear_to_lora_layers(model, 4, {"rank": 2, "scale": 1.0, "dropout": 0.0, "keys": TRUNK})
    _, found = nn.value_and_grad(model, loss)(model, tokens)
    return dict(tree_flatten(found))


@pytest.mark.parametrize("rows", [1, 300], ids=["small result", "large result"])
@pytest.mark.parametrize("slots", [4, 16], ids=["few slots", "every expert has one"])
def test_gradients_through_experts_that_stream_are_refused(
    tiny: Path, shared_cache: Path, slots: int, rows: int
) -> None:
    tokens = mx.repeat(TOKENS, rows, axis=0)  # 300 rows: results past what a layer keeps unevaluated
    plain = mlx_lm.load(str(tiny))[0](TOKENS)
    with loaded(tiny, shared_cache, **{"residency.slots": slots}) as model:
        with pytest.raises(ExpertsNotInMemory, match="no gradient flows through the experts of layer 0: they stream"):
            gradients(model.model, tokens)
        remove_lora_layers(model.model)
        assert mx.array_equal(model.model(TOKENS), plain)  # and nothing is left behind


def test_gradients_through_experts_in_memory_are_the_resident_models(tiny: Path, shared_cache: Path) -> None:
    expected = gradients(mlx_lm.load(str(tiny))[0], TOKENS)
    with loaded(tiny, shared_cache, **{"residency.resident_layers": "all"}) as model:
        found = gradients(model.model, TOKENS)
    assert found.keys() == expected.keys() and any(mx.any(a) for a in found.values())
    assert all(mx.array_equal(found[name], expected[name]) for name in found)


def test_slots_are_nowhere_taken_for_experts(tiny: Path, shared_cache: Path) -> None:
    with loaded(tiny, shared_cache) as model:
        assert not [name for name, _ in tree_flatten(model.model.parameters()) if "switch_mlp" in name]
        switches = [m for m in model.model.modules() if isinstance(m, SwitchGLU | SwitchLinear | QuantizedSwitchLinear)]
        assert not switches


def test_what_is_saved_of_a_streamed_model_lacks_its_experts_and_does_not_load(
    tiny: Path, shared_cache: Path, tmp_path: Path
) -> None:
    """mlx-lm asks nobody before it saves; the result must at least never pass for a model."""
    for values, whole in [({}, False), ({"residency.slots": "all", "residency.resident_layers": "all"}, True)]:
        folder = tmp_path / str(whole)
        with loaded(tiny, shared_cache, **values) as model:
            mlx_lm.utils.save_model(folder, model.model)
        shutil.copy(tiny / "config.json", folder)
        if whole:
            assert mx.array_equal(mlx_lm.utils.load_model(folder)[0](TOKENS), mlx_lm.load(str(tiny))[0](TOKENS))
        else:
            with pytest.raises(ValueError, match=r"Missing \d+ parameters"):
                mlx_lm.utils.load_model(folder)
