"""Chooses predictor, prefetch backend and budget, as the settings say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import mlx.nn as nn

from streaming_core.engine import Engine
from streaming_core.errors import ModelNotSupported, SettingsError
from streaming_core.hardware import Machine
from streaming_core.layer_set import LayerSet
from streaming_core.models.outline import OpenModel
from streaming_core.models.routers import Router, input_norm, router_view
from streaming_core.observe import ObservedNorm
from streaming_core.predict import (
    CascadePredictor,
    FrequencyPredictor,
    GatePredictor,
    NoPrediction,
    OraclePredictor,
    Predictor,
)
from streaming_core.prefetch import (
    AdvisePrefetch,
    Budget,
    GuessReads,
    NoPrefetch,
    Prefetch,
    SideBuffers,
    SlotPrefetch,
    StagePrefetch,
)
from streaming_core.reading import Reader
from streaming_core.residency.link import Link
from streaming_core.residency.memory import MemoryPlan
from streaming_core.settings import Settings

__all__ = ["make_budget", "make_predictor", "make_prefetch", "observe_inputs"]


def make_budget(settings: Settings) -> Budget:
    prefetch = settings.prefetch
    per_pass = None if isinstance(prefetch.per_pass, str) else prefetch.per_pass
    layers = LayerSet.parse(prefetch.layers)
    return Budget(layers, prefetch.per_layer, per_pass, settings.predict.min_score)


def make_predictor(
    opened: OpenModel,
    plan: MemoryPlan,
    settings: Settings,
    link: Link,
    oracle: Sequence[Mapping[int, Sequence[int]]] | None,
) -> Predictor:
    """Raises SettingsError, and ModelNotSupported where a guess by router is wanted and no router is known."""
    kind, ahead = settings.predict.kind, settings.prefetch.ahead
    width = max(1, math.ceil(opened.outline.top_k * settings.predict.mult))
    if kind == "none" or not plan.streamed:
        return NoPrediction()
    if ahead == 0 and kind != "gate":
        raise SettingsError(f"prefetch.ahead 0 needs predict.kind gate, got {kind}: nothing else is known that early")
    if kind == "frequency":
        return FrequencyPredictor(plan.streamed, width, ahead, settings.residency.half_life)
    if kind == "oracle":
        if oracle is None:
            raise SettingsError("predict.kind oracle replays a recorded run: give load() its `oracle`")
        return OraclePredictor(oracle, plan.streamed, ahead)
    views = _views(opened, plan, kind)
    later = _ahead(opened, views, ahead)
    if kind == "cascade":
        early = GatePredictor(later, width, link, from_router_input=True)
        own = _ahead(opened, views, 0)
        return CascadePredictor(early, GatePredictor(own, width, link, from_router_input=False))
    return GatePredictor(later, width, link, from_router_input=kind == "gate_input")


def _ahead(opened: OpenModel, views: Mapping[int, Router], ahead: int) -> dict[int, tuple[int, Router]]:
    """Layer -> the layer whose guess is made there, and its router.  Layers without experts do not count: they wait for
    nothing, so a guess made in one would not be looked at before the next that has some."""
    layers = opened.outline.layers
    pairs = zip(layers, layers[ahead:], strict=False)
    return {layer: (target, views[target]) for layer, target in pairs if target in views}


def _views(opened: OpenModel, plan: MemoryPlan, kind: str) -> dict[int, Router]:
    """Of the streamed layers' routers.  Raises ModelNotSupported: none is known, or none as this kind of guess asks."""
    outline = opened.outline
    if not outline.guess_kinds:
        raise ModelNotSupported(
            f"{outline.name}: guessing by router is not known for {outline.model_type}; "
            "use predict.kind frequency or none"
        )
    if kind not in outline.guess_kinds:
        raise ModelNotSupported(
            f"{outline.name}: predict.kind {kind} takes what experts are given for what their router is given, which "
            f"is something else in {outline.model_type}; use predict.kind gate, frequency or none"
        )
    return {n: view for n in plan.streamed if (view := router_view(opened.model.layers[n])) is not None}


def make_prefetch(
    plan: MemoryPlan, settings: Settings, reader: Reader, machine: Machine, sides: SideBuffers | None
) -> Prefetch:
    """`sides`: for the backend `stage`.  Raises SettingsError for backends that this machine cannot have."""
    backend = settings.prefetch.backend
    if backend == "none" or settings.predict.kind == "none" or not plan.streamed:
        return NoPrefetch()
    if backend == "advise":
        if settings.reading.page_cache == "bypass":
            raise SettingsError("prefetch.backend advise fills the page cache, reading.page_cache bypass goes past it")
        return AdvisePrefetch(machine.advise)
    reads = GuessReads(reader, settings.prefetch.depth)
    if sides is not None:
        return StagePrefetch(reads, sides)
    if machine.hardware().backend == "cuda":
        raise SettingsError("prefetch.backend slots needs memory that host and device share; use stage")
    return SlotPrefetch(reads)


def observe_inputs(model: nn.Module, engine: Engine) -> None:
    """Puts an observing module in the place of the norm that every decoder layer's input goes through first."""
    for number, layer in enumerate(model.layers):
        if (place := input_norm(layer)) is not None:
            owner, key = place
            owner[key] = ObservedNorm(owner[key], partial(engine.sees_input, number))
            if engine.first_observed is None:
                engine.first_observed = number
