"""A recorded run for the simulator, as a value."""

from __future__ import annotations

from autotune.prepare import Place
from autotune.replay import ForcedTokens, passage_tokens
from autotune.workload import Workload
from streaming_core.models.outline import ModelOutline
from streaming_core.recording import RouteRecorder
from streaming_core.route_trace import RouteTrace
from streaming_core.runtime import StreamedModel, load
from streaming_core.settings import Settings

__all__ = ["record_workload", "trace_of"]


def trace_of(streamed: StreamedModel, recorder: RouteRecorder) -> RouteTrace:
    """What `recorder` saw of it."""
    outline, settings = streamed.outline, streamed.settings
    return RouteTrace(
        fingerprint=outline.fingerprint,
        experts=outline.experts,
        top_k=outline.top_k,
        chunk=streamed.memory_plan.chunk,
        predict_kind=settings.predict.kind,
        predict_mult=settings.predict.mult,
        ahead=settings.prefetch.ahead,
        passes=recorder.passes,
    )


def record_workload(outline: ModelOutline, settings: Settings, workload: Workload, place: Place) -> RouteTrace:
    """Every passage once, as trials replay them; the timed tokens count.  No layer may be resident in `settings`.

    Raises what `load` does.
    """
    recorder = RouteRecorder()
    with load(outline.folder, settings, cache_dir=place.cache_dir, machine=place.machine) as streamed:
        streamed.record(recorder)
        for passage in workload.passages:
            prompt, forced = passage_tokens(streamed.tokenizer, passage, workload)
            recorder.counting = False
            stream = streamed.stream(prompt, len(forced), sampler=ForcedTokens(forced))
            for number, _ in enumerate(stream):
                recorder.counting = number >= workload.warmup_tokens
        return trace_of(streamed, recorder)
