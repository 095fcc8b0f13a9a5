"""The workload that the command line asks for."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

from autotune.errors import RequestInvalid
from autotune.options import duration_s
from autotune.trial import PageState
from autotune.workload import Workload, check_room, workload_from_texts

__all__ = ["pages_of", "repeats_of", "workload_of"]

_TEXTS = 6  # passages at most; more repeats start over
_SHORT_TIME_S = 600.0
_SHORTEST_TIME_S = 150.0


@dataclass(frozen=True, slots=True)
class _Lengths:
    repeats: int
    prompt_tokens: int
    warmup_tokens: int
    decode_tokens: int


_USUAL = _Lengths(3, 64, 16, 48)
_SHORT = _Lengths(2, 32, 8, 32)  # when there is little time, more trials tell more than longer ones


def workload_of(args: argparse.Namespace, context: int) -> Workload:
    """Texts of different topics, each continued by another one's.

    Raises RequestInvalid, also when they would not fit into `context`: that is said before so much text is made.
    """
    from streaming_core.testing import prompts  # pulls in MLX

    lengths = _lengths(args)
    check_room(lengths.prompt_tokens + 1 + lengths.warmup_tokens + lengths.decode_tokens, context)
    tokens = max(lengths.prompt_tokens, 1 + lengths.warmup_tokens + lengths.decode_tokens)
    texts = prompts(max(2, min(_TEXTS, repeats_of(args))), max(8, tokens), args.seed)
    return replace(
        workload_from_texts(texts, name="corpus"),
        prompt_tokens=lengths.prompt_tokens,
        warmup_tokens=lengths.warmup_tokens,
        decode_tokens=lengths.decode_tokens,
    )


def repeats_of(args: argparse.Namespace) -> int:
    repeats = _lengths(args).repeats
    if repeats < 1:
        raise RequestInvalid(f"--repeats must be at least 1, got {repeats}")
    return repeats


def pages_of(args: argparse.Namespace) -> PageState:
    return PageState.COLD if args.cold else PageState.AS_FOUND


def _lengths(args: argparse.Namespace) -> _Lengths:
    """What was asked for; the rest by the time there is."""
    time = getattr(args, "time", None)
    usual = _USUAL if time is None else _usual(duration_s(time))
    asked = {name: getattr(args, name) for name in ("repeats", "prompt_tokens", "warmup_tokens", "decode_tokens")}
    lengths = replace(usual, **{name: value for name, value in asked.items() if value is not None})
    return lengths if args.context is None else _at_context(lengths, args.context, args.prompt_tokens)


def _at_context(lengths: _Lengths, context: int, prompt_tokens: int | None) -> _Lengths:
    """With prompts so long that the timed tokens have `context` tokens before them."""
    if prompt_tokens is not None:
        raise RequestInvalid("--context and --prompt-tokens both say how long a prompt is; give one of them")
    decoded = 1 + lengths.warmup_tokens  # the prompt gives the first
    if context <= decoded:
        raise RequestInvalid(f"--context must be more than the {decoded} tokens decoded untimed, got {context}")
    return replace(lengths, prompt_tokens=context - decoded)


def _usual(time_s: float) -> _Lengths:
    if time_s <= _SHORTEST_TIME_S:
        return replace(_SHORT, repeats=1)
    return _SHORT if time_s <= _SHORT_TIME_S else _USUAL
