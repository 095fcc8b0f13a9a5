"""Replays a workload through a model and times it.  Runs in the worker; the only module of the tuner that needs MLX.

T timed tokens, V vocabulary
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx
import numpy as np

from autotune.trial import Procedure
from autotune.workload import Passage, Workload

__all__ = ["ForcedTokens", "Repeat", "passage_tokens", "replay", "tokens_hash"]

_FEWEST_TIMED = 4  # tokens before a repeat may be cut short: fewer say nothing


class Tokenizer(Protocol):
    """The part of mlx_lm's tokenizer wrapper that is needed here."""

    eos_token_ids: Any

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]: ...


Decode = Callable[[list[int], int, "ForcedTokens"], Iterator[object]]
"""(prompt tokens, how many to decode, sampler) -> one item a token, as mlx_lm's `stream_generate` gives them."""


class ForcedTokens:
    """A sampler for mlx_lm that returns given tokens, and keeps those the model would have chosen.

    The choice is made a dependency of the forced token: it is computed in the same evaluation, as greedy sampling
    would, and the log-probabilities are not kept alive for it.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = [mx.array([token], dtype=mx.uint32) for token in tokens]
        self._step = 0
        self._chosen: list[mx.array] = []

    def __call__(self, logprobs: mx.array) -> mx.array:
        """logprobs [1, V] -> [1]"""
        best = mx.argmax(logprobs, axis=-1)
        self._chosen.append(best)
        # mlx_lm is one step ahead of what it yields, so it asks once more than there are tokens.
        forced = self._tokens[min(self._step, len(self._tokens) - 1)]
        self._step += 1
        after: list[mx.array] = mx.depends([forced], [best])
        return after[0]

    def chosen(self, count: int) -> list[int]:
        """What greedy decoding would have said in the first `count` steps."""
        return [int(token) for token in np.array(mx.concatenate(self._chosen[:count]))]


@dataclass(frozen=True, slots=True)
class Repeat:
    """One passage replayed once."""

    prompt_tokens: int
    first_token_s: float
    token_s: tuple[float, ...]  # seconds between tokens, [T]
    chosen: tuple[int, ...]
    cut_short: bool

    @property
    def tps(self) -> float:
        return len(self.token_s) / sum(self.token_s)


def passage_tokens(tokenizer: Tokenizer, passage: Passage, workload: Workload) -> tuple[list[int], list[int]]:
    """Prompt and continuation in tokens, without any that would end the generation early."""
    ends = set(tokenizer.eos_token_ids)
    prompt = [t for t in tokenizer.encode(passage.prompt) if t not in ends]
    forced = [t for t in tokenizer.encode(passage.continuation, add_special_tokens=False) if t not in ends]
    return (
        _exactly(prompt, workload.prompt_tokens),
        _exactly(forced, 1 + workload.warmup_tokens + workload.decode_tokens),
    )


def _exactly(tokens: list[int], count: int) -> list[int]:
    if not tokens:
        raise ValueError("a text of the workload has no tokens")
    return (tokens * -(-count // len(tokens)))[:count]


def replay(
    decode: Decode,
    prompt: list[int],
    forced: list[int],
    workload: Workload,
    procedure: Procedure,
    on_timed: Callable[[], None],
) -> Repeat:
    """Decodes one passage.  `on_timed` is called once, when the timed part starts."""
    sampler = ForcedTokens(forced)
    stamps = [time.perf_counter()]
    cut_short = False
    start = 1 + workload.warmup_tokens
    for _ in decode(prompt, len(forced), sampler):
        stamps.append(time.perf_counter())
        timed = len(stamps) - 1 - start
        if timed == 0:
            on_timed()
            stamps[-1] = time.perf_counter()
        limit = procedure.repeat_limit_s
        if limit is not None and timed >= _FEWEST_TIMED and stamps[-1] - stamps[start] > limit:
            cut_short = True
            break
    token_s = tuple(b - a for a, b in zip(stamps[start:], stamps[start + 1 :], strict=False))
    return Repeat(
        prompt_tokens=len(prompt),
        first_token_s=stamps[1] - stamps[0],
        token_s=token_s,
        chosen=tuple(sampler.chosen(len(stamps) - 1)),
        cut_short=cut_short,
    )


def tokens_hash(repeats: Sequence[Repeat]) -> str:
    """Equal if, and only if, the model would have said the same everywhere."""
    text = ";".join(",".join(map(str, repeat.chosen)) for repeat in repeats)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
