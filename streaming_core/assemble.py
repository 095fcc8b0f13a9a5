"""Puts a streamed model together: store, banks, tables and switches, as the plan says."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import mlx.core as mx

from streaming_core.banks import Banks
from streaming_core.engine import Engine
from streaming_core.geometry import RecordGeometry
from streaming_core.guessing import make_budget, make_predictor, make_prefetch, observe_inputs
from streaming_core.hardware import Machine
from streaming_core.kernels.cuda_link import CudaLink
from streaming_core.kernels.offer import makers
from streaming_core.kernels.select import make_kernels
from streaming_core.models.direct import check_places
from streaming_core.models.load import weights_read
from streaming_core.models.outline import OpenModel
from streaming_core.models.switches import Switch, put_module
from streaming_core.progress import OnProgress, Progress
from streaming_core.reading import Read, Reader, WatchedReader, make_reader
from streaming_core.residency.bank import Bank
from streaming_core.residency.link import Link, UnifiedLink
from streaming_core.residency.memory import MemoryPlan, stage_records
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
    """The store that `store.layout` names, packed first if it is not there, or where it must be (`outline.indirect`).

    Raises:
        StoreInvalid, DiskFull, ReadError: see the stores and `pack`.
    """
    bypass = settings.reading.page_cache == "bypass"
    outline = opened.outline
    if outline.layout(settings.store.layout) == "checkpoint":
        check_places(outline.folder, opened.switches, opened.places)
        return CheckpointStore(opened.places, machine, bypass=bypass)
    folder = store_folder(cache_dir, outline.name, outline.fingerprint)
    sources = {s.layer: s for s in opened.switches}
    # Not Path.exists: it raises in a folder that may not be searched, and `pack` says what is wrong with one.
    if not all(os.path.exists(folder / path) for path in _layer_names(opened.switches)):

        def report(done: int, total: int) -> None:
            on_progress(Progress("packing experts", done, total))

        with weights_read(outline.folder):
            pack(folder, outline.fingerprint, sources, machine, report, needed=outline.indirect is not None)
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
        link: Link = CudaLink(machine.pin) if backend == "cuda" else UnifiedLink()
        predictor = make_predictor(opened, plan, settings, link, oracle)
        side_records = stage_records(settings) if settings.predict.kind != "none" else 0
        banks = Banks(opened.switches, plan, machine, opened.outline.top_k, side_records)
        prefetch = make_prefetch(plan, settings, reader, machine, banks.sides)
        budget = make_budget(settings)
        engine = Engine(store, reader, predictor, prefetch, budget, link, fewest_rows, queues_work=backend != "cpu")
        engine.kernels = make_kernels(settings.kernels, backend, makers(backend))
        for done, switch in enumerate(opened.switches):
            bank = banks.next(switch)
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
        with weights_read(opened.outline.folder):
            mx.eval(opened.model.parameters())
        mx.synchronize()  # banks may still be filled, on another stream than the model will run on
        if predictor.needs_input and plan.streamed:
            observe_inputs(opened.model, engine)
    except BaseException:
        reader.close()
        store.close()
        raise
    return engine


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
