"""What settings come to once a model is loaded: what is in force, and what nothing looks at."""

from __future__ import annotations

from typing import Any

from streaming_core.kernels.offer import KERNELS, missing
from streaming_core.reading import reader_kind
from streaming_core.residency.memory import MemoryPlan
from streaming_core.settings import Settings

__all__ = ["settings_in_force", "unread_settings"]

_LIMITS = ("predict.min_score", "prefetch.per_layer", "prefetch.per_pass", "prefetch.layers")
_GUESSED_READS = ("prefetch.depth", "reading.guess_threads")
_SHAPES = ("layers", "tile", "lanes", "block")  # of whatever kernel is on


def settings_in_force(settings: Settings, plan: MemoryPlan, backend: str) -> Settings:
    """Nothing left to "auto", and what exceeds a limit at that limit.  Raises SettingsError."""
    reading = settings.reading
    values: dict[str, Any] = {
        "residency.resident_layers": str(plan.resident),
        "residency.slots": plan.slots if plan.streamed else "all",
        "prefill.chunk": plan.chunk,
        "reading.reader": reader_kind(reading),
        # The thread that waits reads no guesses; where it is the only one, the first guess starts another.
        "reading.guess_threads": min(reading.guess_threads, max(1, reading.threads - 1)),
    }
    if plan.budget_bytes is not None:
        values["memory.budget"] = plan.budget_bytes
    if missing(settings.kernels, backend) is not None:
        values |= {f"kernels.{name}": "off" for name in KERNELS}
    return settings.with_values(values)


def unread_settings(in_force: Settings, plan: MemoryPlan, experts: int) -> tuple[str, ...]:
    """Keys that make no difference beside the others; `experts` are those of a layer.

    For example every `prefetch` setting where nothing is guessed.
    """
    unread = {*_unread_of_guesses(in_force, plan), *_unread_of_kernels(in_force)}
    residency = in_force.residency
    evicts = bool(plan.streamed) and plan.slots < experts
    counts_uses = evicts and residency.policy == "lfu"
    forgets = bool(plan.streamed) and in_force.predict.kind == "frequency"
    if not evicts:
        unread.add("residency.policy")
    if not counts_uses and not forgets:
        unread.add("residency.half_life")
    return tuple(sorted(unread))


def _unread_of_guesses(in_force: Settings, plan: MemoryPlan) -> set[str]:
    kind = in_force.predict.kind if plan.streamed else "none"
    backend = in_force.prefetch.backend
    unread: set[str] = set()
    if kind == "none":
        unread |= {"predict.mult", "prefetch.ahead"}
    elif kind == "oracle":
        unread.add("predict.mult")
    acts = kind != "none" and backend != "none"
    if not acts:
        unread |= {*_LIMITS, *_GUESSED_READS}
    elif backend == "advise":
        unread |= {*_GUESSED_READS}
    if backend != "stage":
        unread.add("prefetch.window")
    elif plan.streamed:  # the memory plan makes room for side buffers, also for those that nobody fills
        unread -= {"prefetch.per_layer"}
    if kind == "none" and backend != "stage":
        unread.add("prefetch.backend")
    return unread


def _unread_of_kernels(in_force: Settings) -> set[str]:
    kernels = in_force.kernels
    unread = {f"kernels.{name}_max_seq" for name in KERNELS if getattr(kernels, name) == "off"}
    if kernels.indexed == "off":
        unread.add("kernels.targets")
    if kernels.fused == kernels.indexed == "off":
        unread |= {f"kernels.{name}" for name in _SHAPES}
    return unread
