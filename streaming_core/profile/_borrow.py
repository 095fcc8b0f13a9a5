"""Settings of one machine on another: how near the two are, and what may travel.

Nothing here is a list of chips.  What counts is what a machine can do: backend, make, memory, speed of its disk.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from streaming_core.hardware import Hardware, MemoryState, default_budget_bytes
from streaming_core.profile._entry import Entry
from streaming_core.settings import Settings
from streaming_core.units import MIB, format_size

__all__ = ["Room", "borrowed", "distance", "fitted", "incompatible", "room_of", "ssd_gb_per_s"]

_OTHER_CHIP = 0.25  # as far as a fifth more memory: on one backend, memory and disk decide more than the chip does
_SSD_WEIGHT = 0.5
# Evidence may hold any number.
_FASTEST = 1e15  # bytes per second
_LARGEST = 1 << 50  # bytes of memory
# What a larger machine may have more of than a smaller one can hold.
_GROWS = ("residency.slots", "residency.resident_layers", "prefill.chunk", "memory.mlx_cache", "memory.context")
_OF_CHECKPOINT = ("residency.slots", "residency.resident_layers")  # another may have fewer experts, or other layers


def incompatible(there: Hardware, here: Hardware) -> str | None:
    """Why nothing that was measured there is worth trying here, in a few words; None when it is."""
    for name in ("backend", "system"):
        mine, theirs = getattr(there, name), getattr(here, name)
        if mine != theirs:
            return f"{name} {mine!r} there, {theirs!r} here"
    mine, theirs = _make(there), _make(here)
    return None if mine == theirs else f"{mine} there, {theirs} here"


def _make(hardware: Hardware) -> str:
    """Who made what computes.  Metal is one maker's; elsewhere brands begin with it."""
    if hardware.backend == "metal":
        return "apple"
    brand = hardware.gpu if hardware.backend == "cuda" and hardware.gpu else hardware.chip
    words = brand.replace("(R)", " ").lower().split()
    return words[0] if words else "unknown"


def _memory(hardware: Hardware) -> int:
    return (hardware.backend == "cuda" and hardware.gpu_memory_bytes) or max(1, hardware.memory_bytes)


def distance(there: Hardware, here: Hardware, ssd_there: float | None = None, ssd_here: float | None = None) -> float:
    """0 for the same; 1 for twice the memory.  Disks count where both were measured."""
    far = abs(math.log2(_memory(there) / _memory(here)))
    chips = (there.gpu, here.gpu) if here.backend == "cuda" else (there.chip, here.chip)
    if chips[0] != chips[1]:
        far += _OTHER_CHIP
    if ssd_there and ssd_here:
        far += _SSD_WEIGHT * abs(math.log2(ssd_there / ssd_here))
    return far


def ssd_gb_per_s(probe: Mapping[str, Any] | None) -> float | None:
    """The best speed in a profile's disk table that was not the system's cache; None when it tells none."""
    rows = None if probe is None else probe.get("disk")
    found = [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
    speeds = [row.get("bytes_per_s") for row in found if row.get("state") != "cached"]
    return max((each / 1e9 for each in speeds if isinstance(each, (int, float)) and 0 < each < _FASTEST), default=None)


@dataclass(frozen=True, slots=True)
class Room:
    """Memory of this machine: what it has, and what a run may take of it now."""

    total_bytes: int
    free_bytes: int


def room_of(here: Hardware, memory: MemoryState) -> Room:
    return Room(_memory(here), max(MIB, default_budget_bytes(here, memory)))


def fitted(settings: Settings, room: Room) -> tuple[Settings, list[str]]:
    """This machine's own settings: no budget beyond what is installed."""
    if (settings.memory.budget or 0) <= room.total_bytes:
        return settings, []
    settings, notes = _within(settings, room)
    settings, more = _reset(settings, _GROWS, "that is more than this machine has")
    return settings, notes + more


def borrowed(entry: Entry, there: Hardware, room: Room, fingerprint: str | None) -> tuple[Settings, list[str]]:
    """Another machine's settings, and what was changed in words.

    Counts that belong to a checkpoint travel only to the checkpoint with this `fingerprint`; what takes memory travels
    only where a run may take as much as it took there.
    """
    settings, notes = _within(entry.settings, room)
    took = _took(entry, there)
    more: list[str] = []
    if took > room.free_bytes:
        reason = f"it took {format_size(took)}, a run here may take {format_size(room.free_bytes)}"
        settings, more = _reset(settings, _GROWS, reason)
    elif fingerprint != entry.fingerprint:
        reason = "the checkpoint is not known to be the same" if fingerprint is None else "the checkpoint is another"
        settings, more = _reset(settings, _OF_CHECKPOINT, reason)
    if settings.reading.reader == "native":  # it may not have been built here
        settings = settings.with_values({"reading.reader": "auto"})
    return settings, notes + more


def _took(entry: Entry, there: Hardware) -> int:
    """What the settings took there where that was written down, else the most that they may have had."""
    for name in ("tuned", "forecast", "default"):
        side = entry.evidence.get(name)
        if isinstance(side, Mapping) and (needed := _size(side.get("needed_bytes"))):
            return needed
    budget = _size(entry.settings.memory.budget) or _size(entry.evidence.get("budget_bytes"))
    return budget or default_budget_bytes(there, MemoryState(None))


def _size(value: object) -> int | None:
    return value if type(value) is int and 0 < value <= _LARGEST else None


def _within(settings: Settings, room: Room) -> tuple[Settings, list[str]]:
    budget = settings.memory.budget
    if budget is None or budget <= room.free_bytes:
        return settings, []
    lower = replace(settings, memory=replace(settings.memory, budget=room.free_bytes))
    return lower, [f"memory.budget {format_size(budget)} there, {format_size(room.free_bytes)} here"]


def _reset(settings: Settings, keys: tuple[str, ...], reason: str) -> tuple[Settings, list[str]]:
    """Back to the default, unless that is more."""
    default = Settings()
    back = {key: default.get(key) for key in keys if _exceeds(settings.get(key), default.get(key))}
    if not back:
        return settings, []
    return settings.with_values(back), [f"{', '.join(back)} as by default: {reason}"]


def _exceeds(value: Any, default: Any) -> bool:
    return bool(value > default) if isinstance(value, int) and isinstance(default, int) else bool(value != default)
