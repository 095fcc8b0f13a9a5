"""The side of mlx_lm's server that runs the model, within what the memory plan made room for."""

from __future__ import annotations

import argparse
import threading
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm import server as mlx_server
from mlx_lm.models.cache import LRUPromptCache

from autotune.errors import RequestInvalid
from streaming_core import StreamedModel
from streaming_core.errors import ContextExceeded, ModelNotFound

__all__ = ["StreamedGenerator"]

_KEPT_PROMPTS = 10  # as mlx_lm.server keeps


class StreamedProvider(mlx_server.ModelProvider):  # type: ignore[misc]
    """Has one model, which is loaded already; requests for another are refused, not downloaded."""

    def __init__(self, streamed: StreamedModel, name: str, max_tokens: int) -> None:
        super().__init__(_arguments(name, streamed))
        self.name, self.streamed, self.usual_tokens = name, streamed, max_tokens
        self.model, self.tokenizer = streamed.model, streamed.tokenizer
        self.model_key = (name, None, None)
        self.is_batchable = all(hasattr(entry, "merge") for entry in streamed.make_cache())
        self._names = {"default_model", name, streamed.outline.name, str(streamed.outline.folder)}
        if Path(name).exists():
            self._names.add(str(Path(name).resolve()))

    def load(self, model_path: str, adapter_path: str | None = None, draft_model_path: str | None = None) -> Any:
        if model_path not in self._names:
            raise ModelNotFound(f"model {model_path!r} is not served here, {self.name!r} is; name that one, or none")
        if adapter_path is not None or draft_model_path not in (None, "default_model"):
            raise RequestInvalid("adapters and draft models are not served here; leave them out")
        return self.model, self.tokenizer


class PromptCaches(LRUPromptCache):  # type: ignore[misc]
    """Those of earlier requests, in the room that the plan gave to one context less what the running one takes."""

    def __init__(self, room_bytes: int) -> None:
        super().__init__(_KEPT_PROMPTS, room_bytes)
        self.taken_bytes = 0

    def fetch_nearest_cache(self, model: Any, tokens: list[int]) -> Any:
        found = super().fetch_nearest_cache(model, tokens)
        self._make_room()  # only now: what was found is in use already
        return found

    def insert_cache(
        self, model: Any, tokens: list[int], prompt_cache: list[Any], *, cache_type: str = "assistant"
    ) -> None:
        super().insert_cache(model, tokens, prompt_cache, cache_type=cache_type)
        if cache_type != "assistant":  # a copy of the beginning of a prompt that is still running
            self._make_room()

    def _make_room(self) -> None:
        self.trim_to(n_bytes=self.max_bytes - self.taken_bytes)


class StreamedGenerator(mlx_server.ResponseGenerator):  # type: ignore[misc]
    """Answers the requests of many threads in the one that calls `run`.

    mlx_lm generates in a thread that it starts itself.  MLX frees what it compiled for a thread when that one ends,
    which `join` does not wait for: at the end of the program this is too late, and aborts it.  So mlx_lm's thread
    only shows here that `run` has not ended.
    """

    def __init__(self, streamed: StreamedModel, name: str, max_tokens: int) -> None:
        self.name = name
        self._ended = threading.Event()
        self._context = streamed.settings.memory.context
        self._kv_bytes = streamed.outline.demand.kv_bytes
        self._words = len(streamed.tokenizer.get_vocab())
        room_bytes = streamed.memory_plan.terms.get("KV cache", self._kv_bytes(self._context))
        super().__init__(StreamedProvider(streamed, name, max_tokens), PromptCaches(room_bytes))

    def run(self) -> None:
        """Until `stop`, or what keeps it from going on, which is raised."""
        try:
            self._generate()
        finally:
            self.close()

    def stop(self) -> None:
        self._stop = True

    def close(self) -> None:
        """Whoever waits for an answer is told that there will be none.  Idempotent."""
        self._stop = True
        self._ended.set()
        self.join()

    @property
    def stopping(self) -> bool:
        return bool(self._stop)

    def _run_generate(self) -> None:
        self._ended.wait()

    def _tokenize(self, tokenizer: Any, request: Any, args: Any) -> Any:
        """Refuses what nothing after it would survive: the batch it goes into has no guard of its own."""
        tokenized = super()._tokenize(tokenizer, request, args)
        prompt: list[int] = tokenized[0]
        args.max_tokens = self._room(len(prompt), args.max_tokens)
        if args.seed is not None and not 0 <= args.seed < 1 << 64:
            raise RequestInvalid(f"seed must be from 0 to {(1 << 64) - 1}, got {args.seed}; leave it out for any")
        if strangers := [token for token in args.logits.logit_bias or () if not 0 <= token < self._words]:
            # MLX would write beyond the array.
            raise RequestInvalid(f"logit_bias names token {strangers[0]}; the model's are 0 to {self._words - 1}")
        likely = mx.zeros([1, self._words])
        for process in mlx_server._make_logits_processors(args):
            likely = process(mx.array(prompt), likely)
        mx.eval(mlx_server._make_sampler(args, tokenizer)(likely))
        self.prompt_cache.taken_bytes = self._kv_bytes(len(prompt) + args.max_tokens)
        return tokenized

    def _room(self, prompt_tokens: int, max_tokens: int) -> int:
        """Tokens that the answer may have.  Raises ContextExceeded, RequestInvalid."""
        room = self._context - prompt_tokens
        if prompt_tokens == 0:
            raise RequestInvalid("the prompt has no tokens; write what the model shall answer")
        if max_tokens == self._context:  # not named, see _arguments
            max_tokens = min(max(room, 1), self.model_provider.usual_tokens)
        if max_tokens > room:
            advice = f"ask for at most {room}" if room > 0 else "shorten the prompt"
            raise ContextExceeded(
                f"a prompt of {prompt_tokens} tokens with max_tokens={max_tokens} exceeds the {self._context} that "
                f"memory.context makes room for; {advice}, or start the server with a larger memory.context"
            )
        return max_tokens


def _arguments(name: str, streamed: StreamedModel) -> argparse.Namespace:
    """As mlx_lm.server's main parses them, where the memory plan has no say."""
    return argparse.Namespace(
        model=name,
        adapter_path=None,
        draft_model=None,
        num_draft_tokens=0,
        trust_remote_code=False,
        chat_template="",
        use_default_chat_template=False,
        chat_template_args={},
        allowed_origins="*",
        temp=0.0,
        top_p=1.0,
        top_k=0,
        min_p=0.0,
        # Never fits behind a prompt, so it is told from what a request names.
        max_tokens=streamed.settings.memory.context,
        # The plan has room for one sequence; others wait in line.
        decode_concurrency=1,
        prompt_concurrency=1,
        prefill_step_size=streamed.memory_plan.chunk,
        prompt_cache_size=_KEPT_PROMPTS,
        prompt_cache_bytes=None,
        kv_bits=None,
        kv_group_size=64,
        quantized_kv_start=0,
        pipeline=False,
    )
