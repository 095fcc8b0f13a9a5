"""`mlx-autotune chat`: a talk on a terminal, or one turn a line from a pipe."""

from __future__ import annotations

import argparse
import math
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from autotune.commands.opened import chosen, opened
from autotune.context import Context, decoded
from autotune.errors import RequestInvalid
from autotune.wording import seconds_text, tps_text
from streaming_core.errors import ContextExceeded
from streaming_core.units import format_size

if TYPE_CHECKING:
    from autotune.conversation import Answer, Conversation

__all__ = ["run"]

_HELP = "/stats: the last answer's speed; /clear: begin anew; /quit or Ctrl-D: leave; Ctrl-C: stop an answer, or leave"


def run(args: argparse.Namespace, context: Context) -> int:
    if not 0 <= args.temp < math.inf:
        raise RequestInvalid(f"--temp must be 0 or more, got {args.temp}")
    system = None if args.system is None else decoded(args.system, "--system")
    choice = chosen(args, context)
    from autotune.conversation import Conversation

    screen = context.screen
    with opened(args, context, choice) as streamed:
        if not streamed.tokenizer.has_chat_template:
            screen.notice("this model has no chat template: it continues the text of all turns")
        screen.notice(_HELP)
        talk = Conversation(streamed, system=system, max_tokens=args.max_tokens, temperature=args.temp)
        _Session(talk, context, json_lines=args.json).run()
    return 0


class _Session:
    """Reads turns and commands until there are no more."""

    def __init__(self, talk: Conversation, context: Context, *, json_lines: bool) -> None:
        self._talk, self._context, self._screen = talk, context, context.screen
        self._json_lines = json_lines
        self._last: Answer | None = None

    def run(self) -> None:
        number = 0
        while (line := self._context.read_line()) is not None:
            number += 1
            text = decoded(line, f"turn {number}").strip()
            if text == "/quit":
                return
            if re.fullmatch(r"/[a-z?]*", text):
                self._command(text)
            elif text:
                self._turn(text)

    def _command(self, name: str) -> None:
        match name:
            case "/stats":
                self._screen.notice("no answer yet" if self._last is None else stats_text(self._last))
            case "/clear":
                self._talk.clear()
                self._screen.notice("begun anew")
            case "/help":
                self._screen.notice(_HELP)
            case _:
                self._screen.problem(f"no such command: {name}; {_HELP}")

    def _turn(self, text: str) -> None:
        from autotune.conversation import Answer

        answer = Answer()
        with _ctrl_c_once() as stopped:
            try:
                for piece in self._talk.ask(text, answer, stopped):
                    if not self._json_lines:
                        self._screen.text(piece)
            except ContextExceeded as err:
                self._screen.problem(str(err))
                return
        self._last = answer
        if not self._json_lines:
            self._screen.text("\n")
        self._screen.report("answer", _data(answer), "")
        if answer.finish_reason == "interrupted":
            self._screen.notice("stopped")


@contextmanager
def _ctrl_c_once() -> Iterator[Callable[[], bool]]:
    """Within it the first Ctrl-C is only noted, so that no pass is cut in two; the next one is as ever."""
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # only the main one hears signals
        yield lambda: False
        return
    before = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: object) -> None:
        noted.append(number)
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(noted)
    finally:
        signal.signal(signal.SIGINT, before)


def stats_text(answer: Answer) -> str:
    stats = answer.stats
    assert stats is not None  # an answer that was shown has ended
    new = answer.prompt_tokens - answer.cached_tokens
    return (
        f"{answer.tokens} tokens at {tps_text(answer.tps)} tok/s, after {new} new prompt tokens in "
        f"{seconds_text(answer.prompt_s)} ({answer.cached_tokens} were kept); {stats.hit_rate:.1%} of experts were in "
        f"memory, {format_size(stats.demand_bytes)} read, {seconds_text(stats.wait_s)} waited"
    )


def _data(answer: Answer) -> dict[str, Any]:
    stats = answer.stats
    assert stats is not None
    return {
        "text": answer.text,
        "prompt_tokens": answer.prompt_tokens,
        "cached_tokens": answer.cached_tokens,
        "prompt_s": answer.prompt_s,
        "generation_tokens": answer.tokens,
        "generation_tps": answer.tps,
        "finish_reason": answer.finish_reason,
        "hits": stats.hits,
        "misses": stats.misses,
        "hit_rate": stats.hit_rate,
        "demand_bytes": stats.demand_bytes,
        "wait_s": stats.wait_s,
    }
