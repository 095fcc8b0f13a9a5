"""How the residual stream of a synthetic model is laid out, and the constants that make its routing look real.

The D coordinates of the residual stream fall into four blocks, each with a job:

    topic   what the text is about: comes with the token, then drifts towards the average of the context
    work    what layers write: attention and experts add to it, the shared expert lets it decay
    common  the same vector for every token: a bias for everything that reads the stream
    ident   which token this is: only the embedding writes it, lm_head reads it

A router reads all four.  Its `common` part makes some experts popular everywhere, `topic` makes use depend on the
prompt, `ident` on the token, and `work` is what a guess made earlier cannot know.  Routers of different layers are
independent draws, so whatever recall a guess has comes from the stream changing slowly, as in a trained model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np

from .quantize import Array
from .spec import CheckpointSpec

__all__ = ["Anatomy", "Shares", "write_gains"]


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Parts of a variance (or of the energy of the stream) by block; they need not add up to 1."""

    topic: float = 0.0
    work: float = 0.0
    common: float = 0.0
    ident: float = 0.0


# Of the stream's mean square, which is 1.  Balanced, so that no block drowns in 4-bit rounding of another.
ENERGY = Shares(topic=0.20, work=0.36, common=0.12, ident=0.32)

# Of a router logit's variance at the energies above.  Energies in a text differ: most of its tokens lean to no topic,
# so `topic` holds 0.04 to 0.12, and attention raises `work` to about 0.7; what arrives is near 0.4 topic, 0.4 work.
# Fitted to the curves of `benchmarks/routing.py`: more `common` or `topic` raises hit rates at all sizes, more `work`
# lowers both kinds of recall and the hit rate at small sizes.
ROUTER_SHARES = Shares(topic=1.0, work=0.24, common=0.05, ident=0.08)
ROUTER_STD = 1.5  # of a logit: the softmax over the chosen gives the first about four times the weight of the last

EXPERT_SHARES = Shares(topic=0.15, work=0.40, common=0.05, ident=0.40)
LEAK = 0.02  # of the work amplitude, written to the other blocks, so that every row of every expert counts

TOPIC_DECAY = 0.30  # per layer; the write is as large, so after a few layers the topic is the context's


@dataclass(frozen=True)
class Gains:
    """How a layer changes `work`: h = x + attention, then x' = h + moe - decay * h, in units of the amplitude of x."""

    attention: float
    moe: float
    decay: float


def write_gains(spec: CheckpointSpec) -> Gains:
    """Gains that keep the amplitude of `work` constant over any number of layers.

    The more experts are left out (E / k), the harder the top-k is to guess at the same width in multiples of k, so the
    stream has to move less to give the published recall: two fitted points, 64/4 and 512/10, linear in log2(E / k).
    """
    sparsity = min(max(math.log2(spec.experts / spec.top_k), 2.0), 7.0)
    position = (sparsity - 4.0) / (math.log2(51.2) - 4.0)
    keep = min(0.56 + 0.24 * position, 0.9)  # correlation of `work` from one router to the next
    attention = max(0.75 - 0.35 * position, 0.2)
    moe = math.sqrt(1.0 - keep**2 * (1.0 + attention**2))
    return Gains(attention, moe, 1.0 - keep)


class Anatomy:
    """Blocks of one model's residual stream and the amplitude of each coordinate in them."""

    def __init__(self, spec: CheckpointSpec) -> None:
        topic = spec.hidden // 8 if spec.hidden <= 512 else spec.hidden // 16
        # The shared expert has one hidden unit for each coordinate it lets decay; see `layers.shared_expert`.
        work = min(spec.hidden // 2, spec.shared_width - topic)
        common = max(8, spec.hidden // 32)
        edges = np.cumsum([0, topic, work, common]).tolist()
        self.hidden = spec.hidden
        self.topic = slice(edges[0], edges[1])
        self.work = slice(edges[1], edges[2])
        self.common = slice(edges[2], edges[3])
        self.ident = slice(edges[3], spec.hidden)

    def size(self, block: str) -> int:
        part: slice = getattr(self, block)
        return int(part.stop - part.start)

    def amplitude(self, block: str) -> float:
        """Root mean square of one coordinate of this block in a stream whose mean square is 1."""
        share: float = getattr(ENERGY, block)
        return math.sqrt(share * self.hidden / self.size(block))

    def reader(self, shares: Shares, std: float) -> Array:
        """Deviations [D] of a random row whose product with the stream has variance std**2 * share from each block."""
        columns = np.zeros(self.hidden, dtype=np.float32)
        for field in fields(shares):
            share = getattr(shares, field.name)
            columns[getattr(self, field.name)] = std * math.sqrt(share / (self.hidden * getattr(ENERGY, field.name)))
        return columns

    def common_reader(self, signs: Array) -> Array:
        """Row [D] whose product with every token's stream is 1; `signs` [C] are those of the common vector."""
        row = np.zeros(self.hidden, dtype=np.float32)
        row[self.common] = signs / (self.size("common") * self.amplitude("common"))
        return row

    def writer(self, work: float) -> Array:
        """Deviations [D] of what a layer adds: `work` times the amplitude of that block there, a leak elsewhere."""
        rows = np.full(self.hidden, LEAK * self.amplitude("work") * work, dtype=np.float32)
        rows[self.work] = work * self.amplitude("work")
        return rows
