"""Puts a streamed model together: store, banks, tables and switches, as the plan says."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import mlx.core as mx

from streaming_core.engine import Engine
from streaming_core.geometry import RecordGeometry
from streaming_core.guessing import make_budget, make_predictor, make_prefetch, observe_inputs
from streaming_core.hardware import Machine
from streaming_core.kernels.offer import makers
from streaming_core.kernels.select import make_kernels
from streaming_core.models.outline import OpenModel
from streaming_core.models.switches import Switch, put_module
from streaming_core.progress import OnProgress, Progress
from streaming_core.reading import Read, Reader, WatchedReader, make_reader
from streaming_core.residency.arena import Arena, JoinPages, arenas
from streaming_core.residency.bank import Bank, SlotBank, StagedBank
from streaming_core.residency.memory import MemoryPlan
from streaming_core.residency.policy import make_policy
from streaming_core.residency.table import SlotTable
from streaming_core.settings import Settings
from streaming_core.store import CheckpointStore, PackedStore, Store, pack
from streaming_core.switch import StreamedSwitch

__all__ = ["assemble", "open_store", "store_folder"]

_LOAD_BATCH = 64  # records of a resident layer asked for at once
# From 17 rows on, CUDA's gather_qmm gives each row the same bits however many rows there are; with 1 or 3 it does not
# (docs/log.md).  64 is also where mlx-lm begins to sort.
_GPU_ROWS = 64


def store_folder(cache_dir: Path, name: str, fingerprint: str) -> Path:
    """Where the packed records of a checkpoint are kept."""
    safe = "".join(c if c.isalnum() or c in "-._" else "-" for c in name.strip("/").rpartition("/")[2])
    return cache_dir / "stores" / f"{safe or 'model'}-{fingerprint}"


def open_store(
    opened: OpenModel, settings: Settings, cache_dir: Path, machine: Machine, on_progress: OnProgress
) -> Store:
    """The store that `store.layout` names, packed first if it is not there.

    Raises:
        StoreInvalid, DiskFull, ReadError: see the stores and `pack`.
    """
    bypass = settings.reading.page_cache == "bypass"
    outline = opened.outline
    if settings.store.layout == "checkpoint":
        wanted = {s.layer: (s.path, s.experts, s.geometry) for s in opened.switches}
        return CheckpointStore(outline.folder, wanted, machine, bypass=bypass)
    folder = store_folder(cache_dir, outline.name, outline.fingerprint)
    sources = {s.layer: s for s in opened.switches}
    # Not Path.exists: it raises in a folder that may not be searched, and `pack` says what is wrong with one.
    if not all(os.path.exists(folder / path) for path in _layer_names(opened.switches)):

        def report(done: int, total: int) -> None:
            on_progress(Progress("packing experts", done, total))

        pack(folder, outline.fingerprint, sources, machine, report)
    geometry: Mapping[int, RecordGeometry] = {s.layer: s.geometry for s in opened.switches}
    return PackedStore(folder, outline.fingerprint, geometry, machine, bypass=bypass)


def _layer_names(switches: Sequence[Switch]) -> list[str]:
    return [f"layer-{s.layer:04d}.records" for s in switches]


def assemble(
    opened: OpenModel,
    plan: MemoryPlan,
    settings: Settings,
    store: Store,
    machine: Machine,
    oracle: Sequence[Mapping[int, Sequence[int]]] | None,
    on_progress: OnProgress,
) -> Engine:
    """Fills resident layers, makes banks for the others, puts the switches in.  The engine owns `store` then."""
    backend = machine.hardware().backend
    fewest_rows = 1 if backend == "cpu" else _GPU_ROWS
    reader = WatchedReader(make_reader(settings.reading))
    try:
        predictor = make_predictor(opened, plan, settings, oracle)
        prefetch = make_prefetch(opened, plan, settings, reader, machine)
        budget = make_budget(settings)
        engine = Engine(store, reader, predictor, prefetch, budget, fewest_rows, queues_work=backend != "cpu")
        engine.kernels = make_kernels(settings.kernels, backend, makers(backend))
        slots_of = [plan.slots if s.layer in plan.streamed else s.experts for s in opened.switches]
        if backend == "cuda":
            banks = _staged(opened.switches, slots_of, opened.outline.top_k)
        else:
            banks = _unified(opened.switches, slots_of, machine.join_pages)
        for done, (switch, bank) in enumerate(zip(opened.switches, banks, strict=True)):
            switch.adopt(bank.arrays)
            experts = engine.kernels.wrap(switch.layer, switch.module, switch.geometry)
            if switch.layer in plan.streamed:
                policy = make_policy(settings.residency.policy, settings.residency.half_life)
                table = SlotTable(switch.experts, plan.slots, policy)
                module = StreamedSwitch(switch.layer, experts, table, bank, engine)
                put_module(opened.model, switch.path, module)
            else:
                _fill(bank, switch, store, reader)
                put_module(opened.model, switch.path, experts)
            on_progress(Progress("loading experts", done + 1, len(opened.switches), "layers"))
        mx.eval(opened.model.parameters())
        if predictor.needs_input and plan.streamed:
            observe_inputs(opened.model, engine)
    except BaseException:
        reader.close()
        store.close()
        raise
    return engine


def _unified(switches: Sequence[Switch], slots_of: Sequence[int], join_pages: JoinPages) -> Iterator[Bank]:
    sizes = [SlotBank.room(s.geometry, slots) for s, slots in zip(switches, slots_of, strict=True)]
    for switch, slots, arena in zip(switches, slots_of, arenas(sizes, join_pages), strict=True):
        yield SlotBank(switch.geometry, slots, arena)


def _staged(switches: Sequence[Switch], slots_of: Sequence[int], top_k: int) -> Iterator[Bank]:
    stages: dict[RecordGeometry, SlotBank] = {}
    for switch, slots in zip(switches, slots_of, strict=True):
        if switch.geometry not in stages:
            arena = Arena(SlotBank.room(switch.geometry, top_k), migrates=True)
            stages[switch.geometry] = SlotBank(switch.geometry, top_k, arena)
        yield StagedBank(switch.geometry, slots, stages[switch.geometry])


def _fill(bank: Bank, switch: Switch, store: Store, reader: Reader) -> None:
    """Reads a whole layer: expert e into slot e."""
    step = min(bank.batch, _LOAD_BATCH)
    for first in range(0, switch.experts, step):
        slots = range(first, min(first + step, switch.experts))
        reads: list[Read] = []
        for expert, views in zip(slots, bank.destinations(slots), strict=True):
            reads += store.reads(switch.layer, expert, views)
        reader.wait(reader.submit(reads))
        bank.commit(slots)
