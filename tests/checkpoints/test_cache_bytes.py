"""The planned bytes of mlx-lm's caches are those of a model that runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import numpy as np
import pytest
from checkpoint_cases import GPT_OSS, QWEN3, QWEN35, build, flat, plain, write
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

import streaming_core

LLAMA4: dict[str, Any] = {
    "model_type": "llama4",
    "text_config": {
        "model_type": "llama4_text", "attention_bias": False, "attention_chunk_size": 256, "head_dim": 32,
        "hidden_size": 64, "interleave_moe_layer_step": 1, "intermediate_size": 64, "intermediate_size_mlp": 64,
        "max_position_embeddings": 4096, "num_attention_heads": 2, "num_experts_per_tok": 1, "num_hidden_layers": 4,
        "num_key_value_heads": 2, "num_local_experts": 4, "rms_norm_eps": 1e-5, "rope_scaling": None,
        "rope_theta": 1e4, "use_qk_norm": True, "vocab_size": 512,
    },
}  # fmt: skip
DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v32", "vocab_size": 512, "hidden_size": 64, "index_head_dim": 32, "index_n_heads": 2,
    "index_topk": 16, "intermediate_size": 64, "moe_intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "n_shared_experts": 1, "n_routed_experts": 4,
    "routed_scaling_factor": 1.0, "kv_lora_rank": 32, "q_lora_rank": 32, "qk_rope_head_dim": 32, "v_head_dim": 32,
    "qk_nope_head_dim": 32, "num_experts_per_tok": 2, "first_k_dense_replace": 0, "n_group": 1, "topk_group": 1,
}  # fmt: skip
CASES = {"KV": QWEN3, "KV and state": QWEN35, "windows": GPT_OSS, "chunks": LLAMA4, "lists of caches": DEEPSEEK}


def held(entry: Any) -> int:
    """Bytes of the arrays that a cache holds, slices or not."""
    if hasattr(entry, "caches"):
        return sum(held(each) for each in entry.caches)
    if getattr(entry, "keys", None) is not None:
        return int(entry.keys.nbytes + entry.values.nbytes)
    return sum(a.nbytes for _, a in tree_flatten(entry.state) if isinstance(a, mx.array))


def measured(model: nn.Module, context: int, batch: int) -> int:
    """After a prompt in passes of 64 and the last tokens one by one."""
    tokens = mx.array(np.random.default_rng(0).integers(0, 500, (batch, context)))
    cache = make_prompt_cache(model)
    prompt = context - 3
    for start in [*range(0, prompt, 64), *range(prompt, context)]:
        end = min(start + 64, prompt) if start < prompt else start + 1
        mx.eval(model(tokens[:, start:end], cache=cache))
    mx.eval([entry.state for entry in cache])
    return sum(held(entry) for entry in cache)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("context", [60, 600])
@pytest.mark.parametrize("config", CASES.values(), ids=CASES)
def test_the_plan_is_what_a_cache_holds(
    tiny: Path, tmp_path: Path, config: dict[str, Any], context: int, batch: int
) -> None:
    resident = build(config, plain)
    demand = streaming_core.inspect(write(tmp_path / "m", config, flat(resident), tiny)).demand
    assert replace(demand, batch=batch).kv_bytes(context) == measured(resident, context, batch)


@pytest.mark.parametrize("context", [60, 600])
def test_the_plan_is_what_a_cache_of_a_quantised_hybrid_holds(tiny: Path, context: int) -> None:
    resident, _ = mlx_lm.load(str(tiny))
    demand = streaming_core.inspect(tiny).demand
    assert demand.kv_fixed_bytes > 0 and demand.kv_token_bytes > 0
    assert demand.kv_bytes(context) == measured(resident, context, 1)


def test_windows_stop_growing_where_whole_contexts_do_not(tiny: Path, tmp_path: Path) -> None:
    folder = write(tmp_path / "m", GPT_OSS, flat(build(GPT_OSS, plain)), tiny)
    demand = streaming_core.inspect(folder).demand
    assert demand.kv_windows == ((16, demand.kv_token_bytes),)  # one layer of each kind
    assert demand.kv_bytes(100_096) - demand.kv_bytes(512) == (100_096 - 512) * demand.kv_token_bytes
