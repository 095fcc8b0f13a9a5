"""A trial with the real runtime.  Runs in the worker."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
from mlx_lm.utils import load_tokenizer

from autotune.replay import Decode, Repeat, passage_tokens, replay, tokens_hash
from autotune.trial import (
    Counters,
    Engine,
    Infeasible,
    LayerCost,
    Measured,
    Outcome,
    PageState,
    Stage,
    TrialSpec,
    is_hopeless,
)
from streaming_core.assemble import store_folder
from streaming_core.errors import BudgetTooSmall
from streaming_core.hardware import Machine, detect, is_out_of_memory
from streaming_core.models.load import load_lazily
from streaming_core.models.resolve import resolve_model
from streaming_core.progress import Progress
from streaming_core.runtime import load
from streaming_core.settings import Settings
from streaming_core.trace import Stats
from streaming_core.units import format_size

__all__ = ["run_trial"]

_FULL = 0.9  # of the available memory: the share a resident model may ask for

OnStage = Callable[[Stage], None]


@dataclass(frozen=True, slots=True)
class _Subject:
    """A loaded model, whoever decodes."""

    decode: Decode
    tokenizer: Any
    effective: dict[str, Any]
    unread: tuple[str, ...]
    reset_stats: Callable[[], None]
    stats: Callable[[], Stats | None]
    files: tuple[Path, ...]  # that hold experts


def run_trial(spec: TrialSpec, on_stage: OnStage) -> Outcome:
    """Loads, replays, counts, and leaves nothing of the model in memory."""
    machine = detect()
    memory = _MemoryWatch(machine)
    try:
        return _measure(spec, machine, on_stage, memory)
    except BudgetTooSmall as err:
        return Infeasible(reason=str(err), excess_bytes=err.needed_bytes - err.budget_bytes)
    except (MemoryError, RuntimeError) as err:
        if not is_out_of_memory(err):
            raise
        reason = str(err).splitlines() or [type(err).__name__]
        return Infeasible(reason=f"out of memory: {reason[0]}", excess_bytes=1)
    finally:
        gc.collect()
        mx.clear_cache()


class _MemoryWatch:
    """The memory of one trial, in a process that may have run others before."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        before = machine.process_memory()
        self.base_rss_bytes = before.rss_bytes
        self._peak_before = before.peak_rss_bytes
        self._seen = before.rss_bytes
        self._swap_before = machine.swap_in_bytes()
        mx.reset_peak_memory()

    def look(self) -> None:
        self._seen = max(self._seen, self._machine.process_memory().rss_bytes)

    @property
    def peak_rss_bytes(self) -> int:
        """The system's high-water mark covers the life of the process: it is this trial's only if it rose."""
        peak = self._machine.process_memory().peak_rss_bytes
        return peak if peak > self._peak_before else self._seen

    @property
    def needed_bytes(self) -> int:
        """The larger of the process's view and MLX's; on CUDA a budget is about the device alone."""
        mlx_peak = int(mx.get_peak_memory())
        if self._machine.hardware().backend == "cuda":
            return mlx_peak
        return max(mlx_peak, self.peak_rss_bytes - self.base_rss_bytes)

    @property
    def swap_in_bytes(self) -> int | None:
        now = self._machine.swap_in_bytes()
        return None if now is None or self._swap_before is None else now - self._swap_before


def _measure(spec: TrialSpec, machine: Machine, on_stage: OnStage, memory: _MemoryWatch) -> Outcome:
    start = time.perf_counter()
    opened = _streamed if spec.engine is Engine.STREAMED else _resident
    repeats: list[Repeat] = []
    counted: list[Counters] = []
    hopeless = False
    with opened(spec, machine, on_stage) as subject:
        load_s = time.perf_counter() - start
        memory.look()
        for index in range(spec.procedure.repeats):
            on_stage(Stage("decoding", index, spec.procedure.repeats))
            repeat, counters = _repeat(subject, spec, index, machine)
            repeats.append(repeat)
            counted.append(counters)
            memory.look()
            if hopeless := is_hopeless(repeats[0].tps, spec.procedure):
                break
    times = sorted(t for repeat in repeats for t in repeat.token_s)
    return Measured(
        samples=tuple(repeat.tps for repeat in repeats),
        prefill_s=tuple(repeat.first_token_s for repeat in repeats),
        prompt_tokens=sum(repeat.prompt_tokens for repeat in repeats),
        token_p50_s=statistics.median(times),
        token_p99_s=times[min(len(times) - 1, int(len(times) * 0.99))],
        load_s=load_s,
        base_rss_bytes=memory.base_rss_bytes,
        peak_rss_bytes=memory.peak_rss_bytes,
        mlx_peak_bytes=mx.get_peak_memory(),
        needed_bytes=memory.needed_bytes,
        tokens_hash=tokens_hash(repeats),
        effective=subject.effective,
        unread=subject.unread,
        counters=_sum(counted),
        swap_in_bytes=memory.swap_in_bytes,
        partial=hopeless or any(repeat.cut_short for repeat in repeats),
        hopeless=hopeless,
    )


def _repeat(subject: _Subject, spec: TrialSpec, index: int, machine: Machine) -> tuple[Repeat, Counters]:
    workload = spec.workload
    passage = workload.passages[index % len(workload.passages)]
    prompt, forced = passage_tokens(subject.tokenizer, passage, workload)
    if spec.procedure.pages is PageState.COLD:
        for path in subject.files:
            machine.drop_cached(path)
    physical: list[int | None] = []

    def on_timed() -> None:
        subject.reset_stats()
        physical.append(machine.physical_read_bytes())

    repeat = replay(subject.decode, prompt, forced, workload, spec.procedure, on_timed)
    after = machine.physical_read_bytes()
    begun = physical[0]
    read = None if begun is None or after is None else after - begun
    return repeat, _counters(subject.stats(), len(repeat.token_s), read)


def _counters(stats: Stats | None, tokens: int, physical_bytes: int | None) -> Counters:
    if stats is None:
        return Counters(tokens=tokens, physical_bytes=physical_bytes)
    return Counters(
        tokens=tokens,
        hits=stats.hits,
        misses=stats.misses,
        demand_bytes=stats.demand_bytes,
        prefetch_bytes=stats.prefetch_bytes,
        physical_bytes=physical_bytes,
        wait_s=stats.wait_s,
        syncs=stats.syncs,
        layers=tuple(
            LayerCost(layer=n.layer, misses=n.misses, wait_s=n.wait_s, guessed=n.guessed, guesses_used=n.guesses_used)
            for n in stats.layers
        ),
    )


def _sum(parts: Sequence[Counters]) -> Counters:
    physical = [part.physical_bytes for part in parts]
    known = [nbytes for nbytes in physical if nbytes is not None]
    layers: dict[int, LayerCost] = {}
    for cost in (cost for part in parts for cost in part.layers):
        old = layers.get(cost.layer, LayerCost(layer=cost.layer, misses=0, wait_s=0.0))
        layers[cost.layer] = LayerCost(
            layer=cost.layer,
            misses=old.misses + cost.misses,
            wait_s=old.wait_s + cost.wait_s,
            guessed=old.guessed + cost.guessed,
            guesses_used=old.guesses_used + cost.guesses_used,
        )
    return Counters(
        tokens=sum(part.tokens for part in parts),
        hits=sum(part.hits for part in parts),
        misses=sum(part.misses for part in parts),
        demand_bytes=sum(part.demand_bytes for part in parts),
        prefetch_bytes=sum(part.prefetch_bytes for part in parts),
        physical_bytes=sum(known) if len(known) == len(physical) else None,
        wait_s=sum(part.wait_s for part in parts),
        syncs=sum(part.syncs for part in parts),
        layers=tuple(layers.values()),
    )


@contextmanager
def _streamed(spec: TrialSpec, machine: Machine, on_stage: OnStage) -> Iterator[_Subject]:
    settings = Settings.from_mapping(spec.settings)

    def on_progress(progress: Progress) -> None:
        on_stage(Stage(progress.stage, progress.done, progress.total))

    with load(spec.model, settings, cache_dir=spec.cache_dir, machine=machine, on_progress=on_progress) as model:
        outline = model.outline
        packed = model.settings.store.layout == "packed"
        folder = store_folder(spec.cache_dir, outline.name, outline.fingerprint) if packed else outline.folder
        yield _Subject(
            decode=lambda prompt, count, sampler: model.stream(prompt, count, sampler=sampler),
            tokenizer=model.tokenizer,
            effective=model.settings.to_mapping(),
            unread=model.unread,
            reset_stats=model.reset_stats,
            stats=model.stats,
            files=tuple(sorted(folder.glob("*.records" if packed else "*.safetensors"))),
        )


@contextmanager
def _resident(spec: TrialSpec, machine: Machine, on_stage: OnStage) -> Iterator[_Subject]:
    source = resolve_model(spec.model, cache_dir=spec.cache_dir)
    files = tuple(sorted(source.folder.glob("*.safetensors")))
    needed = sum(path.stat().st_size for path in files)
    available = machine.memory().available_bytes
    if available is not None and needed > _FULL * available:
        raise BudgetTooSmall(
            f"{source.name} is {format_size(needed)}, {format_size(available)} of memory are available",
            needed_bytes=needed,
            budget_bytes=int(_FULL * available),
            smallest_bytes=needed,
        )
    on_stage(Stage("loading"))
    loaded = load_lazily(source.folder)
    model = loaded.model
    mx.eval(model.parameters())
    tokenizer = load_tokenizer(source.folder, eos_token_ids=loaded.config.get("eos_token_id"))
    yield _Subject(
        decode=lambda prompt, count, sampler: mlx_lm.stream_generate(
            model, tokenizer, prompt, max_tokens=count, sampler=sampler
        ),
        tokenizer=tokenizer,
        effective={},
        unread=(),
        reset_stats=lambda: None,
        stats=lambda: None,
        files=files,
    )
