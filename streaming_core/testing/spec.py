"""What a synthetic checkpoint looks like: sizes and kinds of numbers, checked once."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["GROUP_SIZE", "CheckpointSpec", "parse_size"]

GROUP_SIZE = 64  # of every quantised tensor but the experts, which have a knob
TRUNK_BITS = 4
ROUTER_BITS = 8  # mlx-lm keeps gate and shared_expert_gate at 8 bits for this family
MiB = 1024 * 1024
SIZES = ("tiny", "demo", "layers:N")


@dataclass(frozen=True, kw_only=True)
class CheckpointSpec:
    """Shapes and number formats of one Qwen3-Next checkpoint.  Derive variants with `dataclasses.replace`."""

    name: str = "tiny"
    layers: int = 4
    experts: int = 16
    top_k: int = 4
    hidden: int = 128
    expert_width: int = 64
    shared_width: int = 64
    max_vocab: int = 1024  # the tokenizer may find fewer merges in its text
    full_attention_interval: int = 4
    attention_heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    linear_key_heads: int = 2
    linear_value_heads: int = 4
    linear_head_dim: int = 32
    dtype: str = "float32"  # of activations, norms, scales, biases: MLX's CPU kernels are about 10x slower in bfloat16
    expert_bits: int | None = 4  # None: experts stored in `dtype`, not quantised
    expert_group_size: int = GROUP_SIZE
    shard_bytes: int = 1 * MiB
    seed: int = 0

    def __post_init__(self) -> None:
        _require(self.dtype in DTYPE_BYTES, "dtype", f"one of {', '.join(DTYPE_BYTES)}", self.dtype)
        _require(self.expert_bits in (None, 2, 4, 8), "expert_bits", "2, 4, 8 or None", self.expert_bits)
        _require(self.expert_group_size in (32, 64, 128), "expert_group_size", "32, 64 or 128", self.expert_group_size)
        for name in ("layers", "shard_bytes", "full_attention_interval", "top_k"):
            _require(getattr(self, name) >= 1, name, ">= 1", getattr(self, name))
        _require(self.top_k <= self.experts, "top_k", f"<= experts ({self.experts})", self.top_k)
        _require(self.max_vocab >= 512, "max_vocab", ">= 512", self.max_vocab)
        for name in ("hidden", "expert_width", "shared_width"):
            _require(getattr(self, name) % GROUP_SIZE == 0, name, f"a multiple of {GROUP_SIZE}", getattr(self, name))
        if self.expert_bits is not None:
            for name in ("hidden", "expert_width"):
                rule = f"a multiple of expert_group_size ({self.expert_group_size})"
                _require(getattr(self, name) % self.expert_group_size == 0, name, rule, getattr(self, name))
        # Half the value heads of either attention carry the topic, the other half do not.
        per_key = f"a multiple of twice linear_key_heads ({self.linear_key_heads})"
        _require(self.linear_value_heads % (2 * self.linear_key_heads) == 0, "linear_value_heads", per_key,
                 self.linear_value_heads)  # fmt: skip
        _require(self.kv_heads % 2 == 0, "kv_heads", "even", self.kv_heads)
        per_kv = f"a multiple of kv_heads ({self.kv_heads})"
        _require(self.attention_heads % self.kv_heads == 0, "attention_heads", per_kv, self.attention_heads)
        for name in ("value_dim", "attention_dim"):
            _require(getattr(self, name) % GROUP_SIZE == 0, name, f"a multiple of {GROUP_SIZE}", getattr(self, name))

    @property
    def key_dim(self) -> int:
        return self.linear_key_heads * self.linear_head_dim

    @property
    def value_dim(self) -> int:
        return self.linear_value_heads * self.linear_head_dim

    @property
    def attention_dim(self) -> int:
        return self.attention_heads * self.head_dim

    @property
    def dtype_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype]

    @property
    def record_bytes(self) -> int:
        """Bytes of one expert of one layer: weights, scales and biases of its three matrices."""
        numbers = 3 * self.hidden * self.expert_width
        if self.expert_bits is None:
            return numbers * self.dtype_bytes
        return numbers * self.expert_bits // 8 + 2 * (numbers // self.expert_group_size) * self.dtype_bytes

    def is_linear(self, layer: int) -> bool:
        """True if this layer has linear attention: all but every `full_attention_interval`-th."""
        return (layer + 1) % self.full_attention_interval != 0


DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def _require(ok: bool, name: str, rule: str, value: object) -> None:
    if not ok:
        raise ValueError(f"CheckpointSpec.{name} must be {rule}, got {value!r}")


def parse_size(name: str) -> CheckpointSpec:
    """Spec of a named size: `tiny` (tests), `demo` (about 200 MB), `layers:N` (N layers of true Qwen3-Next shapes)."""
    if name == "tiny":
        return CheckpointSpec()
    if name == "demo":
        return CheckpointSpec(
            name="demo", layers=12, experts=64, top_k=4, hidden=512, expert_width=256, shared_width=256, max_vocab=4096,
            attention_heads=8, kv_heads=2, head_dim=64, linear_key_heads=4, linear_value_heads=8, linear_head_dim=64,
            shard_bytes=64 * MiB,
        )  # fmt: skip
    if match := re.fullmatch(r"layers:([1-9]\d{0,2})", name):
        return CheckpointSpec(
            name=name, layers=int(match[1]), experts=512, top_k=10, hidden=2048, expert_width=512, shared_width=512,
            max_vocab=4096, attention_heads=16, kv_heads=2, head_dim=256, linear_key_heads=16, linear_value_heads=32,
            linear_head_dim=128, shard_bytes=4096 * MiB,
            full_attention_interval=min(4, int(match[1])),  # mlx-lm needs a full-attention layer
        )  # fmt: skip
    raise ValueError(f"unknown checkpoint size {name!r}; known: {', '.join(SIZES)} (N from 1 to 999)")
