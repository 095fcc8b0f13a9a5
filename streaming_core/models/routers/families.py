"""Which model file of mlx-lm has which router, by the file that defines its decoder layer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import mlx.nn as nn

from streaming_core.models.routers.shape import LayerShape
from streaming_core.models.routers.unusual import GemmaLayer, ZeroExpertLayer
from streaming_core.models.routers.view import Router

__all__ = ["FAMILIES", "family_of", "guess_kinds", "input_norm", "router_view"]


class Family(Protocol):
    @property
    def input_norm(self) -> str: ...

    def view(self, layer: nn.Module) -> Router | None: ...


_SOFTMAX = LayerShape()
_MIXTRAL = LayerShape(block="block_sparse_moe")
_GRANITE = LayerShape(block="block_sparse_moe", gate="router.layer")
_GROUPS = ("gate.n_group", "gate.topk_group")
_DEEPSEEK = LayerShape(score="sigmoid", bias="gate.e_score_correction_bias", group_names=_GROUPS)
_MINIMAX = LayerShape(block="block_sparse_moe", score="sigmoid", bias="e_score_correction_bias")
_BAILING = LayerShape(
    gate="gate.gate_proj", score_at="gate.score_function", bias="gate.expert_bias", group_names=_GROUPS
)
_KIMI = LayerShape(
    score_at="args.moe_router_activation_func",
    bias="e_score_correction_bias",
    group_names=("args.num_expert_group", "args.topk_group"),
    latent="latent_size",
)

# Not here: muse_spark, whose Metal kernels do the work of its norms, so that nothing can be seen there.
FAMILIES: Mapping[str, Family] = {
    "Klear": LayerShape(score="sigmoid", bias="expert_bias"),
    "afmoe": LayerShape(
        norm="pre_mlp_layernorm", gate="router.gate", score_at="score_func", bias="expert_bias",
        group_names=("n_group", "topk_group"),
    ),
    "bailing_hybrid": replace(_BAILING, group_out=-math.inf),
    "bailing_moe": _BAILING,
    "bailing_moe_linear": _BAILING,
    "bailing_moe_v3": LayerShape(
        score="sigmoid", bias="gate.expert_bias", group_names=_GROUPS, group_out=-math.inf
    ),
    "deepseek": _SOFTMAX,
    "deepseek_v2": LayerShape(
        group_names=_GROUPS, group_best=1, limited=lambda block: block.gate.topk_method == "group_limited_greedy"
    ),
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v32": _DEEPSEEK,
    "deepseek_v41": LayerShape(
        score_at="gate.score_func", bias="gate.e_score_correction_bias", factor=lambda block: 1 / block.gate.gate_temp
    ),
    "dots1": _DEEPSEEK,
    "ernie4_5_moe": LayerShape(score_at="args.moe_gate_act"),
    "exaone_moe": _DEEPSEEK,
    "gemma4_text": GemmaLayer(),
    "glm4_moe": _DEEPSEEK,
    "glm4_moe_lite": _DEEPSEEK,
    "gpt_oss": LayerShape(gate="router"),
    "granitemoe": _GRANITE,
    "granitemoehybrid": _GRANITE,
    "hunyuan": LayerShape(gate="gate.wg"),
    "jamba": LayerShape(block="feed_forward", norm="pre_ff_layernorm", gate="router"),
    "kimi_k3": _KIMI,
    "kimi_linear": _KIMI,
    "laguna": LayerShape(
        gate="gate.proj", score_at="gate.score_func", bias="gate.e_score_correction_bias",
        cap=lambda block: block.gate.softcap,
    ),
    "lfm2_moe": LayerShape(
        block="feed_forward", input_norm="operator_norm", norm="ffn_norm", score="sigmoid", bias="expert_bias"
    ),
    "llama4": LayerShape(block="feed_forward", gate="router"),
    "longcat_flash": ZeroExpertLayer(),
    "mellum": _SOFTMAX,
    "mimo_v2_flash": _DEEPSEEK,
    "minimax": _MINIMAX,
    "minimax_m3_vl": _MINIMAX,
    "mistral4": LayerShape(group_names=("args.n_group", "args.topk_group")),
    "mixtral": _MIXTRAL,
    "nemotron_h": replace(_DEEPSEEK, block="mixer", input_norm="norm", norm="norm", latent="moe_latent_size"),
    "olmoe": _SOFTMAX,
    "phimoe": _MIXTRAL,
    "phixtral": LayerShape(block="moe", input_norm="ln", norm="ln"),
    "qwen2_moe": _SOFTMAX,
    "qwen3_5": _SOFTMAX,
    "qwen3_moe": _SOFTMAX,
    "qwen3_next": _SOFTMAX,
    "step3p5": LayerShape(gate="gate.gate", score="sigmoid", bias="gate.router_bias"),
}  # fmt: skip


def family_of(layer: nn.Module) -> str:
    """The model file whose decoder layer this is; models that build on another's have its layers."""
    return type(layer).__module__.rpartition(".")[2]


def router_view(layer: nn.Module) -> Router | None:
    """The view of a decoder layer, or None where it has no experts or its router is not known here."""
    family = FAMILIES.get(family_of(layer))
    return None if family is None else family.view(layer)


def guess_kinds(layers: Iterable[nn.Module]) -> tuple[str, ...]:
    """The values of predict.kind that ask routers, as far as those of these decoder layers can be asked."""
    views = [view for layer in layers if (view := router_view(layer)) is not None]
    if not views:
        return ()
    return ("gate_input", "cascade", "gate") if all(view.shares_input for view in views) else ("gate",)


def input_norm(layer: nn.Module) -> tuple[Any, str | int] | None:
    """Where the norm is kept that sees the input of a decoder layer first: in what, and under which name or number."""
    family = FAMILIES.get(family_of(layer))
    if family is None:
        return None
    name, _, place = family.input_norm.partition(".")
    found = layer.get(name)
    if place:
        return (found, int(place)) if isinstance(found, list) else None
    return (layer, name) if isinstance(found, nn.Module) else None
