"""Replays a recorded run under other settings, through the runtime's own tables, policies, backends and budgets.

What `streaming_core.layer` does with arrays around them is repeated here call by call, without arrays.  Hits, misses
and demand bytes are exact where nothing is fetched on a guess.  With guesses, what depends on when a read arrives is
exact only for reads that take no time: how many fit into `prefetch.depth` and the side buffers, and which can be taken
back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import numpy as np

from autotune.simulate.costs import NO_COSTS, TokenCosts
from autotune.simulate.guesses import Ranked, guesses_of
from autotune.simulate.virtual import VirtualReader
from streaming_core.errors import TraceInvalid
from streaming_core.fill import Fill
from streaming_core.geometry import RecordGeometry
from streaming_core.guessing import make_budget
from streaming_core.layer_set import LayerSet
from streaming_core.prefetch import (
    AdvisePrefetch,
    GuessReads,
    NoPrefetch,
    PassBudget,
    Prefetch,
    SideBuffers,
    SlotPrefetch,
    StagePrefetch,
)
from streaming_core.reading import Read, RecordFile
from streaming_core.residency.bank import Bank
from streaming_core.residency.memory import MemoryPlan, stage_records
from streaming_core.residency.policy import make_policy
from streaming_core.residency.table import Plan, SlotTable
from streaming_core.route_trace import Asked, PassRecord, RouteTrace
from streaming_core.settings import Settings
from streaming_core.trace import LayerCounters
from streaming_core.waves import split_waves

if TYPE_CHECKING:
    import mlx.core as mx

__all__ = ["PassCost", "Simulated", "simulate"]


@dataclass(slots=True)
class PassCost:
    """One forward pass."""

    tokens: int
    counted: bool
    misses: dict[int, int] = field(default_factory=dict)  # by layer
    seconds: float = 0.0  # 0 without costs
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Simulated:
    """A run that was not made: sums over the passes that the trace counts."""

    layers: Mapping[int, LayerCounters]
    passes: Sequence[PassCost]

    def total(self, name: str) -> int:
        """`hits`, `misses`, `demand_bytes`, `prefetch_bytes`, `guessed` or `guesses_used`, over all layers."""
        return sum(getattr(counters, name) for counters in self.layers.values())

    @property
    def tokens(self) -> int:
        return sum(each.tokens for each in self.passes if each.counted)

    @property
    def hit_rate(self) -> float:
        asked = self.total("hits") + self.total("misses")
        return self.total("hits") / asked if asked else 1.0

    @property
    def seconds(self) -> float:
        return sum(each.seconds for each in self.passes if each.counted)

    @property
    def wait_s(self) -> float:
        return sum(each.wait_s for each in self.passes if each.counted)

    @property
    def wasted_bytes(self) -> int:
        """Read on guesses that the call they were made for did not ask for."""
        return sum(counters.wasted_bytes for counters in self.layers.values())


def simulate(
    trace: RouteTrace,
    settings: Settings,
    plan: MemoryPlan,
    read_bytes: Mapping[int, int],
    costs: TokenCosts = NO_COSTS,
) -> Simulated:
    """Replays `trace` under `settings`, whose memory plan is `plan`.

    Args:
        read_bytes: of one record, by layer; as `Store.read_bytes` says.
        costs: without them all guesses arrive at once and nothing takes time.

    Raises:
        TraceInvalid: the trace lacks layers or guesses that the settings need.
    """
    if missing := set(plan.streamed) - trace.layers:
        raise TraceInvalid(
            f"the trace says nothing of layers {LayerSet.of(missing)}, which were not streamed when it was recorded; "
            "record it with --set residency.resident_layers=none --set residency.slots=all"
        )
    return _Replay(trace, settings, plan, read_bytes, costs).run()


class _NoBytes:
    """Memory for any number of records, none of which has parts."""

    def __init__(self, slots: int) -> None:
        self.geometry = RecordGeometry(())
        self.arrays: dict[str, mx.array] = {}
        self.batch = slots

    def row(self, slot: int) -> int:
        return slot

    def destinations(self, slots: Sequence[int]) -> list[list[memoryview]]:
        return [[] for _ in slots]

    def exchange(self, slot: int, row: int) -> int | None:
        return None

    def commit(self, slots: Sequence[int]) -> None:
        return


class _Layer:
    """As much of a streamed layer as the backends see."""

    def __init__(self, number: int, table: SlotTable, bank: _NoBytes) -> None:
        self.number = number
        self.table = table
        self.bank: Bank = bank
        self.counters = {True: LayerCounters(), False: LayerCounters()}  # of counted passes and of the others
        nowhere = cast(RecordFile, SimpleNamespace(fd=-1))
        self._read = Read(nowhere, 0, (), f"layer {number}", number)

    def reads(self, expert: int, views: Sequence[memoryview]) -> list[Read]:
        return [self._read]

    def place(self, expert: int, slot: int) -> None:
        return


class _Replay:
    def __init__(
        self,
        trace: RouteTrace,
        settings: Settings,
        plan: MemoryPlan,
        read_bytes: Mapping[int, int],
        costs: TokenCosts,
    ) -> None:
        self._trace = trace
        self._costs = costs
        self._read_bytes = read_bytes
        self._reader = VirtualReader(costs.disk, read_bytes, settings.reading.guess_threads)
        self._prefetch = _prefetch(settings, self._reader)
        self._guesses = guesses_of(trace, settings, plan.streamed)
        self._budget = make_budget(settings)
        self._left: PassBudget = self._budget.begin_pass()
        self._layers: dict[int, _Layer] = {}
        for number in plan.streamed:
            policy = make_policy(settings.residency.policy, settings.residency.half_life)
            table = SlotTable(trace.experts, plan.slots, policy)
            self._layers[number] = _Layer(number, table, _NoBytes(plan.slots))
        self._counted = False
        resident = len(trace.layers) - len(plan.streamed)
        # Time that belongs to no streamed layer, resident ones included.
        self._outside_s = costs.outside_s + sum(
            seconds for number, seconds in costs.layer_s.items() if number not in self._layers
        )
        self._outside_s = max(0.0, self._outside_s - resident * costs.resident_saves_s)

    def run(self) -> Simulated:
        passes = [self._pass(step) for step in self._trace.passes]
        return Simulated({n: layer.counters[True] for n, layer in self._layers.items()}, passes)

    def _pass(self, step: PassRecord) -> PassCost:
        cost = PassCost(step.tokens, step.counted)
        began_s, waited_s = self._reader.now_s, self._reader.waited_s
        self._counted = step.counted
        self._left = self._budget.begin_pass()
        self._guesses.begins_pass(step)
        for asked in step.asked:
            if (layer := self._layers.get(asked.layer)) is not None:
                before = layer.counters[step.counted].misses
                self._call(layer, asked)
                cost.misses[layer.number] = layer.counters[step.counted].misses - before
        self._reader.now_s += self._outside_s
        for number, layer in self._layers.items():
            arrived = self._prefetch.arrived(number)
            layer.counters[step.counted].guesses_read += arrived
            layer.counters[step.counted].prefetch_bytes += arrived * self._read_bytes[number]
        cost.seconds = self._reader.now_s - began_s
        cost.wait_s = self._reader.waited_s - waited_s
        return cost

    # ---- as StreamedLayer does ---------------------------------------------------------------------------------------

    def _call(self, layer: _Layer, asked: Asked) -> None:
        counters = layer.counters[self._counted]
        if (own := self._guesses.own(layer.number)) is not None:
            self._act(layer.number, own)
        self._reader.now_s += self._costs.layer_s.get(layer.number, 0.0)
        guesses = self._guesses.made(layer.number, asked.experts)
        expected = self._prefetch.expects(layer, asked.experts)
        counters.calls += 1
        counters.guesses_used += len(expected)
        if len(asked.experts) > layer.table.slots:
            self._prefetch.collect(layer, expected)
            self._act_all(guesses)
            self._in_waves(layer, asked)
        else:
            self._fetch(layer, asked.experts, expected)
            self._act_all(guesses)
        self._prefetch.leave(layer)

    def _fetch(self, layer: _Layer, experts: Sequence[int], expected: Sequence[int]) -> None:
        plan = layer.table.plan(experts)
        self._finish(layer, self._begin(layer, plan))
        lost = self._prefetch.collect(layer, expected) if expected else []
        layer.table.release(plan)
        if lost:
            again = layer.table.plan(lost)
            self._finish(layer, self._begin(layer, again))
            layer.table.release(again)

    def _in_waves(self, layer: _Layer, asked: Asked) -> None:
        table = layer.table
        rows = np.repeat(asked.experts, asked.rows) if asked.rows else np.array(asked.experts)
        waves = split_waves(rows, table, most=max(1, table.slots // 2))
        held = [table.plan(waves[0].experts)]
        fill = self._begin(layer, held[-1])
        for number in range(len(waves)):
            self._finish(layer, fill)
            if number + 1 < len(waves):
                if len(held) == 2 or table.slots == 1:
                    table.release(held.pop(0))
                held.append(table.plan(waves[number + 1].experts))
                fill = self._begin(layer, held[-1])
        for plan in held:
            table.release(plan)

    def _begin(self, layer: _Layer, plan: Plan) -> Fill:
        counters = layer.counters[self._counted]
        counters.hits += plan.hits
        counters.misses += len(plan.misses)
        self._reader.now_s += self._costs.miss_s * len(plan.misses)
        return Fill(layer, self._reader, self._prefetch, plan)

    def _finish(self, layer: _Layer, fill: Fill) -> None:
        if not fill.plan.misses:
            return
        counters = layer.counters[self._counted]
        demanded = fill.finish()
        counters.guesses_used += len(fill.plan.misses) - demanded
        counters.demand_bytes += demanded * self._read_bytes[layer.number]

    # ---- as Engine does ----------------------------------------------------------------------------------------------

    def _act_all(self, guesses: Sequence[tuple[int, Ranked]]) -> None:
        for target, ranked in guesses:
            self._act(target, ranked)

    def _act(self, target: int, ranked: Ranked) -> None:
        layer, prefetch = self._layers[target], self._prefetch
        chosen = self._left.choose(target, ranked, lambda expert: prefetch.absent(layer, expert))
        begun = prefetch.fetch(layer, chosen, {expert for expert, _ in ranked}) if chosen else 0
        self._left.spend(begun)
        layer.counters[self._counted].guessed += begun


def _prefetch(settings: Settings, reader: VirtualReader) -> Prefetch:
    backend = settings.prefetch.backend
    if backend == "none" or settings.predict.kind == "none":
        return NoPrefetch()
    if backend == "advise":
        return AdvisePrefetch(lambda fd, offset, nbytes: None)
    reads = GuessReads(reader, settings.prefetch.depth)
    if backend == "slots":
        return SlotPrefetch(reads)
    return StagePrefetch(reads, SideBuffers(_NoBytes(stage_records(settings))))
