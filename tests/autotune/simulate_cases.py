"""A run of the tiny model that is recorded once and can be made again under any settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

import streaming_core
from streaming_core import Settings
from streaming_core.reading import Read, Reader, Ticket, Urgency
from streaming_core.recording import RouteRecorder
from streaming_core.residency.memory import MemoryPlan
from streaming_core.route_trace import RouteTrace
from streaming_core.trace import Stats

CHUNK = 16  # of the second prompt


def settings(**values: Any) -> Settings:
    return Settings().with_values({key.replace("__", "."): value for key, value in values.items()})


@dataclass(frozen=True)
class Run:
    """What a real run counted, and what a simulated one needs to know."""

    stats: Stats
    plan: MemoryPlan
    read_bytes: dict[int, int]


def real_run(
    folder: Path, cache: Path, wanted: Settings, recorder: RouteRecorder | None = None, **options: Any
) -> tuple[Run, RouteTrace]:
    """Prompts that only fill caches, a chunk and a batch whose output is wanted, decoded tokens; the second half is
    counted."""
    recorder = recorder or RouteRecorder()
    with streaming_core.load(folder, wanted, cache_dir=cache, **options) as model:
        model.record(recorder)
        rng = np.random.default_rng(5)
        for counted in (False, True):
            recorder.counting = counted
            state = model.make_cache()
            model.prefill(rng.integers(0, 200, 40).tolist(), state)
            for token in rng.integers(0, 200, 25).tolist():
                mx.eval(model.model(mx.array([[token]]), cache=state))
            mx.eval(model.model(mx.array(rng.integers(0, 200, (3, 2)))))
            if not counted:
                model.reset_stats()
        plan, outline, chosen = model.memory_plan, model.outline, model.settings
        store = model._engine.store
        run = Run(model.stats(), plan, {n: store.read_bytes(n) for n in outline.layers})
    trace = RouteTrace(
        fingerprint=outline.fingerprint, experts=outline.experts, top_k=outline.top_k, chunk=plan.chunk,
        predict_kind=chosen.predict.kind, predict_mult=chosen.predict.mult, ahead=chosen.prefetch.ahead,
        passes=recorder.passes,
    )  # fmt: skip
    return run, trace


class PromptReader:
    """Guesses are there as soon as they were asked for."""

    def __init__(self, inner: Reader) -> None:
        self._inner = inner
        self.cancel, self.hurry, self.wait = inner.cancel, inner.hurry, inner.wait
        self.reset, self.close = inner.reset, inner.close

    def submit(self, reads: Sequence[Read], urgency: Urgency = Urgency.DEMAND) -> Ticket:
        ticket = self._inner.submit(reads, urgency)
        if urgency is Urgency.GUESS:
            self._inner.wait(ticket)
        return ticket
