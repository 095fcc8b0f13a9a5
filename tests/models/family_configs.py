"""A tiny config of every model file of mlx-lm whose experts can be streamed: two or so MoE layers, 8 experts, two of
them a token; hybrid layers, shared experts, expert groups, latent widths and wrappers as in the real models.

mlx-lm takes from a config what its model knows, so one base serves nearly all; a family lists what it needs beyond.
"""

from __future__ import annotations

from typing import Any

__all__ = ["EXPERTS", "FAMILIES", "VOCABULARY", "Config"]

Config = dict[str, Any]

EXPERTS = 8
VOCABULARY = 320

_BASE: Config = {
    # width and depth
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5, "norm_eps": 1e-5, "layer_norm_epsilon": 1e-5, "layernorm_epsilon": 1e-5,
    "tie_word_embeddings": False, "sliding_window": 16,
    # positions
    "rope_theta": 10000.0, "rope_scaling": None, "partial_rotary_factor": 0.5, "rotary_dim": 16,
    # experts, under the names that families give them
    "num_experts": EXPERTS, "n_routed_experts": EXPERTS, "num_local_experts": EXPERTS, "moe_num_experts": EXPERTS,
    "num_experts_per_tok": 2, "num_experts_per_token": 2, "moe_topk": 2, "moe_k": 2, "moe_top_k": 2, "top_k_experts": 2,
    "moe_intermediate_size": 32, "expert_ffn_hidden_size": 32, "shared_expert_intermediate_size": 64,
    "moe_shared_expert_intermediate_size": 64, "shared_intermediate_size": 64, "share_expert_dim": 64,
    "n_shared_experts": 1, "num_shared_experts": 1, "num_shared_expert": 1, "moe_num_shared_experts": 1,
    "n_group": 4, "topk_group": 2, "num_expert_group": 4, "norm_topk_prob": True, "routed_scaling_factor": 1.5,
    "first_k_dense_replace": 0, "decoder_sparse_step": 1, "mlp_only_layers": [],
    # multi-head latent attention
    "kv_lora_rank": 32, "q_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 32,
    # linear attention and state spaces
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4, "full_attention_interval": 2, "layer_group_size": 2, "group_norm_size": 2,
    "mamba_d_conv": 4, "mamba_d_state": 16, "mamba_expand": 2, "conv_L_cache": 3, "conv_bias": False,
    "attention_bias": False, "use_bias": False, "use_qkv_bias": False, "use_qk_norm": True, "use_cla": False,
}  # fmt: skip

_ALTERNATING = ["sliding_attention", "full_attention"]
_DENSE_FIRST: Config = {"num_hidden_layers": 3, "first_k_dense_replace": 1}
_INDEXER: Config = {"index_head_dim": 32, "index_n_heads": 2, "index_topk": 32}
_DELTA: Config = {
    "linear_attn_config": {"kda_layers": [1, 3], "full_attn_layers": [2], "num_heads": 2, "head_dim": 32,
                           "short_conv_kernel_size": 4},
    "head_dim": 32, "model_max_length": 4096,
}  # fmt: skip
_ZERO_EXPERTS: Config = {
    "attention_method": "MLA", "zero_expert_type": "identity", "zero_expert_num": 4, "ffn_hidden_size": 64,
    "mla_scale_q_lora": True, "mla_scale_kv_lora": True,
}  # fmt: skip
_GRANITE: Config = {
    "logits_scaling": 2.0, "attention_multiplier": 0.2, "embedding_multiplier": 1.5, "residual_multiplier": 0.7,
}  # fmt: skip
_MISTRAL: Config = {
    "rope_parameters": {"type": "yarn", "rope_theta": 10000.0, "factor": 2.0, "beta_fast": 32.0, "beta_slow": 1.0,
                        "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 2048,
                        "llama_4_scaling_beta": 0.1},
    **_DENSE_FIRST,
}  # fmt: skip
_GEMMA: Config = {
    "global_head_dim": 32, "enable_moe_block": True, "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0,
    "use_double_wide_mlp": False, "layer_types": _ALTERNATING, "tie_word_embeddings": True,
}  # fmt: skip


def _wrapped(text: Config) -> Config:
    """What a vision-language model's config looks like."""
    return {"text_config": {**_BASE, **text}}


FAMILIES: dict[str, Config] = {
    "Klear": {},
    "afmoe": {"layer_types": [*_ALTERNATING, "full_attention"], "num_dense_layers": 1, "num_hidden_layers": 3},
    "bailing_hybrid": {},
    "bailing_moe": {"score_function": "sigmoid", "moe_router_enable_expert_bias": True, **_DENSE_FIRST},
    "bailing_moe_linear": {"score_function": "sigmoid", "moe_router_enable_expert_bias": True},
    "bailing_moe_v3": _DENSE_FIRST,
    "deepseek": _DENSE_FIRST,
    "deepseek_v2": {
        "topk_method": "group_limited_greedy", **_DENSE_FIRST,
        "rope_scaling": {"type": "yarn", "factor": 2.0, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32,
                         "beta_slow": 1, "original_max_position_embeddings": 2048},
    },
    "deepseek_v3": _DENSE_FIRST,
    "deepseek_v32": {**_INDEXER, **_DENSE_FIRST},
    "deepseek_v41": {
        "o_groups": 2, "o_lora_rank": 32, "rms_norm_eps": 1e-6, "hc_mult": 2, "num_hidden_layers": 3,
        "compress_ratios": [0, 4, 4], "kv_source_layer_ids": [1], "index_source_layer_ids": [1], **_INDEXER,
    },
    "dots1": _DENSE_FIRST,
    "ernie4_5_moe": {"use_bias": True},
    "exaone_moe": {"layer_types": _ALTERNATING, "is_moe_layer": [True, True]},
    "gemma4": _wrapped({"model_type": "gemma4_text", **_GEMMA}),
    "gemma4_text": _GEMMA,
    "glm4_moe": _DENSE_FIRST,
    "glm4_moe_lite": _DENSE_FIRST,
    "glm_moe_dsa": {
        "topk_method": "noaux_tc", "scoring_func": "sigmoid", "moe_layer_freq": 1,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, **_INDEXER, **_DENSE_FIRST,
    },
    "gpt_oss": {"layer_types": _ALTERNATING},
    "granitemoe": _GRANITE,
    "granitemoehybrid": {
        "layer_types": ["mamba", "attention"], "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_proj_bias": False,
        "mamba_n_groups": 1, "mamba_conv_bias": True, **_GRANITE,
    },
    "hunyuan": {
        "moe_topk": [3, 2], "cla_share_factor": 2, "use_mixed_mlp_moe": True,
        "rope_scaling": {"type": "dynamic", "factor": 1.0, "alpha": 10.0},
    },
    "jamba": {
        "attn_layer_offset": 1, "attn_layer_period": 2, "expert_layer_offset": 1, "expert_layer_period": 2,
        "num_hidden_layers": 4,
    },
    "kimi_k25": _wrapped(_DENSE_FIRST),
    "kimi_k3": _wrapped(
        {"routed_expert_hidden_size": 32, "latent_moe_use_norm": True, "num_hidden_layers": 3, **_DELTA}
    ),
    "kimi_linear": {"num_hidden_layers": 3, **_DELTA},
    "kimi_vl": _wrapped(_DENSE_FIRST),
    "laguna": {"num_hidden_layers": 3},
    "lfm2_moe": {
        "layer_types": ["conv", "full_attention", "conv"], "use_expert_bias": True, "num_dense_layers": 1,
        "num_hidden_layers": 3,
    },
    "llama4": _wrapped({
        "model_type": "llama4_text", "attention_chunk_size": 64, "interleave_moe_layer_step": 2,
        "intermediate_size_mlp": 64, "num_experts_per_tok": 1, "num_hidden_layers": 4,
    }),
    "longcat_flash": _ZERO_EXPERTS,
    "longcat_flash_ngram": {**_ZERO_EXPERTS, "ngram_vocab_size_ratio": 2},
    "mellum": {
        "layer_types": _ALTERNATING,
        "rope_parameters": {kind: {"rope_theta": 10000.0, "rope_type": "default"} for kind in _ALTERNATING},
    },
    "mimo_v2_flash": {
        "hybrid_layer_pattern": [1, 0], "moe_layer_freq": [1, 1], "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False, "sliding_window_size": 16, "topk_method": "noaux_tc",
        "scoring_func": "sigmoid", "swa_rope_theta": 10000.0, "swa_num_attention_heads": 2,
        "swa_num_key_value_heads": 2, "swa_head_dim": 32, "swa_v_head_dim": 32,
    },
    "minimax": {},
    "minimax_m3_vl": _wrapped({
        "dense_intermediate_size": 64, "moe_layer_freq": [0, 1, 1], "num_hidden_layers": 3,
        "sparse_attention_config": {
            "sparse_num_index_heads": 2, "sparse_index_dim": 32, "sparse_block_size": 16, "sparse_topk_blocks": 2,
            "sparse_attention_freq": [0, 1, 1],
        },
    }),
    "mistral3": _wrapped({"model_type": "mistral4", **_MISTRAL}),
    "mistral4": _MISTRAL,
    "mixtral": {},
    "muse_spark": {"audio_config": {"out_hidden_size": 64}, **_wrapped({
        "post_norm_eps": 1e-5, "rope_parameters": {"rope_theta": 10000.0}, "layer_rope_theta": [10000.0, 0.0],
        "layer_types": _ALTERNATING, "final_logit_softcapping": 30.0, "output_multiplier": 0.5, "moe_hidden_size": 32,
        "num_shared_experts": 0,
    })},
    "nemotron_h": {
        "hybrid_override_pattern": ["M", "E", "*", "E"], "mamba_num_heads": 4, "mamba_head_dim": 32,
        "mamba_proj_bias": False, "ssm_state_size": 16, "conv_kernel": 4, "n_groups": 1, "mlp_bias": False,
        "use_conv_bias": True, "moe_latent_size": 32,
    },
    "olmoe": {},
    "phimoe": {
        "rope_scaling": {"long_factor": [1.0] * 16, "short_factor": [1.0] * 16, "long_mscale": 1.1,
                         "short_mscale": 1.1},
    },
    "phixtral": {"num_vocab": VOCABULARY, "model_dim": 64, "num_heads": 2, "rotary_dim": 16},
    "prism_hadamard_qwen35": {
        "tensor_namespace": "mlx-vlm-qwen3_5", "quantization": {"bits": 2, "group_size": 128, "mode": "affine"},
        "modules": [{"path": "lm_head", "dtype": "float16", "embedding": False, "block": 0}],
        **_wrapped({"hidden_size": 128, "moe_intermediate_size": 128}),
    },
    "qwen2_moe": {},
    "qwen3_5": _wrapped({}),
    "qwen3_5_moe": _wrapped({}),
    "qwen3_moe": {},
    "qwen3_next": {},
    "qwen3_vl_moe": _wrapped({"model_type": "qwen3_vl_moe_text"}),
    "solar_open": _DENSE_FIRST,
    "step3p5": {
        "num_attention_groups": 2, "layer_types": [*_ALTERNATING, "full_attention"], "num_hidden_layers": 3,
        "moe_layers_enum": "1,2", "swiglu_limits": [0.0, 0.0, 7.0],
    },
}  # fmt: skip
FAMILIES = {name: {"model_type": name, **_BASE, **config} for name, config in FAMILIES.items()}
