"""Makes the banks of all layers, and the side buffers of the prefetch backend `stage`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import mlx.core as mx

from streaming_core.errors import SettingsError
from streaming_core.geometry import RecordGeometry
from streaming_core.hardware import Machine
from streaming_core.kernels.fill import FillKernel
from streaming_core.models.switches import Switch
from streaming_core.prefetch import SideBuffers
from streaming_core.residency.arena import Arena, arenas
from streaming_core.residency.bank import Bank, PinnedStage, RowBank, SlotBank, StagedBank
from streaming_core.residency.memory import MemoryPlan

__all__ = ["Banks"]

_MOST = 1 << 31  # elements or bytes of one array; MLX's CPU kernels count some offsets in 32 bits


class Banks:
    """The banks, made one by one in the order of the layers; `sides`: None if no record was asked for."""

    def __init__(
        self, switches: Sequence[Switch], plan: MemoryPlan, machine: Machine, top_k: int, side_records: int
    ) -> None:
        """Raises SettingsError: side buffers need records of one shape."""
        backend = machine.hardware().backend
        self.sides: SideBuffers | None = None
        self._rows: list[RowBank] = []
        streamed = [s for s in switches if s.layer in plan.streamed]
        if side_records and streamed:
            geometry = _one_geometry(streamed)
            slots = plan.slots * len(streamed)
            # Not on Metal, whose choice of kernel for a prompt looks at rows an expert of the array.
            if backend == "cpu" and (slots + side_records) * _largest(geometry) < _MOST:
                whole = _bank(geometry, slots + side_records, machine)
                self._rows = [RowBank(whole, n * plan.slots, plan.slots) for n in range(len(streamed))]
                self.sides = SideBuffers(whole, self._rows)
            elif backend == "cuda":
                self.sides = SideBuffers(_stage(geometry, side_records, machine))
            else:
                self.sides = SideBuffers(_bank(geometry, side_records, machine))
        own = [s for s in switches if s.layer not in plan.streamed] if self._rows else switches
        slots_of = [plan.slots if s.layer in plan.streamed else s.experts for s in own]
        self._own = _staged(own, slots_of, top_k, machine) if backend == "cuda" else _unified(own, slots_of, machine)
        self._taken = iter(self._rows)
        self._streamed = plan.streamed

    def next(self, switch: Switch) -> Bank:
        """The bank of the next layer, `switch`."""
        return next(self._taken if self._rows and switch.layer in self._streamed else self._own)


def _one_geometry(switches: Sequence[Switch]) -> RecordGeometry:
    geometries = {s.geometry for s in switches}
    if len(geometries) > 1:
        raise SettingsError("prefetch.backend stage needs layers whose records have one shape; use slots")
    return geometries.pop()


def _largest(geometry: RecordGeometry) -> int:
    """Bytes of the largest part of a record."""
    return max(part.nbytes for part in geometry.parts)


def _bank(geometry: RecordGeometry, rows: int, machine: Machine) -> SlotBank:
    return SlotBank(geometry, rows, Arena(SlotBank.room(geometry, rows), machine.join_pages))


def _stage(geometry: RecordGeometry, records: int, machine: Machine) -> PinnedStage:
    return PinnedStage(geometry, records, machine.pin(PinnedStage.room(geometry, records)))


def _unified(switches: Sequence[Switch], slots_of: Sequence[int], machine: Machine) -> Iterator[Bank]:
    sizes = [SlotBank.room(s.geometry, slots) for s, slots in zip(switches, slots_of, strict=True)]
    for switch, slots, arena in zip(switches, slots_of, arenas(sizes, machine.join_pages), strict=True):
        yield SlotBank(switch.geometry, slots, arena)


def _staged(switches: Sequence[Switch], slots_of: Sequence[int], top_k: int, machine: Machine) -> Iterator[Bank]:
    stages: dict[RecordGeometry, tuple[PinnedStage, Callable[[dict[str, mx.array], int], mx.array]]] = {}
    for switch, slots in zip(switches, slots_of, strict=True):
        geometry = switch.geometry
        if geometry not in stages:
            stage = _stage(geometry, top_k, machine)
            stages[geometry] = stage, FillKernel(geometry, stage.offsets, stage.address)
        yield StagedBank(geometry, slots, *stages[geometry])
