"""Where each expert's bytes lie in a checkpoint, in the ways that people lay experts out.

Legend: E experts, I expert width, H model width.  Known are:
  stacked             mlp.switch_mlp.gate_proj.weight [E, I, H]
  one per expert      mlp.experts.7.gate_proj.weight [I, H], also w1, w3, w2 for gate, up, down
  fused               mlp.experts.gate_up_proj [E, 2 I, H], gate first; an expert's halves are whole runs of bytes
all with or without a wrapper's prefix.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from streaming_core.geometry import ITEM_BYTES, Part, RecordGeometry
from streaming_core.store.index import TensorPlace

__all__ = ["LayerPlaces", "NotDirect", "PartPlaces", "find_layer"]

_PREFIX = re.compile(r"(?:model\.|language_model\.)*(?=layers\.)")
_NAMES = {"gate_proj": ("gate_proj", "w1"), "up_proj": ("up_proj", "w3"), "down_proj": ("down_proj", "w2")}
_HALVES = {"gate_proj": 0, "up_proj": 1}


class NotDirect(Exception):
    """Experts cannot be read from the checkpoint as it is.  The message says why."""


@dataclass(frozen=True, slots=True)
class PartPlaces:
    """Where a part lies, expert by expert."""

    paths: Sequence[Path]
    offsets: Sequence[int]


@dataclass(frozen=True, slots=True)
class LayerPlaces:
    parts: Sequence[PartPlaces]  # in the geometry's order
    layout: str  # in words
    as_named: bool  # every tensor has the name, shape and type that the model gives it
    read_bytes: int  # of one expert


def find_layer(index: Mapping[str, TensorPlace], prefix: str, experts: int, geometry: RecordGeometry) -> LayerPlaces:
    """Where the experts of the switch at `prefix` lie, by names, shapes and types alone.

    Raises NotDirect when some part is not in the files as the model has it.
    """
    found = [_find_part(index, prefix, experts, part) for part in geometry.parts]
    layouts = dict.fromkeys(layout for _, layout in found)
    as_named = all(f"{prefix}.{part.name}" in index for part in geometry.parts)
    return LayerPlaces([places for places, _ in found], " and ".join(layouts), as_named, geometry.payload_bytes)


def _find_part(index: Mapping[str, TensorPlace], prefix: str, experts: int, part: Part) -> tuple[PartPlaces, str]:
    projection, _, tensor = part.name.partition(".")
    place = _in_any_prefix(index, f"{prefix}.{part.name}")
    if place is not None:
        return _stacked(place, f"{prefix}.{part.name}", part, (experts, *part.shape), 0), "stacked tensors"
    block = prefix.rpartition(".")[0]
    for name in _NAMES.get(projection, (projection,)):
        first = f"{block}.experts.0.{name}.{tensor}"
        if _in_any_prefix(index, first) is not None:
            names = [f"{block}.experts.{expert}.{name}.{tensor}" for expert in range(experts)]
            return _one_per_expert(index, names, part), "one tensor per expert"
    for name in _fused_names(block, projection, tensor):
        place = _in_any_prefix(index, name)
        if place is not None:
            halves = 2 if projection in _HALVES else 1
            shape = (experts, halves * part.shape[0], *part.shape[1:])
            return _stacked(place, name, part, shape, _HALVES.get(projection, 0)), "gate and up in one tensor"
    raise NotDirect(f"no tensor {prefix}.{part.name}, mlx-lm builds it while loading")


def _fused_names(block: str, projection: str, tensor: str) -> Iterator[str]:
    name = "gate_up_proj" if projection in _HALVES else projection
    for container in ("experts", "switch_mlp"):
        yield f"{block}.{container}.{name}.{tensor}"
        if tensor == "weight":
            yield f"{block}.{container}.{name}"


def _in_any_prefix(index: Mapping[str, TensorPlace], name: str) -> TensorPlace | None:
    """The tensor of this name, or the only one that differs from it in a wrapper's prefix."""
    if name in index:
        return index[name]
    tail = _PREFIX.sub("", name, count=1)
    heads = ("", "model.", "language_model.", "language_model.model.", "model.language_model.")
    found = [index[head + tail] for head in heads if head + tail in index]
    if len(found) > 1:
        raise NotDirect(f"{tail} is there under {len(found)} prefixes")
    return found[0] if found else None


def _stacked(place: TensorPlace, name: str, part: Part, shape: tuple[int, ...], piece: int) -> PartPlaces:
    """`piece` counts an expert's runs of bytes: 1 is the second half of a fused tensor."""
    _check(place, name, part, shape)
    experts = shape[0]
    stride = place.nbytes // experts
    begin = place.offset + piece * part.nbytes
    return PartPlaces([place.path] * experts, range(begin, begin + experts * stride, stride))


def _one_per_expert(index: Mapping[str, TensorPlace], names: Sequence[str], part: Part) -> PartPlaces:
    paths, offsets = [], []
    for name in names:
        place = _in_any_prefix(index, name)
        if place is None:
            raise NotDirect(f"no tensor {name}, though other experts have theirs")
        _check(place, name, part, part.shape)
        paths.append(place.path)
        offsets.append(place.offset)
    return PartPlaces(paths, offsets)


def _check(place: TensorPlace, name: str, part: Part, shape: tuple[int, ...]) -> None:
    if (place.dtype, place.shape) != (part.dtype, shape):
        raise NotDirect(
            f"{name} is {place.dtype} {list(place.shape)} on disk and would be {part.dtype} {list(shape)} "
            "in the model, mlx-lm converts it while loading"
        )
    if place.nbytes != ITEM_BYTES[part.dtype] * math.prod(shape):
        raise NotDirect(f"{name} has {place.nbytes} bytes, which do not fit its shape")
