"""Weights of one decoder layer.  D hidden, E experts, F expert width, S shared width, H heads, V value dims."""

from __future__ import annotations

import math

import numpy as np

from .anatomy import EXPERT_SHARES, ROUTER_SHARES, ROUTER_STD, TOPIC_DECAY, Anatomy, Shares, write_gains
from .quantize import Array
from .spec import CheckpointSpec

__all__ = ["LayerWeights"]

Rng = np.random.Generator

SILU_RMS = 0.596  # root mean square of silu of a standard normal; times an independent one it is that of a SwiGLU unit
SILU_4 = 3.928  # silu(4): the shared expert's gate is saturated there, which makes that expert a linear map
SIGMOID_2 = 0.881

# Linear attention.  Values are kept small so that the silu behind the convolution is nearly linear and the average over
# the context keeps its direction; the norm behind it restores the size.
VALUE_STD = 1.0
SLOW_GATE, FAST_GATE = 1.5, 0.7  # mean of z; the random part has deviation 0.5
SLOW_GATE_RMS, FAST_GATE_RMS = 1.27, 0.60  # of silu(z)
SLOW_READS = Shares(topic=1.0)
FAST_READS = Shares(topic=0.10, work=0.45, ident=0.45)
# Half the heads remember 50 to 300 tokens (they carry the topic), half 1 to 8 (they make the work block move).
SLOW_DECAY, FAST_DECAY = (0.003, 0.02), (0.05, 0.5)
SOFTPLUS_BIAS = 0.1  # of dt: decay per token = exp(A_log) * this
SLOW_BETA, FAST_BETA = -3.5, -1.0  # mean of b before the sigmoid: how much a token overwrites
# Full attention: sharper than the norm's unit scale, or everything would average out over long contexts.
SHARPNESS = 1.4
ATTENTION_RMS = 0.35  # of a value averaged by such a softmax and gated by a sigmoid, relative to one value


class LayerWeights:
    """Float weights of one layer, by part.  Every method takes the generator of the tensor it makes."""

    def __init__(self, spec: CheckpointSpec, anatomy: Anatomy, common_signs: Array) -> None:
        self._spec = spec
        self._anatomy = anatomy
        self._always = anatomy.common_reader(common_signs)
        self._gains = write_gains(spec)

    def _rows(self, rng: Rng, count: int, reads: Shares, std: float, mean: float = 0.0) -> Array:
        """[count, D] rows whose product with the stream is normal with this mean and deviation."""
        noise = rng.standard_normal((count, self._spec.hidden), dtype=np.float32)
        rows: Array = noise * self._anatomy.reader(reads, std) + np.float32(mean) * self._always
        return rows

    # linear attention -------------------------------------------------------------------------------------------------

    def linear_values(self, rng: Rng) -> Array:
        """[H, dim, D]; even heads are slow and read the topic, odd heads are fast and read the token."""
        spec = self._spec
        heads, dim = spec.linear_value_heads, spec.linear_head_dim
        values = [self._rows(rng, dim, FAST_READS if head % 2 else SLOW_READS, VALUE_STD) for head in range(heads)]
        return np.stack(values)

    def linear_in(self, rng: Rng, values: Array) -> Array:
        """in_proj_qkvz [2 * key_dim + 2 * value_dim, D], by key head: queries, keys, values, output gates."""
        spec = self._spec
        dim, per_key = spec.linear_head_dim, spec.linear_value_heads // spec.linear_key_heads
        everything = Shares(topic=0.25, work=0.25, common=0.25, ident=0.25)
        rows: list[Array] = []
        for key_head in range(spec.linear_key_heads):
            rows.append(self._rows(rng, 2 * dim, everything, 1.0))
            heads = range(key_head * per_key, (key_head + 1) * per_key)
            rows += [values[head] for head in heads]
            rows += [self._rows(rng, dim, FAST_READS, 0.5, FAST_GATE if head % 2 else SLOW_GATE) for head in heads]
        return np.concatenate(rows)

    def linear_beta_and_step(self, rng: Rng) -> Array:
        """in_proj_ba [2 * H, D], by key head: b of its value heads, then a."""
        spec = self._spec
        per_key = spec.linear_value_heads // spec.linear_key_heads
        rows: list[Array] = []
        for key_head in range(spec.linear_key_heads):
            heads = range(key_head * per_key, (key_head + 1) * per_key)
            rows += [self._rows(rng, 1, FAST_READS, 0.5, FAST_BETA if head % 2 else SLOW_BETA) for head in heads]
            rows += [self._rows(rng, 1, FAST_READS, 0.3) for _ in heads]
        return np.concatenate(rows)

    def conv(self, rng: Rng) -> Array:
        """conv1d [2 * key_dim + value_dim, 4, 1]: mostly the current token, a little of the last three."""
        taps = 0.2 * rng.standard_normal((2 * self._spec.key_dim + self._spec.value_dim, 4, 1), dtype=np.float32)
        taps[:, -1] = 1.0
        return taps

    def decay_log(self, rng: Rng) -> Array:
        """A_log [H]."""
        heads = np.arange(self._spec.linear_value_heads)
        low, high = (np.where(heads % 2, fast, slow) for slow, fast in zip(SLOW_DECAY, FAST_DECAY, strict=True))
        rate = low * (high / low) ** rng.random(len(heads))
        return np.log(rate / SOFTPLUS_BIAS).astype(np.float32)

    def step_bias(self) -> Array:
        """dt_bias [H]."""
        return np.full(self._spec.linear_value_heads, math.log(math.expm1(SOFTPLUS_BIAS)), dtype=np.float32)

    def linear_out(self, rng: Rng, values: Array) -> Array:
        """out_proj [D, V]: slow heads give back the topic they averaged, fast heads write noise into `work`."""
        spec, anatomy = self._spec, self._anatomy
        heads, dim = spec.linear_value_heads, spec.linear_head_dim
        slow = np.arange(heads) % 2 == 0
        out = np.zeros((spec.hidden, heads, dim), dtype=np.float32)
        fast_std = anatomy.writer(self._gains.attention) / (FAST_GATE_RMS * math.sqrt((~slow).sum() * dim))
        noise = rng.standard_normal((spec.hidden, heads - int(slow.sum()), dim), dtype=np.float32)
        out[:, ~slow] = noise * fast_std[:, None, None]
        # The norm makes every head's output unit-sized, so what comes back has length entry * dims, whatever went in.
        topic = values[slow][:, :, anatomy.topic]
        entry = float(np.sqrt(np.square(topic).mean()))
        length = TOPIC_DECAY * anatomy.amplitude("topic") * math.sqrt(anatomy.size("topic"))
        gain = length / (entry * slow.sum() * dim * SLOW_GATE_RMS)
        out[anatomy.topic][:, slow] = gain * topic.transpose(2, 0, 1)
        return out.reshape(spec.hidden, -1)

    # full attention ---------------------------------------------------------------------------------------------------

    def queries(self, rng: Rng) -> Array:
        """q_proj [H * 2 * dim, D], by head: query, output gate."""
        everything = Shares(topic=0.3, work=0.3, common=0.1, ident=0.3)
        return self._rows(rng, 2 * self._spec.attention_dim, everything, 1.0)

    def keys(self, rng: Rng) -> Array:
        """k_proj [kv_heads * dim, D]."""
        spec = self._spec
        return self._rows(rng, spec.kv_heads * spec.head_dim, Shares(topic=0.3, work=0.3, common=0.1, ident=0.3), 1.0)

    def values(self, rng: Rng) -> Array:
        """v_proj [kv_heads * dim, D]; the first half of the heads reads the topic, the second the token."""
        rows = self._spec.kv_heads * self._spec.head_dim // 2
        return np.concatenate([self._rows(rng, rows, reads, 1.0) for reads in (SLOW_READS, FAST_READS)])

    def sharpness(self) -> Array:
        """q_norm and k_norm [dim]."""
        return np.full(self._spec.head_dim, SHARPNESS, dtype=np.float32)

    def attention_out(self, rng: Rng, values: Array) -> Array:
        """o_proj [D, H * dim]."""
        spec, anatomy = self._spec, self._anatomy
        half = spec.attention_dim // 2
        out = rng.standard_normal((spec.hidden, spec.attention_dim), dtype=np.float32)
        out *= (anatomy.writer(self._gains.attention) / (ATTENTION_RMS * math.sqrt(half)))[:, None]
        out[:, :half] = 0
        by_head = values.reshape(spec.kv_heads, spec.head_dim, spec.hidden)[: spec.kv_heads // 2, :, anatomy.topic]
        topic = np.repeat(by_head, spec.attention_heads // spec.kv_heads, axis=0).reshape(half, -1)
        # 0.5: mean of the sigmoid gate.  2: nothing renormalises here, and an averaged topic is shorter than a token's.
        gain = 2 * TOPIC_DECAY / (0.5 * float(np.square(topic).mean()) * half)
        out[anatomy.topic, :half] = gain * topic.T
        return out

    # mixture of experts -----------------------------------------------------------------------------------------------

    def router(self, rng: Rng) -> Array:
        """gate [E, D]."""
        return self._rows(rng, self._spec.experts, ROUTER_SHARES, ROUTER_STD)

    def expert_in(self) -> tuple[Array, Array]:
        """Row [F] and column [D] deviations of gate_proj and up_proj."""
        return np.ones(self._spec.expert_width, dtype=np.float32), self._anatomy.reader(EXPERT_SHARES, 1.0)

    def expert_out(self) -> tuple[Array, Array]:
        """Row [D] and column [F] deviations of down_proj."""
        spec = self._spec
        unit = SILU_RMS * math.sqrt(spec.expert_width) * mixture_rms(spec.experts, spec.top_k)
        return self._anatomy.writer(self._gains.moe) / np.float32(unit), np.ones(spec.expert_width, dtype=np.float32)

    def shared_expert(self) -> tuple[Array, Array, Array]:
        """gate_proj [S, D], up_proj [S, D], down_proj [D, S]: takes a part of `topic` and `work` away.

        Unit j reads coordinate j and its gate is always open, so the block is the linear map -decay.
        """
        spec, anatomy = self._spec, self._anatomy
        decay = np.zeros(spec.shared_width, dtype=np.float32)
        decay[anatomy.topic], decay[anatomy.work] = TOPIC_DECAY, self._gains.decay
        up = np.eye(spec.shared_width, spec.hidden, dtype=np.float32)
        down = np.zeros((spec.hidden, spec.shared_width), dtype=np.float32)
        units = np.arange(anatomy.work.stop)
        down[units, units] = -decay[units] / (SILU_4 * SIGMOID_2)
        return np.tile(4 * self._always, (spec.shared_width, 1)), up, down

    def shared_gate(self) -> Array:
        """shared_expert_gate [1, D]: open to the same degree for every token."""
        return 2 * self._always[None]


def mixture_rms(experts: int, top_k: int) -> float:
    """Length of the sum of k independent unit vectors weighted by a router's softmax over its k largest logits."""
    logits = ROUTER_STD * np.random.default_rng(0).standard_normal((200, experts))
    chosen = np.exp(np.sort(logits, axis=-1)[:, -top_k:])
    weights = chosen / chosen.sum(-1, keepdims=True)
    return float(np.sqrt(np.square(weights).sum(-1)).mean())
