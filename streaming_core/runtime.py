"""A model that runs while most of its experts stay on disk: load, generate, count, close."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import numpy as np
from mlx_lm.generate import GenerationResponse, generation_stream, wired_limit
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.tokenizer_utils import TokenizerWrapper

from streaming_core.assemble import assemble, open_store
from streaming_core.cache_limit import CacheLimit
from streaming_core.engine import Engine
from streaming_core.errors import ModelClosed, ModelNotSupported
from streaming_core.hardware import Machine, default_budget_bytes, detect
from streaming_core.in_force import settings_in_force, unread_settings
from streaming_core.kernels.select import LayerChoice
from streaming_core.layer_set import LayerSet
from streaming_core.models.outline import ModelOutline, OpenModel, open_model
from streaming_core.models.resolve import default_cache_dir, resolve_model
from streaming_core.profile import Profile
from streaming_core.progress import OnProgress, ignore
from streaming_core.reading import check_reader
from streaming_core.recording import Recorder
from streaming_core.residency.memory import MemoryPlan, check_context, plan_memory
from streaming_core.settings import Settings
from streaming_core.trace import Stats

__all__ = ["StreamedModel", "inspect", "load", "plan"]

# mlx_lm options that have to do with the prompt's tokens or passes, so mlx_lm has to see the prompt.
_WHOLE_PROMPT_OPTIONS = (
    "logits_processors", "draft_model", "input_embeddings", "kv_bits", "prompt_progress_callback",
)  # fmt: skip


class StreamedModel:
    """mlx-lm's model with streamed experts.  A context manager; used by one thread.

    Once closed it only tells its counts; anything else raises ModelClosed.

    Attributes:
        model, tokenizer: mlx-lm's own; anything of mlx-lm that takes a model takes this one.
        settings: what is in force, nothing left to "auto".
        unread: keys of settings that make no difference beside the others.
        memory_plan: what the memory is used for.
        outline: what the checkpoint is.
    """

    def __init__(
        self,
        opened: OpenModel,
        tokenizer: TokenizerWrapper,
        settings: Settings,
        memory_plan: MemoryPlan,
        engine: Engine,
        cache_limit: CacheLimit,
    ) -> None:
        self.model: nn.Module = opened.model
        self.tokenizer = tokenizer
        self.settings = settings
        self.unread = unread_settings(settings, memory_plan, opened.outline.experts)
        self.memory_plan = memory_plan
        self.outline = opened.outline
        self._engine = engine
        self._cache_limit = cache_limit
        self._closed = False
        # Nothing but the output comes after the experts of the last decoder layer, so a pass that only fills caches
        # can do without them.
        last = opened.outline.decoder_layers - 1
        self._last_layer = last if last in memory_plan.streamed else None

    def __repr__(self) -> str:
        plan, outline = self.memory_plan, self.outline
        in_part, whole = LayerSet.of(plan.streamed), LayerSet.of(set(outline.layers) - set(plan.streamed))
        facts = [f"{plan.slots} of {outline.experts} experts of layers {in_part} in memory"] if plan.streamed else []
        facts += [f"all of layers {whole}"] if whole.layers else []
        facts += ["closed"] if self._closed else []
        return f"<StreamedModel {outline.name} ({outline.model_type}): {'; '.join(facts)}>"

    def stats(self) -> Stats:
        """Counts since load or `reset_stats()`."""
        return self._engine.stats()

    def kernels(self, tokens: int = 1) -> tuple[LayerChoice, ...]:
        """What computes the experts of each MoE layer in a call of so many tokens, and why; 1 is a decoded token."""
        return self._engine.kernels.choices(tokens)

    def record(self, recorder: Recorder) -> None:
        """From now on the recorder hears of every pass, choice, guess and read; `NullRecorder()` ends it."""
        self._check_open()
        self._engine.record(recorder)

    def without_guesses(self) -> AbstractContextManager[None]:
        """Within it the predictor is neither asked nor told, to measure what guessing costs.

        Decoder layers that are observed stay so; noting their input costs about a microsecond each.
        """
        return self._engine.without_guesses()

    def reset_stats(self) -> None:
        self._engine.reset_stats()

    def make_cache(self) -> list[Any]:
        """An empty prompt cache of mlx-lm's."""
        self._check_open()
        return list(make_prompt_cache(self.model))

    def prefill(self, tokens: Sequence[int], cache: list[Any]) -> None:
        """Runs prompt tokens through the model into `cache`, a chunk at a time; computes no logits.

        Raises ContextExceeded, as `stream` does, and ReadError.
        """
        self._check_open()
        self._check_room(len(tokens), 0, cache)
        chunk = self.memory_plan.chunk
        with wired_limit(self.model, [generation_stream]), mx.stream(generation_stream):
            for start in range(0, len(tokens), chunk):
                piece = mx.array(list(tokens[start : start + chunk]))
                with self._engine.discarding_output(self._last_layer):
                    self.model(piece[None], cache=cache)
                mx.eval([entry.state for entry in cache])
                mx.clear_cache()

    def stream(
        self,
        prompt: str | Sequence[int] | mx.array,
        max_tokens: int = 256,
        *,
        prompt_cache: list[Any] | None = None,
        **options: Any,
    ) -> Iterator[GenerationResponse]:
        """mlx_lm's stream_generate over this model: the same responses, tokens and options.

        Raises:
            ContextExceeded: there is a budget, and what the cache holds, the prompt and `max_tokens` (-1: no end)
                exceed the `memory.context` that was planned for.  Raised here, not when the first token is asked for.
            ReadError: experts cannot be read.
        """
        self._check_open()
        tokens = self._tokens(prompt)
        cache = self._cache_for(options) if prompt_cache is None else prompt_cache
        self._check_room(len(tokens), max_tokens, cache)
        return self._stream(tokens, max_tokens, cache, options)

    def _cache_for(self, options: dict[str, Any]) -> list[Any]:
        """As mlx_lm's stream_generate would make it: a draft model's entries follow those of the model."""
        draft = options.get("draft_model")
        if draft is not None:
            return [*make_prompt_cache(self.model), *make_prompt_cache(draft)]
        return list(make_prompt_cache(self.model, options.get("max_kv_size")))

    def _stream(
        self, tokens: list[int], max_tokens: int, cache: list[Any], options: dict[str, Any]
    ) -> Iterator[GenerationResponse]:
        if len(tokens) < 2 or any(options.get(name) is not None for name in _WHOLE_PROMPT_OPTIONS):
            options.setdefault("prefill_step_size", self.memory_plan.chunk)
            yield from self._generate(tokens, max_tokens, cache, options)
            return
        started = time.perf_counter()
        self.prefill(tokens[:-1], cache)
        prefill_s = time.perf_counter() - started
        for response in self._generate(tokens[-1:], max_tokens, cache, options):
            prompt_s = prefill_s + 1 / response.prompt_tps
            yield replace(response, prompt_tokens=len(tokens), prompt_tps=len(tokens) / prompt_s)

    def _generate(
        self, tokens: list[int], max_tokens: int, cache: list[Any], options: dict[str, Any]
    ) -> Iterator[GenerationResponse]:
        yield from mlx_lm.stream_generate(
            self.model, self.tokenizer, tokens, max_tokens=max_tokens, prompt_cache=cache, **options
        )

    def generate(self, prompt: str | Sequence[int] | mx.array, max_tokens: int = 256, **options: Any) -> str:
        """The whole answer at once."""
        return "".join(response.text for response in self.stream(prompt, max_tokens, **options))

    def _tokens(self, prompt: str | Sequence[int] | mx.array) -> list[int]:
        if isinstance(prompt, str):
            bos = self.tokenizer.bos_token
            special = bos is None or not prompt.startswith(bos)
            prompt = self.tokenizer.encode(prompt, add_special_tokens=special)
        return list(np.array(prompt).reshape(-1).tolist())

    def _check_open(self) -> None:
        if self._closed:
            raise ModelClosed

    def _check_room(self, prompt_tokens: int, max_tokens: int, cache: Sequence[Any]) -> None:
        held = max((_tokens_held(entry) for entry in cache), default=0)
        check_context(self.memory_plan, self.settings.memory.context, held, prompt_tokens, max_tokens)

    def close(self) -> None:
        """Ends reader threads, closes files, gives MLX its cache limit back.  Idempotent."""
        if self._closed:
            return
        self._engine.close()
        self._cache_limit.release()
        self._closed = True  # last: Ctrl-C may come between

    def __enter__(self) -> StreamedModel:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def inspect(
    model: str | Path,
    *,
    cache_dir: Path | None = None,
    machine: Machine | None = None,
    on_progress: OnProgress = ignore,
) -> ModelOutline:
    """What a model is and asks for, from its config and headers alone.

    Raises:
        ModelNotFound, ModelNotSupported, StoreInvalid.
    """
    return _open(model, cache_dir or default_cache_dir(), machine or detect(), on_progress).outline


def plan(outline: ModelOutline, settings: Settings, machine: Machine | None = None, *, batch: int = 1) -> MemoryPlan:
    """The memory plan of a model under these settings on this machine, for so many sequences at once.

    Raises BudgetTooSmall, SettingsError.
    """
    check_reader(settings.reading)  # here, because whoever loads or tunes plans before anything is written
    machine = machine or detect()
    return plan_memory(
        replace(outline.demand, batch=batch), settings, default_budget_bytes(machine.hardware(), machine.memory())
    )


def load(
    model: str | Path,
    profile_or_settings: Profile | Settings | None = None,
    *,
    cache_dir: Path | None = None,
    machine: Machine | None = None,
    oracle: Sequence[Mapping[int, Sequence[int]]] | None = None,
    on_progress: OnProgress = ignore,
) -> StreamedModel:
    """Loads a model whose experts stream from disk.

    Args:
        model: a folder, a hub id or an alias.
        profile_or_settings: a profile (the model's entry is used), settings, or None for the defaults.
        cache_dir: where packed records are kept; the platform's cache folder unless given.
        oracle: for `predict.kind: oracle`: the experts that each layer asked for in each pass of a recorded run.
        on_progress: hears of downloads, packing and loading.

    Raises:
        ModelNotFound, ModelNotSupported, StoreInvalid, DiskFull, BudgetTooSmall, SettingsError, ProfileInvalid.
    """
    cache_dir = cache_dir or default_cache_dir()
    machine = machine or detect()
    opened = _open(model, cache_dir, machine, on_progress)
    settings = _settings_for(profile_or_settings, model, opened.outline)
    memory_plan = plan(opened.outline, settings, machine)
    in_force = settings_in_force(settings, memory_plan, machine.hardware().backend).with_values(
        {"store.layout": opened.outline.layout(settings.store.layout)}
    )
    tokenizer = _tokenizer(opened)
    store = open_store(opened, settings, cache_dir, machine, on_progress)
    cache_limit = CacheLimit(settings.memory.mlx_cache)
    try:
        engine = assemble(opened, memory_plan, settings, store, machine, oracle, on_progress)
    except BaseException:
        cache_limit.release()
        store.close()
        raise
    return StreamedModel(opened, tokenizer, in_force, memory_plan, engine, cache_limit)


def _open(model: str | Path, cache_dir: Path, machine: Machine, on_progress: OnProgress) -> OpenModel:
    source = resolve_model(model, cache_dir=cache_dir, on_progress=on_progress)
    opened = open_model(source.folder, source.name, machine.hardware())
    if not opened.switches:
        raise ModelNotSupported(f"{source.name}: no routed experts found")
    return opened


def _tokens_held(entry: Any) -> int:
    """Of one layer's cache.  deepseek_v41's has no size, and a recurrent one's is always 0."""
    size = int(entry.size()) if hasattr(entry, "size") else 0
    return size or int(getattr(entry, "offset", 0))


def _tokenizer(opened: OpenModel) -> TokenizerWrapper:
    """mlx-lm's.  Its errors are those of four libraries.  Raises ModelNotSupported."""
    folder = opened.outline.folder
    try:
        tokenizer = mlx_lm.utils.load_tokenizer(folder, eos_token_ids=opened.config.get("eos_token_id"))
        works = bool(tokenizer.encode("a", add_special_tokens=False))
    except Exception as err:  # the part in Rust raises nothing more specific
        reason = " ".join(str(err).split())[:200]
        raise ModelNotSupported(f"{folder}: its tokenizer cannot be loaded: {reason}; download it again") from err
    if not works:  # what the library makes of a folder without tokenizer files
        raise ModelNotSupported(f"{folder}: its tokenizer makes no tokens of text; is the download complete?")
    return tokenizer


def _settings_for(profile_or_settings: Profile | Settings | None, model: str | Path, outline: ModelOutline) -> Settings:
    if profile_or_settings is None:
        return Settings()
    if isinstance(profile_or_settings, Settings):
        return profile_or_settings
    profile = profile_or_settings
    settings = profile.for_model(model)
    profile.check_checkpoint(str(model), outline.fingerprint, outline.folder)
    return settings
