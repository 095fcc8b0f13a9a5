"""Checkpoints of another family than `streaming_core.testing` makes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm.models import qwen3_moe
from mlx_lm.utils import quantize_model, save_config, save_model

_SAME = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size", "rms_norm_eps",
         "moe_intermediate_size", "intermediate_size", "num_experts", "num_experts_per_tok", "norm_topk_prob",
         "max_position_embeddings", "eos_token_id", "bos_token_id")  # fmt: skip


@pytest.fixture(scope="session")
def attention_only(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3-MoE of `tiny`'s sizes with its tokenizer: all of its cache can be trimmed.  Random weights."""
    folder = tmp_path_factory.mktemp("checkpoints") / "attention-only"
    like = json.loads((tiny / "config.json").read_text())
    config = {name: like[name] for name in _SAME} | {
        "model_type": "qwen3_moe",
        "num_hidden_layers": 3,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
    }
    mx.random.seed(1)
    model, config = quantize_model(qwen3_moe.Model(qwen3_moe.ModelArgs.from_dict(config)), config, 64, 4)
    save_model(folder, model)
    save_config(config, folder / "config.json")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny / name, folder / name)
    return folder
