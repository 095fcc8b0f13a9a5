"""What is known of a model before anything of it runs: outline, store files, memory plans.

The only module of the tuner's own process that opens models; trials do it in their worker.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from streaming_core.assemble import open_store, store_folder
from streaming_core.errors import BudgetTooSmall
from streaming_core.hardware import Machine
from streaming_core.models.outline import ModelOutline, open_model
from streaming_core.models.resolve import resolve_model
from streaming_core.progress import OnProgress, ignore
from streaming_core.residency.memory import MemoryPlan
from streaming_core.runtime import plan
from streaming_core.settings import Settings
from streaming_core.store import layer_file, verify

__all__ = [
    "Place",
    "damaged_records",
    "fits",
    "is_packed",
    "outline_of",
    "pack_store",
    "plan_of",
    "read_bytes_of",
    "store_files",
]


@dataclass(frozen=True, slots=True)
class Place:
    """Where things are: the machine, and the folder for stores, made checkpoints and studies."""

    machine: Machine
    cache_dir: Path


def outline_of(model: str, place: Place, on_progress: OnProgress = ignore, *, download: bool = True) -> ModelOutline:
    """Reads config and headers only.  Raises ModelNotFound, ModelNotSupported, StoreInvalid."""
    source = resolve_model(model, cache_dir=place.cache_dir, on_progress=on_progress, download=download)
    return open_model(source.folder, source.name, place.machine.hardware()).outline


def pack_store(outline: ModelOutline, place: Place, settings: Settings, on_progress: OnProgress = ignore) -> None:
    """Packs the experts if `store.layout` wants them packed and they are not.  Raises DiskFull, StoreInvalid."""
    opened = open_model(outline.folder, outline.name, place.machine.hardware())
    open_store(opened, settings, place.cache_dir, place.machine, on_progress).close()


def store_files(outline: ModelOutline, place: Place, layout: str) -> list[Path]:
    """The files that experts are read from where `store.layout` is `layout`."""
    if outline.layout(layout) == "packed":
        return sorted(store_folder(place.cache_dir, outline.name, outline.fingerprint).glob("layer-*.records"))
    return sorted(outline.folder.glob("*.safetensors"))


def read_bytes_of(outline: ModelOutline, settings: Settings, place: Place) -> dict[int, int]:
    """How much is read for one expert, by layer."""
    packed = outline.layout(settings.store.layout) == "packed"
    switches = open_model(outline.folder, outline.name, place.machine.hardware()).switches
    return {s.layer: s.geometry.read_bytes if packed else s.geometry.payload_bytes for s in switches}


def is_packed(outline: ModelOutline, place: Place) -> bool:
    """Whether something is in the place of every layer's file; else `open_store` packs."""
    folder = store_folder(place.cache_dir, outline.name, outline.fingerprint)
    return all(os.path.exists(layer_file(folder, layer)) for layer in outline.layers)


def plan_of(outline: ModelOutline, settings: Settings, place: Place, batch: int = 1) -> MemoryPlan:
    """Raises BudgetTooSmall, SettingsError."""
    return plan(outline, settings, place.machine, batch=batch)


def fits(outline: ModelOutline, place: Place) -> Callable[[Settings], bool]:
    """Whether the plan of some settings is within their budget."""

    def decide(settings: Settings) -> bool:
        try:
            plan_of(outline, settings, place)
        except BudgetTooSmall:
            return False
        return True

    return decide


def damaged_records(outline: ModelOutline, place: Place, on_layer: Callable[[int, int], None]) -> list[str]:
    """Reads every packed record; one line for each whose bytes are not what was packed."""
    folder = store_folder(place.cache_dir, outline.name, outline.fingerprint)
    return [str(fault) for fault in verify(folder, outline.layers, outline.fingerprint, on_layer)]
