"""A talk with a model, whose prompt cache is carried from turn to turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jinja2
from mlx_lm.models.cache import can_trim_prompt_cache, trim_prompt_cache
from mlx_lm.sample_utils import make_sampler

from autotune.errors import RequestInvalid
from streaming_core import Stats, StreamedModel
from streaming_core.errors import ContextExceeded

__all__ = ["Answer", "Conversation"]


@dataclass(slots=True)
class Answer:
    """What one turn gave and took; filled while it comes."""

    text: str = ""
    prompt_tokens: int = 0  # of the whole conversation up to the answer
    cached_tokens: int = 0  # of those, how many were not computed again
    prompt_s: float = 0.0
    tokens: int = 0
    tps: float = 0.0
    finish_reason: str = "interrupted"
    stats: Stats | None = None


@dataclass(slots=True)
class _Held:
    """What a prompt cache has seen, as tokens and as text."""

    cache: list[Any]
    tokens: list[int] = field(default_factory=list)
    text: str = ""


class Conversation:
    """Turns of one talk.  Used by one thread, one `ask` at a time.

    The text that the model sees is what the chat template makes of the history; without one, all turns in a row.
    What the cache holds of it is not computed again, and keeps the tokens that the model itself chose.
    """

    def __init__(self, streamed: StreamedModel, *, system: str | None, max_tokens: int, temperature: float) -> None:
        self._streamed = streamed
        self._system = system
        self._max_tokens = max_tokens
        self._sampler = make_sampler(temperature)
        self.clear()

    def clear(self) -> None:
        """Forgets everything but what the system was told."""
        self._messages = [] if self._system is None else [{"role": "system", "content": self._system}]
        self._held = _Held(self._streamed.make_cache())

    def ask(self, text: str, answer: Answer, stopped: Callable[[], bool]) -> Iterator[str]:
        """Pieces of the model's answer, which is in the history once they ended, also if `stopped` ended it early.

        Raises:
            ContextExceeded: the history and this turn leave no room for an answer; the turn is forgotten.
            RequestInvalid: the chat template refuses the turn.
            ReadError: experts cannot be read.
        """
        messages = [*self._messages, {"role": "user", "content": text}]
        rendered = self._rendered(messages)
        tokens = self._tokens(rendered)
        room = self._streamed.settings.memory.context - len(tokens)
        if room < 1:
            raise ContextExceeded(
                f"the conversation with this turn has {len(tokens)} tokens, memory.context makes room for "
                f"{len(tokens) + room} with the answer; /clear begins a new one, or start with a larger memory.context"
            )
        held, self._held = self._reusable(tokens), _Held(self._streamed.make_cache())  # until its cache is whole again
        answer.prompt_tokens, answer.cached_tokens = len(tokens), len(held.tokens)
        self._streamed.reset_stats()
        if self._prefilled(tokens, held, answer, stopped):
            yield from self._decoded(tokens[-1:], held, answer, min(room, self._max_tokens), stopped)
            held.text = rendered + answer.text + self._end_of(held, answer)
        self._messages = [*messages, {"role": "assistant", "content": answer.text}]
        self._held = held
        answer.stats = self._streamed.stats()

    def _rendered(self, messages: list[dict[str, str]]) -> str:
        tokenizer = self._streamed.tokenizer
        if tokenizer.has_chat_template:
            try:
                return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
            except jinja2.TemplateError as err:  # how a template says no, most often to a system's message
                raise RequestInvalid(f"the model's chat template refuses this: {err}; try without --system") from err
        before = self._held.text or "\n".join(message["content"] for message in messages[:-1])
        return f"{before}\n{messages[-1]['content']}" if before else messages[-1]["content"]

    def _tokens(self, rendered: str) -> list[int]:
        """Where the history still reads as the cache has it, only what is new becomes tokens."""
        held, tokenizer = self._held, self._streamed.tokenizer
        if held.text and rendered.startswith(held.text):
            new = rendered[len(held.text) :]
            return [*held.tokens, *tokenizer.encode(new, add_special_tokens=False)]
        bos = tokenizer.bos_token
        special = not tokenizer.has_chat_template and (bos is None or not rendered.startswith(bos))
        return list(tokenizer.encode(rendered, add_special_tokens=special))

    def _reusable(self, tokens: list[int]) -> _Held:
        """The cache, cut to what it has in common with these tokens, the last of which has to be computed."""
        held = self._held
        common = 0
        for ours, wanted in zip(held.tokens, tokens[:-1], strict=False):
            if ours != wanted:
                break
            common += 1
        if common < len(held.tokens):
            if not can_trim_prompt_cache(held.cache):  # a recurrent state cannot go back
                return _Held(self._streamed.make_cache())
            trim_prompt_cache(held.cache, len(held.tokens) - common)
        return _Held(held.cache, tokens[:common])

    def _prefilled(self, tokens: list[int], held: _Held, answer: Answer, stopped: Callable[[], bool]) -> bool:
        """All but the last token; False when it was stopped before."""
        started, chunk = time.perf_counter(), self._streamed.memory_plan.chunk
        while len(held.tokens) < len(tokens) - 1 and not stopped():
            piece = tokens[len(held.tokens) : -1][:chunk]
            self._streamed.prefill(piece, held.cache)
            held.tokens += piece
        answer.prompt_s = time.perf_counter() - started
        return len(held.tokens) == len(tokens) - 1 and not stopped()

    def _decoded(
        self, last: list[int], held: _Held, answer: Answer, most: int, stopped: Callable[[], bool]
    ) -> Iterator[str]:
        chosen: list[int] = []
        responses = self._streamed.stream(last, most, prompt_cache=held.cache, sampler=self._sampler)
        held.tokens += last
        for response in responses:
            if not chosen:
                answer.prompt_s += 1 / response.prompt_tps
            chosen.append(response.token)  # mlx_lm runs a token ahead: this one is in the cache already
            answer.tokens, answer.tps = response.generation_tokens, response.generation_tps
            answer.finish_reason = response.finish_reason or answer.finish_reason
            answer.text += response.text
            yield response.text
            if response.finish_reason is None and stopped():
                break
        held.tokens += chosen
        if answer.finish_reason == "interrupted":  # the last piece of text may lag behind its tokens
            answer.text = str(self._streamed.tokenizer.decode(chosen))

    def _end_of(self, held: _Held, answer: Answer) -> str:
        """The token by which the model ended its answer: in the cache, and not in its text."""
        return str(self._streamed.tokenizer.decode(held.tokens[-1:])) if answer.finish_reason == "stop" else ""
