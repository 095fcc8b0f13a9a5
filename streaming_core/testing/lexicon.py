"""Embedding and lm_head: what tokens mean, and which token follows which.

The tokens of a topic lie on a ring.  lm_head rewards the next few tokens of the ring of the current one, so greedy text
stays on its topic, and cannot come round sooner than (ring length / longest step) tokens: a ring holds 60 or more.
Which of the few is taken depends on the `work` block, that is on context and experts.
"""

from __future__ import annotations

import math

import numpy as np

from .anatomy import Anatomy
from .quantize import Array
from .tokenizer import Vocabulary

__all__ = ["Lexicon"]

STEPS = (1, 2, 3)
STEP_LOGIT = 14.0  # of a right successor: far above what 4000 unrelated tokens reach by chance
STEP_PREFERENCE = (1.0, 0.97, 0.94)
TOPIC_LOGIT = 9.0  # for being on the ring of the context's topic: keeps greedy text on the topic of its prompt
CONTEXT_LOGIT_STD = 1.5  # of what context and experts add: decides between successors, whose gap it sets
NEVER_LOGIT = -40.0  # for specials and for bytes no text has: generation does not end by itself
SPECIFIC = 0.3  # a token whose topic shares differ from even by this much belongs to its main topic


class Lexicon:
    """Embedding [V, D] and lm_head [V, D] of one seed."""

    def __init__(self, vocabulary: Vocabulary, anatomy: Anatomy, rng: np.random.Generator) -> None:
        self._anatomy = anatomy
        self._seen = vocabulary.counts.sum(-1) > 0
        self._leaning = self._lean(vocabulary.counts)
        topics = self._leaning.shape[1]
        directions = rng.standard_normal((topics, anatomy.size("topic")), dtype=np.float32)
        self._directions = directions / np.sqrt(np.square(directions).mean(-1, keepdims=True))
        self.common_signs = np.where(rng.random(anatomy.size("common")) < 0.5, -1, 1).astype(np.float32)
        self.embedding = self._embed(rng)

    def _lean(self, counts: Array) -> Array:
        """[V, T]: how far a token leans to each topic: 0 where all topics use it alike, about 1 for its only one."""
        share = counts / np.maximum(counts.sum(-1, keepdims=True), 1)
        even = 1.0 / counts.shape[1]
        leaning: Array = np.where(self._seen[:, None], share - even, 0).astype(np.float32)
        return leaning

    def _embed(self, rng: np.random.Generator) -> Array:
        anatomy, tokens = self._anatomy, len(self._seen)
        table = np.empty((tokens, anatomy.hidden), dtype=np.float32)
        for block in ("work", "ident"):
            noise = rng.standard_normal((tokens, anatomy.size(block)), dtype=np.float32)
            table[:, getattr(anatomy, block)] = anatomy.amplitude(block) * noise
        table[:, anatomy.common] = anatomy.amplitude("common") * self.common_signs
        table[:, anatomy.topic] = anatomy.amplitude("topic") * self._topic_vectors(self._leaning)
        return table

    def _topic_vectors(self, weights: Array) -> Array:
        """weights [V, T] -> [V, topic block]; summed by hand, since BLAS results differ by machine."""
        total = np.zeros((len(weights), self._directions.shape[1]), dtype=np.float32)
        for topic, direction in enumerate(self._directions):
            total += weights[:, topic, None] * direction
        return total

    def _rings(self, rng: np.random.Generator) -> list[Array]:
        """Token ids of each ring, in order.  Tokens of no topic go where they keep the rings even."""
        specific = self._seen & (self._leaning.max(-1) > SPECIFIC)
        home = self._leaning.argmax(-1)
        rings = [np.flatnonzero(specific & (home == topic)).tolist() for topic in range(self._leaning.shape[1])]
        for token in np.flatnonzero(self._seen & ~specific).tolist():
            min(rings, key=len).append(token)
        return [rng.permutation(ring) for ring in rings]

    def head(self, rng: np.random.Generator) -> Array:
        """lm_head [V, D]."""
        anatomy, tokens = self._anatomy, len(self._seen)
        table = np.zeros((tokens, anatomy.hidden), dtype=np.float32)
        noise = rng.standard_normal((tokens, anatomy.size("work")), dtype=np.float32)
        work_length = anatomy.amplitude("work") * math.sqrt(anatomy.size("work"))
        table[:, anatomy.work] = noise * CONTEXT_LOGIT_STD / work_length
        table[~self._seen] = NEVER_LOGIT * anatomy.common_reader(self.common_signs)
        per_ident = STEP_LOGIT / (anatomy.size("ident") * anatomy.amplitude("ident") ** 2)
        per_topic = TOPIC_LOGIT / (anatomy.size("topic") * anatomy.amplitude("topic"))
        for topic, ring in enumerate(self._rings(rng)):
            table[ring, anatomy.topic] = per_topic * self._directions[topic]
            for step, preference in zip(STEPS, STEP_PREFERENCE, strict=True):
                before = self.embedding[np.roll(ring, step)]
                table[ring, anatomy.ident] += per_ident * preference * before[:, anatomy.ident]
        return table
