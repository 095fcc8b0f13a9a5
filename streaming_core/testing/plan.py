"""Every tensor of a checkpoint under mlx-lm's names, and its config.json."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

import numpy as np

from .anatomy import Anatomy
from .layers import LayerWeights
from .lexicon import Lexicon
from .quantize import Array, quantize, random_quantized, to_dtype
from .shards import Group, TensorInfo
from .spec import GROUP_SIZE, ROUTER_BITS, TRUNK_BITS, CheckpointSpec
from .tokenizer import BOS, EOS, Vocabulary

__all__ = ["build_config", "build_groups"]

SAFETENSORS_NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
EXPERT_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
NORM_JITTER = 0.1  # norm weights are not all 1, so that code that forgets to apply them changes the output


def build_config(spec: CheckpointSpec, vocabulary: Vocabulary) -> dict[str, object]:
    """Content of config.json."""
    quantization: dict[str, object] = {"group_size": GROUP_SIZE, "bits": TRUNK_BITS, "mode": "affine"}
    for layer in range(spec.layers):
        mlp = f"model.layers.{layer}.mlp"
        for gate in ("gate", "shared_expert_gate"):
            quantization[f"{mlp}.{gate}"] = {"group_size": GROUP_SIZE, "bits": ROUTER_BITS}
        if (spec.expert_bits, spec.expert_group_size) != (TRUNK_BITS, GROUP_SIZE):
            own = spec.expert_bits is not None and {"group_size": spec.expert_group_size, "bits": spec.expert_bits}
            quantization.update({f"{mlp}.switch_mlp.{projection}": own for projection in EXPERT_PROJECTIONS})
    return {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "torch_dtype": spec.dtype,
        "bos_token_id": vocabulary.tokenizer.token_to_id(BOS),
        "eos_token_id": vocabulary.tokenizer.token_to_id(EOS),
        "vocab_size": vocabulary.size,
        "hidden_size": spec.hidden,
        "num_hidden_layers": spec.layers,
        "intermediate_size": 2 * spec.hidden,
        "num_attention_heads": spec.attention_heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "linear_num_key_heads": spec.linear_key_heads,
        "linear_num_value_heads": spec.linear_value_heads,
        "linear_key_head_dim": spec.linear_head_dim,
        "linear_value_head_dim": spec.linear_head_dim,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": spec.full_attention_interval,
        "num_experts": spec.experts,
        "num_experts_per_tok": spec.top_k,
        "moe_intermediate_size": spec.expert_width,
        "shared_expert_intermediate_size": spec.shared_width,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000_000.0,
        "rope_scaling": None,
        "partial_rotary_factor": 0.25,
        "max_position_embeddings": 262144,
        "quantization": quantization,
        "quantization_config": quantization,
    }


def build_groups(spec: CheckpointSpec, vocabulary: Vocabulary) -> list[Group]:
    """All tensors in the order they are written.  Each group's data depends on the seed and its name only."""
    return list(_Planner(spec, vocabulary).groups())


class _Planner:
    def __init__(self, spec: CheckpointSpec, vocabulary: Vocabulary) -> None:
        self._spec = spec
        self._vocab = vocabulary.size
        self._lexicon = Lexicon(vocabulary, Anatomy(spec), self._rng("lexicon"))
        self._weights = LayerWeights(spec, Anatomy(spec), self._lexicon.common_signs)

    def _rng(self, name: str) -> np.random.Generator:
        return np.random.Generator(np.random.SFC64([self._spec.seed, zlib.crc32(name.encode())]))

    def groups(self) -> Iterator[Group]:
        spec = self._spec
        yield self._matrix("model.embed_tokens", self._vocab, spec.hidden, lambda: self._lexicon.embedding)
        for layer in range(spec.layers):
            prefix = f"model.layers.{layer}"
            yield self._norm(f"{prefix}.input_layernorm")
            if spec.is_linear(layer):
                yield from self._linear(f"{prefix}.linear_attn")
            else:
                yield from self._full(f"{prefix}.self_attn")
            yield self._norm(f"{prefix}.post_attention_layernorm")
            yield from self._moe(f"{prefix}.mlp")
        yield self._norm("model.norm")
        yield self._matrix("lm_head", self._vocab, spec.hidden, lambda: self._lexicon.head(self._rng("lm_head")))

    def _plain(self, name: str, shape: tuple[int, ...], make: Callable[[], Array], dtype: str | None = None) -> Group:
        dtype = dtype or self._spec.dtype
        return Group((TensorInfo(name, SAFETENSORS_NAMES[dtype], shape),), lambda: [to_dtype(make(), dtype)])

    def _norm(self, name: str, size: int | None = None) -> Group:
        size = size or self._spec.hidden

        def make() -> Array:
            noise: Array = self._rng(name).random(size, dtype=np.float32)
            return 1 + NORM_JITTER * (2 * noise - 1)

        return self._plain(f"{name}.weight", (size,), make)

    def _matrix(self, name: str, rows: int, columns: int, make: Callable[[], Array], bits: int = TRUNK_BITS) -> Group:
        return self._quantized(name, (rows, columns), GROUP_SIZE, bits, lambda: quantize(make(), GROUP_SIZE, bits))

    def _quantized(
        self, name: str, shape: tuple[int, ...], group: int, bits: int, make: Callable[[], tuple[Array, Array, Array]]
    ) -> Group:
        dtype = self._spec.dtype
        words, scales = (*shape[:-1], shape[-1] * bits // 32), (*shape[:-1], shape[-1] // group)
        infos = (
            TensorInfo(f"{name}.weight", "U32", words),
            TensorInfo(f"{name}.scales", SAFETENSORS_NAMES[dtype], scales),
            TensorInfo(f"{name}.biases", SAFETENSORS_NAMES[dtype], scales),
        )

        def data() -> list[Array]:
            weight, *rest = make()
            return [weight, *(to_dtype(part, dtype) for part in rest)]

        return Group(infos, data)

    def _linear(self, name: str) -> Iterator[Group]:
        spec, weights, rng = self._spec, self._weights, self._rng
        heads, dim, hidden = spec.linear_value_heads, spec.linear_head_dim, spec.hidden
        channels = 2 * spec.key_dim + spec.value_dim

        def values() -> Array:
            return weights.linear_values(rng(f"{name}.values"))

        def gates() -> Array:
            return weights.linear_in(rng(f"{name}.in"), values())

        yield self._matrix(f"{name}.in_proj_qkvz", channels + spec.value_dim, hidden, gates)
        ba = f"{name}.in_proj_ba"
        yield self._matrix(ba, 2 * heads, hidden, lambda: weights.linear_beta_and_step(rng(ba)))
        yield self._plain(f"{name}.conv1d.weight", (channels, 4, 1), lambda: weights.conv(rng(f"{name}.conv")))
        yield self._plain(f"{name}.A_log", (heads,), lambda: weights.decay_log(rng(f"{name}.decay")), "float32")
        yield self._plain(f"{name}.dt_bias", (heads,), weights.step_bias)
        yield self._norm(f"{name}.norm", dim)
        yield self._matrix(
            f"{name}.out_proj", hidden, spec.value_dim, lambda: weights.linear_out(rng(f"{name}.out"), values())
        )

    def _full(self, name: str) -> Iterator[Group]:
        spec, weights, rng = self._spec, self._weights, self._rng
        kv_dim = spec.kv_heads * spec.head_dim

        def values() -> Array:
            return weights.values(rng(f"{name}.values"))

        yield self._matrix(
            f"{name}.q_proj", 2 * spec.attention_dim, spec.hidden, lambda: weights.queries(rng(f"{name}.q"))
        )
        yield self._matrix(f"{name}.k_proj", kv_dim, spec.hidden, lambda: weights.keys(rng(f"{name}.k")))
        yield self._matrix(f"{name}.v_proj", kv_dim, spec.hidden, values)
        yield self._matrix(
            f"{name}.o_proj", spec.hidden, spec.attention_dim, lambda: weights.attention_out(rng(f"{name}.o"), values())
        )
        for norm in ("q_norm", "k_norm"):
            yield self._plain(f"{name}.{norm}.weight", (spec.head_dim,), weights.sharpness)

    def _moe(self, name: str) -> Iterator[Group]:
        spec, weights = self._spec, self._weights
        hidden, shared = spec.hidden, spec.shared_width
        yield self._matrix(
            f"{name}.gate", spec.experts, hidden, lambda: weights.router(self._rng(f"{name}.gate")), ROUTER_BITS
        )
        yield self._matrix(f"{name}.shared_expert_gate", 1, hidden, weights.shared_gate, ROUTER_BITS)
        yield self._matrix(f"{name}.shared_expert.gate_proj", shared, hidden, lambda: weights.shared_expert()[0])
        yield self._matrix(f"{name}.shared_expert.up_proj", shared, hidden, lambda: weights.shared_expert()[1])
        yield self._matrix(f"{name}.shared_expert.down_proj", hidden, shared, lambda: weights.shared_expert()[2])
        for projection in EXPERT_PROJECTIONS:
            yield self._experts(f"{name}.switch_mlp.{projection}", projection == "down_proj")

    def _experts(self, name: str, down: bool) -> Group:
        spec = self._spec
        rows, columns = self._weights.expert_out() if down else self._weights.expert_in()
        shape = (spec.experts, len(rows), len(columns))
        if (bits := spec.expert_bits) is None:
            return self._plain(f"{name}.weight", shape, lambda: self._float_experts(name, rows, columns))
        group = spec.expert_group_size
        every_row = np.tile(rows, spec.experts)

        def make() -> tuple[Array, Array, Array]:
            parts = random_quantized(self._rng(name), every_row, columns, group, bits)
            words, scales, biases = (part.reshape(spec.experts, len(rows), -1) for part in parts)
            return words, scales, biases

        return self._quantized(name, shape, group, bits, make)

    def _float_experts(self, name: str, rows: Array, columns: Array) -> Array:
        noise = self._rng(name).standard_normal((self._spec.experts, len(rows), len(columns)), dtype=np.float32)
        return noise * rows[:, None] * columns
