"""`mlx-autotune trace`: where a token's time goes, what the router asked for, and how well it was guessed."""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from autotune.context import Context, chosen_settings, model_name, say_checkpoint, say_settings
from autotune.errors import RequestInvalid
from autotune.traced import GuessCost, TokenTime, Traced
from streaming_core.hardware import detect
from streaming_core.recording import RouteRecorder
from streaming_core.route_trace import read_routes, save_trace
from streaming_core.settings import Settings
from streaming_core.testing import prompts
from streaming_core.testing.published import recall_curve
from streaming_core.trace import Stats, added

if TYPE_CHECKING:
    from streaming_core.runtime import StreamedModel

__all__ = ["run"]


def run(args: argparse.Namespace, context: Context) -> int:
    if args.tokens < 1 or args.prompts < 1:
        raise RequestInvalid(f"--tokens and --prompts must be at least 1, got {args.tokens} and {args.prompts}")
    if args.guess_only and args.tokens < 2:
        raise RequestInvalid("--guess-only compares tokens with and without guesses: --tokens must be at least 2")
    model = model_name(args)
    machine = detect()
    choice = chosen_settings(args, machine)
    settings = _guessing_only(choice.settings) if args.guess_only else choice.settings
    import streaming_core
    from autotune.simulate.record import trace_of

    screen = context.screen
    say_settings(choice, machine.hardware(), screen)
    oracle = None
    if args.oracle is not None:
        outline = streaming_core.inspect(model, cache_dir=args.cache_dir, on_progress=screen.progress)
        oracle = read_routes(args.oracle, outline.fingerprint)
    loaded = streaming_core.load(model, settings, cache_dir=args.cache_dir, oracle=oracle, on_progress=screen.progress)
    with loaded as streamed:
        choice.check(model, streamed.outline)
        say_checkpoint(streamed.outline, settings, screen)
        if args.guess_only and not streamed.memory_plan.streamed:
            raise RequestInvalid("--guess-only: every layer is resident, so nothing is guessed; lower --budget")
        recorder = RouteRecorder()
        streamed.record(recorder)
        found = _traced(streamed, settings, recorder, _replay(streamed, recorder, args, context), args)
        if args.save is not None:
            trace = trace_of(streamed, recorder)
            # Half of the tokens had no guesses: of no use to whoever wants to know what they would have brought.
            save_trace(args.save, replace(trace, predict_kind="none") if args.guess_only else trace)
        screen.result(found.to_json(), found.summary, found.show)
    return 0


def _guessing_only(settings: Settings) -> Settings:
    """Guesses as they would be made, and nothing done with them.  Raises RequestInvalid where none would be made."""
    kind = settings.predict.kind
    if kind in ("none", "oracle"):
        raise RequestInvalid(
            f"--guess-only measures what guessing costs, and predict.kind {kind} computes no guess; "
            "add --set predict.kind=gate, gate_input, cascade or frequency"
        )
    return settings.with_values({"prefetch.backend": "none"})


@dataclass(slots=True)
class _Tokens:
    """What the decoded tokens took: stretches of one or more tokens, with guesses and without."""

    tokens: int = 0
    stats: list[Stats] = field(default_factory=list)
    seconds: float = 0.0
    guessing: list[TokenTime] = field(default_factory=list)
    silent: list[TokenTime] = field(default_factory=list)


def _replay(streamed: StreamedModel, recorder: RouteRecorder, args: argparse.Namespace, context: Context) -> _Tokens:
    """Decodes varied text, told what to say: text of a model in circles flatters every cache."""
    from streaming_core.progress import Progress

    found = _Tokens()
    rng = random.Random(args.seed)
    texts = prompts(2 * args.prompts, 40 + args.tokens, seed=args.seed)
    for number in range(args.prompts):
        recorder.counting = False
        stream = _forced(streamed, texts[2 * number], texts[2 * number + 1], args.tokens)
        next(stream)  # the prompt
        recorder.counting = True
        streamed.reset_stats()
        if args.guess_only:
            _alternate(streamed, stream, _turns(rng), found)
        else:
            started = time.perf_counter()
            found.tokens += sum(1 for _ in stream)
            found.seconds += time.perf_counter() - started
            found.stats.append(streamed.stats())
        context.screen.progress(Progress("tracing", number + 1, args.prompts, "passages"))
    return found


def _forced(streamed: StreamedModel, text: str, continuation: str, tokens: int) -> Iterator[Any]:
    """One step for the prompt, then `tokens` steps of one forward pass each."""
    import mlx.core as mx

    prompt, rest = (streamed.tokenizer.encode(each) for each in (text, continuation))
    forced = iter(rest)
    count = min(tokens + 1, len(rest) - 1)
    return streamed.stream(prompt[:40], count, sampler=lambda _: mx.array([next(forced)]))


def _turns(rng: random.Random) -> Iterator[bool]:
    """With guesses or without: every two tokens have one of each, so that drift hits both alike."""
    return chain.from_iterable(rng.sample([True, False], 2) for _ in iter(int, 1))


def _alternate(streamed: StreamedModel, stream: Iterator[Any], turns: Iterator[bool], found: _Tokens) -> None:
    for guesses in turns:
        with nullcontext() if guesses else streamed.without_guesses():
            started = time.perf_counter()
            if next(stream, None) is None:
                return
            seconds = time.perf_counter() - started
        stats = streamed.stats()
        streamed.reset_stats()
        (found.guessing if guesses else found.silent).append(TokenTime.of(stats, seconds, 1))
        found.tokens += 1
        found.stats.append(stats)
        found.seconds += seconds


def _traced(
    streamed: StreamedModel, settings: Settings, recorder: RouteRecorder, tokens: _Tokens, args: argparse.Namespace
) -> Traced:
    stats = added(tokens.stats)
    return Traced(
        stats=stats,
        tokens=tokens.tokens,
        time=TokenTime.of(stats, tokens.seconds, tokens.tokens),
        recorder=recorder,
        top_k=streamed.outline.top_k,
        guessed_width=math.ceil(streamed.outline.top_k * settings.predict.mult),
        published=recall_curve(settings.predict.kind, settings.prefetch.ahead),
        cost=GuessCost.of(tokens.guessing, tokens.silent) if args.guess_only else None,
        saved=args.save,
    )
