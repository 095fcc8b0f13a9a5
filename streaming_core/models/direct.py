"""Experts in the checkpoint as it is: where they lie, and whether that is what mlx-lm makes of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from streaming_core.errors import StoreInvalid
from streaming_core.geometry import Part
from streaming_core.models.load import load_lazily
from streaming_core.models.switches import Switch
from streaming_core.store.index import TensorPlace
from streaming_core.store.places import LayerPlaces, PartPlaces, find_layer

__all__ = ["check_places", "find_places"]


def find_places(index: Mapping[str, TensorPlace], switches: Sequence[Switch]) -> dict[int, LayerPlaces]:
    """Where the experts of every layer lie.  Raises NotDirect."""
    return {s.layer: find_layer(index, s.path, s.experts, s.geometry) for s in switches}


def check_places(folder: Path, switches: Sequence[Switch], places: Mapping[int, LayerPlaces]) -> None:
    """Compares the smallest tensors of one layer with what mlx-lm makes of the checkpoint, where their names differ.

    Names cannot tell whether mlx-lm only puts tensors together or also changes their order (fused halves may be
    interleaved).  Raises StoreInvalid.
    """
    switch = next((s for s in switches if not places[s.layer].as_named), None)
    if switch is None:
        return
    model = load_lazily(folder).model
    tensors = dict(tree_flatten(model.parameters()))
    chosen = _smallest(switch.geometry.parts)
    for part, where in zip(switch.geometry.parts, places[switch.layer].parts, strict=True):
        if part in chosen and not _same(tensors.pop(f"{switch.path}.{part.name}"), part, where):
            raise StoreInvalid(
                f"{folder}: {switch.path}.{part.name} is in another order on disk than in the model; "
                "use store.layout=packed"
            )
    mx.clear_cache()


def _smallest(parts: Sequence[Part]) -> list[Part]:
    """Of each projection."""
    found: dict[str, Part] = {}
    for part in sorted(parts, key=lambda part: part.nbytes):
        found.setdefault(part.name.partition(".")[0], part)
    return list(found.values())


def _same(array: mx.array, part: Part, where: PartPlaces) -> bool:
    flat = mx.contiguous(array).reshape(array.shape[0], -1).view(mx.uint8)
    mx.eval(flat)
    rows = np.array(flat, copy=False)
    for expert, (path, offset) in enumerate(zip(where.paths, where.offsets, strict=True)):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.pread(fd, part.nbytes, offset) != rows[expert].tobytes():
                return False
        finally:
            os.close(fd)
    return True
