"""Small checkpoints of several families, written as people publish them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import _get_classes

import streaming_core
from streaming_core import Settings

Weights = dict[str, mx.array]
Quantize = Callable[[str], dict[str, Any] | None]

EXPERTS, TOP_K = 8, 2
QWEN3: dict[str, Any] = {
    "model_type": "qwen3_moe", "hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 256,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "num_experts": EXPERTS,
    "num_experts_per_tok": TOP_K, "decoder_sparse_step": 1, "mlp_only_layers": [], "moe_intermediate_size": 128,
    "rms_norm_eps": 1e-6, "vocab_size": 512, "rope_theta": 1e4, "tie_word_embeddings": False,
    "max_position_embeddings": 4096, "norm_topk_prob": True,
}  # fmt: skip
QWEN35: dict[str, Any] = {
    "model_type": "qwen3_5_moe",
    "text_config": {
        "model_type": "qwen3_5_moe_text", "hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 256,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "num_experts": EXPERTS,
        "num_experts_per_tok": TOP_K, "moe_intermediate_size": 128, "shared_expert_intermediate_size": 64,
        "full_attention_interval": 2, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 32, "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4, "rms_norm_eps": 1e-6,
        "vocab_size": 512, "tie_word_embeddings": False, "max_position_embeddings": 4096,
        "rope_parameters": {"type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25},
    },
}  # fmt: skip
GPT_OSS: dict[str, Any] = {
    "model_type": "gpt_oss", "hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "num_local_experts": EXPERTS,
    "num_experts_per_tok": TOP_K, "vocab_size": 512, "rms_norm_eps": 1e-5, "sliding_window": 16,
    "rope_theta": 1e4, "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip
MIXTRAL: dict[str, Any] = {
    "model_type": "mixtral", "hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": EXPERTS, "num_experts_per_tok": TOP_K,
    "vocab_size": 512, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": False,
}  # fmt: skip


def plain(path: str) -> None:
    """Nothing is quantised."""


def is_expert(path: str) -> bool:
    return "switch_mlp" in path or ".experts." in path


def build(config: Mapping[str, Any], quantize: Quantize = plain) -> nn.Module:
    """The resident model: random weights, the same each time."""
    mx.random.seed(0)
    model_class, args_class = _get_classes(dict(config))
    model = model_class(args_class.from_dict(dict(config)))
    model.eval()
    weights = [(name, mx.random.normal(a.shape) * 0.1 if "bias" in name else a) for name, a in flat(model).items()]
    model.load_weights(weights)  # biases begin as zeros, which any mistake leaves as they are
    nn.quantize(model, class_predicate=lambda path, m: (hasattr(m, "to_quantized") and quantize(path)) or False)
    mx.eval(model.parameters())
    return model


def flat(model: nn.Module) -> Weights:
    return dict(tree_flatten(model.parameters()))


def write(folder: Path, config: Mapping[str, Any], weights: Weights, tiny: Path, shards: int = 1) -> Path:
    """A folder as published: config, tokenizer (that of `tiny`), tensors in one file or several and their index."""
    folder.mkdir(parents=True)
    for path in tiny.glob("tokenizer*"):
        shutil.copy(path, folder)
    (folder / "config.json").write_text(json.dumps(config))
    names = sorted(weights)
    weight_map: dict[str, str] = {}
    for n in range(shards):
        part = names[n::shards]  # an expert's tensors end up in different files
        file = f"model-{n + 1:05d}-of-{shards:05d}.safetensors" if shards > 1 else "model.safetensors"
        mx.save_safetensors(str(folder / file), {name: weights[name] for name in part}, {"format": "mlx"})
        weight_map |= dict.fromkeys(part, file)
    if shards > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def logits(model: nn.Module) -> mx.array:
    """Of a prompt that touches every expert, and of three more tokens."""
    tokens = mx.array(np.random.default_rng(0).integers(0, 500, (1, 25)))
    cache = make_prompt_cache(model)
    out = [model(tokens[:, start:end], cache=cache) for start, end in [(0, 22), (22, 23), (23, 24), (24, 25)]]
    return mx.concatenate(out, axis=1)


def streams_like(folder: Path, resident: nn.Module, cache_dir: Path, layout: str, slots: int = 3) -> bool:
    """Whether the streamed model says bit for bit what the resident one says."""
    wanted = Settings().with_values({"residency.slots": slots, "store.layout": layout})
    with streaming_core.load(folder, wanted, cache_dir=cache_dir) as model:
        same = mx.array_equal(logits(model.model), logits(resident))
        return bool(same) and model.stats().misses > 0


def unstacked(weights: Weights, names: Mapping[str, str] | None = None) -> Weights:
    """One tensor per expert: `mlp.switch_mlp.gate_proj.weight` -> `mlp.experts.0.gate_proj.weight` and so on."""
    found: Weights = {}
    for name, array in weights.items():
        if ".switch_mlp." not in name:
            found[name] = array
            continue
        block, rest = name.split(".switch_mlp.")
        projection, tensor = rest.split(".")
        for expert in range(array.shape[0]):
            found[f"{block}.experts.{expert}.{(names or {}).get(projection, projection)}.{tensor}"] = array[expert]
    return found


def interleaved(weights: Weights) -> Weights:
    """As in the original of gpt-oss: the rows of gate and up in turns, words as bytes."""
    found: Weights = {}
    for name, array in weights.items():
        block, _, tensor = name.rpartition(".experts.")
        if not block:
            found[name] = array
            continue
        projection, kind = tensor.split(".")
        if projection == "up_proj":
            continue
        if projection == "gate_proj":
            up = weights[f"{block}.experts.up_proj.{kind}"]
            array = mx.stack([array, up], axis=2).reshape(array.shape[0], -1, *array.shape[2:])
            projection = "gate_up_proj"
        if kind == "weight":
            array = mx.contiguous(array).view(mx.uint8).reshape(*array.shape[:2], -1, 16)
        found[f"{block}.experts.{projection}_{'blocks' if kind == 'weight' else kind}"] = array
    return found
