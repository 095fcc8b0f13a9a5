"""What a checkpoint is, learnt from its config and headers: no weight is read.

`open_model` gives mlx-lm's own model, lazily loaded, with its experts taken out, and an outline of what it needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from streaming_core.errors import ModelNotSupported
from streaming_core.hardware import Hardware
from streaming_core.kernels.formats import ExpertFormat, Unknown, format_of
from streaming_core.models.cache_bytes import cache_bytes
from streaming_core.models.direct import find_places
from streaming_core.models.fingerprint import fingerprint
from streaming_core.models.load import load_lazily, translated
from streaming_core.models.routers import guess_kinds
from streaming_core.models.switches import ShapesOnly, Switch, find_switches, put_module
from streaming_core.residency.memory import MemoryDemand
from streaming_core.store.index import TensorPlace, read_index
from streaming_core.store.places import LayerPlaces, NotDirect

__all__ = ["ModelOutline", "OpenModel", "open_model"]


@dataclass(frozen=True, slots=True)
class ModelOutline:
    """A checkpoint without its weights."""

    name: str
    folder: Path
    fingerprint: str
    model_type: str
    layers: tuple[int, ...]  # decoder layers with routed experts
    decoder_layers: int
    experts: int
    top_k: int
    record_bytes: int  # of the largest record, in memory
    expert_bytes: int  # of all records
    demand: MemoryDemand
    formats: tuple[ExpertFormat | Unknown, ...] = ()  # each that some layer has, once
    unused: tuple[str, ...] = ()  # tensors of the checkpoint that the model has no place for
    indirect: str | None = None  # why experts cannot be read from the checkpoint as it is
    tensors: str = "stacked tensors"  # how experts lie in it, where they can
    guess_kinds: tuple[str, ...] = ()  # values of predict.kind that ask routers and can be had

    def layout(self, wanted: str) -> str:
        """The `store.layout` in force where `wanted` is set."""
        return "packed" if self.indirect is not None else wanted

    def layout_text(self, wanted: str) -> str:
        """Where experts are read from, and why, in a line."""
        if wanted == "packed":
            return "experts are read from packed records (store.layout=packed)"
        if self.indirect is not None:
            return f"experts are read from packed records, not from the checkpoint: {self.indirect}"
        return f"experts are read from the checkpoint as it is (store.layout=checkpoint): {self.tensors}"


@dataclass(slots=True)
class OpenModel:
    """A lazily loaded model whose experts were taken out, and what was taken."""

    outline: ModelOutline
    model: nn.Module
    config: dict[str, Any]
    switches: list[Switch]
    places: dict[int, LayerPlaces]  # of experts in the checkpoint; empty where `outline.indirect`


def open_model(folder: Path, name: str, hardware: Hardware) -> OpenModel:
    """Loads `folder` lazily through mlx-lm and takes its experts out; reads headers only.

    Raises:
        ModelNotSupported: mlx-lm does not know the model, or it has no routed experts.
        StoreInvalid: weight files are missing or damaged.
    """
    index = read_index(folder)  # also checks the files, before mlx-lm trusts them
    loaded = load_lazily(folder, index)
    model, config = loaded.model, loaded.config
    switches = find_switches(model, name)
    stub = ShapesOnly()
    for switch in switches:
        put_module(model, switch.path, stub.stand_in(switch.module))
    with translated(folder, "cannot run it", "check config.json, and whether this machine can run it at all"):
        kept = cache_bytes(model)
    places, indirect = _places(index, switches)
    trunk = [a for _, a in tree_flatten(model.parameters())]
    first = switches[0]
    outline = ModelOutline(
        name=name,
        folder=folder,
        fingerprint=fingerprint(folder, index),
        model_type=str(config.get("model_type", "unknown")),
        layers=tuple(s.layer for s in switches),
        decoder_layers=len(model.layers),
        experts=first.experts,
        top_k=stub.top_k,
        record_bytes=max(s.geometry.payload_bytes for s in switches),
        expert_bytes=sum(s.geometry.payload_bytes * s.experts for s in switches),
        demand=MemoryDemand(
            trunk_bytes=sum(a.nbytes for a in trunk),
            slot_bytes={s.layer: s.geometry.payload_bytes for s in switches},
            experts=first.experts,
            top_k=stub.top_k,
            kv_fixed_bytes=kept.fixed,
            kv_token_bytes=kept.per_token,
            kv_windows=kept.windows,
            row_bytes=_row_bytes(first, stub),
            token_bytes=_token_bytes(trunk, stub),
            score_bytes=_score_bytes(config, hardware, stub.item_bytes),
            scan_bytes=kept.largest_state
            if hardware.backend == "cpu"
            else 0,  # without a kernel the scan keeps every step's state
            staging_bytes=_staging_bytes(switches, stub.top_k, hardware),
        ),
        formats=tuple(dict.fromkeys(_format(switch, stub.dtype) for switch in switches)),
        unused=loaded.unused,
        indirect=indirect,
        tensors=" or ".join(dict.fromkeys(place.layout for place in places.values())),
        guess_kinds=guess_kinds(model.layers[s.layer] for s in switches),
    )
    if len({s.experts for s in switches}) != 1:
        raise ModelNotSupported(f"{name}: its layers have different numbers of experts, which is not supported yet")
    return OpenModel(outline, model, config, switches, places)


def _places(index: Mapping[str, TensorPlace], switches: Sequence[Switch]) -> tuple[dict[int, LayerPlaces], str | None]:
    try:
        return find_places(index, switches), None
    except NotDirect as err:
        return {}, str(err)


def _format(switch: Switch, dtype: str) -> ExpertFormat | Unknown:
    found = format_of(switch.module, switch.geometry)
    return found.with_dtype(dtype) if isinstance(found, ExpertFormat) else found


def _row_bytes(switch: Switch, stub: ShapesOnly) -> int:
    """Per routed row: input, up, gate and activated, output, joined and reordered output, weighted output."""
    expert_width = max(part.shape[0] for part in switch.geometry.parts[:1])
    return stub.item_bytes * (5 * stub.width + 3 * expert_width)


def _token_bytes(trunk: list[mx.array], stub: ShapesOnly) -> int:
    """Per token outside the experts: a few activations as wide as the widest projection (embeddings apart)."""
    rows = sorted(a.shape[0] for a in trunk if a.ndim == 2)
    widest = next((n for n in reversed(rows) if n <= 16 * stub.width), stub.width)
    return stub.item_bytes * (8 * widest + 4 * stub.width)


def _score_bytes(config: dict[str, Any], hardware: Hardware, item_bytes: int) -> int:
    """CPU attention materialises its scores, twice in the softmax; GPU kernels do not.  An indexer that picks what
    attention sees is no kernel anywhere: scores of its heads, before and after, then a sort and a mask."""
    text = config.get("text_config", config)
    sparse = text.get("sparse_attention_config") or {}
    index_heads = int(text.get("index_n_heads") or sparse.get("sparse_num_index_heads") or 0)
    heads = int(text.get("num_attention_heads", 32)) if hardware.backend == "cpu" else 0
    return 2 * (4 * heads + item_bytes * index_heads) + (3 * 4 if index_heads else 0)


def _staging_bytes(switches: list[Switch], top_k: int, hardware: Hardware) -> int:
    if hardware.backend != "cuda":
        return 0
    return sum(top_k * nbytes for nbytes in {s.geometry: s.geometry.payload_bytes for s in switches}.values())
