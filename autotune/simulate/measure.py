"""Measures what the simulation of time needs, on this machine: a layer that misses nothing, a miss, a read.

None of it is fitted to a run that is predicted.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from autotune.errors import RequestInvalid
from autotune.prepare import Place
from autotune.replay import ForcedTokens
from autotune.simulate.costs import TokenCosts
from autotune.simulate.disk import DiskTable
from streaming_core.assemble import open_store
from streaming_core.errors import BudgetTooSmall
from streaming_core.fill import Fill
from streaming_core.hardware import default_budget_bytes
from streaming_core.models.outline import ModelOutline, open_model
from streaming_core.models.switches import Switch
from streaming_core.prefetch import NoPrefetch
from streaming_core.progress import ignore
from streaming_core.reading import NullReader, Read, Reader, make_reader
from streaming_core.residency.bank import Bank, SlotBank
from streaming_core.residency.policy import make_policy
from streaming_core.residency.table import SlotTable
from streaming_core.runtime import StreamedModel, load, plan
from streaming_core.settings import Settings
from streaming_core.store import Store
from streaming_core.testing import prompts
from streaming_core.trace import Stats

__all__ = ["ComputeTimes", "ReadTimes", "costs_of", "measure_compute", "measure_reads"]

_BANK_BYTES = 256 << 20  # of memory that the measured reads land in, at most
_LAYERS = 4  # whose records are read
_REPEATS = 40  # of every number of misses
_PAUSE_S = 0.001  # between two fills, as there is a layer's computation in a run: reader threads go to sleep meanwhile
_PROMPT = 128  # tokens, so that experts are in their slots before anything is timed


@dataclass(frozen=True, slots=True)
class ComputeTimes:
    """Medians over decoded tokens, in seconds; a layer's over those calls that missed nothing."""

    layer_s: dict[int, float]
    outside_s: float
    resident_saves_s: float  # 0 where the model does not fit into memory whole


@dataclass(frozen=True, slots=True)
class ReadTimes:
    """Misses on their way through table, store and reader."""

    miss_s: float
    disk: DiskTable


def costs_of(compute: ComputeTimes, reads: ReadTimes) -> TokenCosts:
    return TokenCosts(
        layer_s=compute.layer_s,
        outside_s=compute.outside_s,
        resident_saves_s=compute.resident_saves_s,
        miss_s=reads.miss_s,
        disk=reads.disk,
    )


def measure_compute(
    outline: ModelOutline, settings: Settings, place: Place, tokens: int = 40, seed: int = 1
) -> ComputeTimes:
    """Decodes with as many experts in memory as the budget allows, guesses made and not acted upon.

    Raises RequestInvalid: some layer never had all it asked for.
    """
    hits: dict[int, list[float]] = {layer: [] for layer in outline.layers}
    outside: list[float] = []
    whole: list[float] = []
    with _loaded(outline, settings, place, {"residency.resident_layers": "none"}) as streamed:
        for stats, seconds in _tokens(streamed, tokens, seed):
            outside.append(seconds - sum(row.elapsed_s for row in stats.layers))
            whole.append(seconds - stats.wait_s)
            for row in stats.layers:
                if not row.misses:
                    hits[row.layer].append(row.elapsed_s)
    if lacking := [layer for layer, seen in hits.items() if not seen]:
        raise RequestInvalid(
            f"layer {lacking[0]} missed some expert in each of {tokens} tokens, so what computing takes cannot be told "
            "from reading; raise --budget, or leave times out with --counts-only"
        )
    saves_s = 0.0
    try:
        changes = {"residency.resident_layers": "all", "residency.slots": "all", "predict.kind": "none"}
        with _loaded(outline, settings, place, changes) as resident:
            computing = statistics.median(seconds for _, seconds in _tokens(resident, tokens, seed))
        saves_s = max(0.0, statistics.median(whole) - computing) / len(outline.layers)
    except BudgetTooSmall:
        pass
    layer_s = {layer: statistics.median(seen) for layer, seen in hits.items()}
    return ComputeTimes(layer_s, max(0.0, statistics.median(outside)), saves_s)


@contextmanager
def _loaded(
    outline: ModelOutline, settings: Settings, place: Place, changes: dict[str, str]
) -> Iterator[StreamedModel]:
    wanted = settings.with_values({"prefetch.backend": "none", "residency.slots": "all", **changes})
    if wanted.predict.kind == "oracle":
        wanted = wanted.with_values({"predict.kind": "none"})
    budget = wanted.memory.budget or default_budget_bytes(place.machine.hardware(), place.machine.memory())
    try:
        plan(outline, wanted.with_values({"memory.budget": budget}), place.machine)
    except BudgetTooSmall:
        if "residency.slots" in changes:
            raise
        wanted = wanted.with_values({"residency.slots": "auto"})
    with load(outline.folder, wanted, cache_dir=place.cache_dir, machine=place.machine) as model:
        yield model


def _tokens(model: StreamedModel, tokens: int, seed: int) -> Iterator[tuple[Stats, float]]:
    """What each decoded token counted, and how long it took."""
    text = " ".join(prompts(8, 200, seed=seed))
    known = list(model.tokenizer.encode(text))
    context = model.settings.memory.context - tokens - 3
    prompt = (known * 9)[: min(context, _PROMPT)]
    forced = (known * 9)[7 : 7 + tokens + 2]
    stream = model.stream(prompt, len(forced), sampler=ForcedTokens(forced))
    next(stream)
    for _ in range(tokens):
        model.reset_stats()
        started = time.perf_counter()
        if next(stream, None) is None:
            return
        yield model.stats(), time.perf_counter() - started


# ---- misses ----------------------------------------------------------------------------------------------------------


def measure_reads(outline: ModelOutline, settings: Settings, place: Place, seed: int = 0) -> ReadTimes:
    """Fills slots with random records, 1, 2, 4, ... up to top-k at once, through the reader that the settings name.

    Once more without reading: that is the host's share.  Raises ReadError, StoreInvalid, DiskFull.
    """
    opened = open_model(outline.folder, outline.name, place.machine.hardware())
    store = open_store(opened, settings, place.cache_dir, place.machine, ignore)
    reader = make_reader(settings.reading)
    try:
        chosen = opened.switches[:: max(1, len(opened.switches) // _LAYERS)][:_LAYERS]
        layers = [_FilledLayer(switch, store, settings, outline.top_k) for switch in chosen]
        counts = sorted({min(outline.top_k, 1 << n) for n in range(outline.top_k.bit_length() + 1)})
        for layer in layers:  # memory is touched, and the records are as warm as they get
            layer.fill(layer.table.slots, reader, random.Random(seed))
        whole = {count: _median_s(layers, count, reader, seed) for count in counts}
        host = {count: _median_s(layers, count, NullReader(), seed) for count in counts}
        miss_s = host[counts[-1]] / counts[-1]
        reading = {count: max(0.0, whole[count] - miss_s * count) for count in counts}
        return ReadTimes(miss_s, DiskTable({store.read_bytes(layers[0].number): reading}))
    finally:
        reader.close()
        store.close()


def _median_s(layers: Sequence[_FilledLayer], count: int, reader: Reader, seed: int) -> float:
    rng = random.Random(seed)
    found = []
    for number in range(_REPEATS):
        time.sleep(_PAUSE_S)
        found.append(layers[number % len(layers)].fill(count, reader, rng))
    return statistics.median(found)


class _FilledLayer:
    """A layer without a model: table, slots and store."""

    def __init__(self, switch: Switch, store: Store, settings: Settings, top_k: int) -> None:
        room = max(1, _BANK_BYTES // _LAYERS // switch.geometry.payload_bytes)
        slots = min(switch.experts, max(top_k, min(4 * top_k, room)))
        self.number = switch.layer
        policy = make_policy(settings.residency.policy, settings.residency.half_life)
        self.table = SlotTable(switch.experts, slots, policy)
        self.bank: Bank = SlotBank(switch.geometry, slots)
        self._store = store
        self._row_of = np.zeros(switch.experts, np.uint32)

    def reads(self, expert: int, views: Sequence[memoryview]) -> list[Read]:
        return self._store.reads(self.number, expert, views)

    def place(self, expert: int, slot: int) -> None:
        self._row_of[expert] = self.bank.row(slot)

    def fill(self, count: int, reader: Reader, rng: random.Random) -> float:
        """Seconds for so many misses."""
        absent = [e for e in range(self.table.experts) if e not in self.table]
        if len(absent) < count:
            self.table.clear()
            absent = list(range(self.table.experts))
        wanted = rng.sample(absent, count)
        started = time.perf_counter()
        planned = self.table.plan(wanted)
        for miss in planned.misses:
            self.place(miss.expert, miss.slot)
        Fill(self, reader, NoPrefetch(), planned).finish()
        self.table.release(planned)
        return time.perf_counter() - started
