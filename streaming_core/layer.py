"""One streamed layer at work: sync, plan, read, compute.

Legend: T tokens of a call (all leading axes together), K experts per token, E experts, S slots, D model width.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from streaming_core.engine import Engine
from streaming_core.fill import Fill
from streaming_core.reading import Read
from streaming_core.residency.bank import Bank
from streaming_core.residency.table import Plan, SlotTable
from streaming_core.trace import LayerCounters
from streaming_core.waves import Wave, split_waves

__all__ = ["StreamedLayer"]

# A result this small is kept until the next call, so that slots it may still read are not overwritten; a larger one is
# evaluated at once instead, because keeping it would hold a prompt chunk's activations for every layer.
_KEEP_BYTES = 1 << 20
_CALLS_REMEMBERED = 8


class StreamedLayer:
    """One MoE layer whose experts come and go.  Layers are made in the order in which a pass meets them."""

    def __init__(
        self,
        number: int,
        engine: Engine,
        table: SlotTable,
        bank: Bank,
        experts: Callable[[mx.array, mx.array], mx.array],
    ) -> None:
        """`experts(x [..., D], rows [..., K]) -> [..., K, D]` computes over rows of the bank's arrays."""
        self.number = number
        self.table = table
        self.bank = bank
        self._first_of_pass = not engine.counters
        self.counters = engine.counters[number] = LayerCounters()
        engine.layers[number] = self
        self._engine = engine
        self._experts = experts
        self._row_of = engine.link.table(table.experts)
        self._last: mx.array | None = None
        self._complete = 0.0  # the share of calls of late whose experts were all there

    def __call__(self, x: mx.array, indices: mx.array) -> mx.array:
        """x [..., D], indices [..., K] (any integer type, unsorted, may repeat) -> [..., K, D]."""
        engine = self._engine
        if self._first_of_pass and engine.first_observed is None:
            engine.begin_pass(indices.size // indices.shape[-1])
        if engine.unneeded_layer == self.number:
            return mx.zeros((*indices.shape, x.shape[-1]), dtype=x.dtype)
        engine.note(engine.predictor.sees_router_input(self.number, x))
        guesses = engine.take_guesses(self.number)
        answer = engine.link.send(indices)
        arrays = [*answer.arrays, *(array for guess in guesses for array in guess.arrays)]
        if engine.queues_work:
            mx.async_eval(*arrays)  # type: ignore[no-untyped-call]
        engine.act_on_own(self.number)
        early = self._run_early(x, indices)  # after it nothing changes the table before the plan does
        started = time.perf_counter()
        mx.eval(*arrays)
        self.counters.sync_s += time.perf_counter() - started
        self.counters.calls += 1
        self.counters.syncs += 1
        asked = answer.host()
        experts = list(dict.fromkeys(asked.tolist())) if asked.size <= 64 else np.unique(asked).tolist()
        engine.recorder.asked(self.number, experts, asked)
        if (guess := engine.predictor.sees_choice(self.number, experts)) is not None:
            guesses.append(guess)
        engine.mend()
        engine.torn.add(self.number)
        expected = engine.prefetch.expects(self, experts)
        self.counters.guesses_used += len(expected)
        if len(experts) > self.table.slots:
            self._wait(lambda: engine.prefetch.collect(self, expected))
            engine.act(guesses, self.number)
            out = self._in_waves(x, indices, asked)
        else:
            were_there = self._fetch(experts, expected)
            if early is None or not were_there:
                early = self._experts(x, self._row_of.rows(indices))
            out = self._keep(early)
            self._complete += (were_there - self._complete) / _CALLS_REMEMBERED
            engine.act(
                guesses, self.number
            )  # last, so that neither a read that is waited for nor the device comes behind it
        engine.prefetch.leave(self)
        engine.torn.discard(self.number)
        engine.leaves(self.counters)
        return out

    def _run_early(self, x: mx.array, indices: mx.array) -> mx.array | None:
        """Sets the device to work on the experts before the host knows whether they are there, if they mostly are.

        If one is not, the result is thrown away, so it does not matter that its slot is written meanwhile.
        """
        small = indices.size * x.shape[-1] * x.itemsize <= _KEEP_BYTES
        if not (self._engine.queues_work and small and self._complete > 0.5):
            return None
        out = self._experts(x, self._row_of.rows(indices))
        mx.async_eval(out)  # type: ignore[no-untyped-call]
        return out

    def _fetch(self, experts: Sequence[int], expected: Sequence[int]) -> bool:
        """Returns when every asked expert is in its slot: whether each was before."""
        plan = self.table.plan(experts)
        self._finish(self._begin(plan))
        lost = self._wait(lambda: self._engine.prefetch.collect(self, expected)) if expected else []
        self.table.release(plan)
        if lost:
            again = self.table.plan(lost)
            self._finish(self._begin(again))
            self.table.release(again)
        return not plan.misses and not expected

    def _wait(self, what: Callable[[], list[int]]) -> list[int]:
        started = time.perf_counter()
        try:
            return what()
        finally:
            self.counters.wait_s += time.perf_counter() - started

    def _keep(self, out: mx.array) -> mx.array:
        # Started now, so that the device works while the next layer's graph is built.  MLX refuses it where a gradient
        # is asked for, which would be computed from slots that hold other experts by then.
        mx.async_eval(out)  # type: ignore[no-untyped-call]
        if out.nbytes <= _KEEP_BYTES:
            self._last = out
        else:
            mx.eval(out)
            self._last = None
        return out

    # ---- several waves: more experts than slots ----------------------------------------------------------------------

    def _in_waves(self, x: mx.array, indices: mx.array, asked: np.ndarray[Any, Any]) -> mx.array:
        """Runs at most S/2 experts at a time; the next ones are read into the other half meanwhile."""
        top_k = indices.shape[-1]
        waves = split_waves(asked, self.table, most=max(1, self.table.slots // 2))
        rows = x.reshape(-1, x.shape[-1])
        outs: list[mx.array] = []
        held: list[Plan] = []  # the wave that computes, and the one that is read meanwhile
        fill = self._hold(waves[0], held)
        try:
            for number, wave in enumerate(waves):
                self._finish(fill)
                outs.append(self._run_wave(rows, wave, top_k))
                mx.async_eval(outs[-1])  # type: ignore[no-untyped-call]
                if number + 1 < len(waves):
                    if len(held) == 2 or self.table.slots == 1:
                        mx.eval(outs[: len(outs) + 1 - len(held)])  # whoever used the slots that come free now
                        self.table.release(held.pop(0))
                    fill = self._hold(waves[number + 1], held)
        finally:
            mx.eval(outs)
        for plan in held:
            self.table.release(plan)
        order = np.argsort(np.concatenate([wave.rows for wave in waves]))
        out = mx.concatenate(outs)[mx.array(order.astype(np.uint32))]
        return self._keep(out.reshape(*indices.shape, out.shape[-1]))

    def _hold(self, wave: Wave, held: list[Plan]) -> Fill:
        held.append(self.table.plan(wave.experts))
        return self._begin(held[-1])

    def _run_wave(self, rows: mx.array, wave: Wave, top_k: int) -> mx.array:
        """[T, D] -> [rows of the wave, D].  The host names the bank's rows: the table in the graph may change."""
        count = len(wave.rows)
        fewest = max(count, min(self._engine.fewest_rows, rows.shape[0] * top_k))
        rows_of = np.resize(self._row_of.host[wave.expert_of_row], (fewest, 1))
        tokens = mx.array(np.resize(wave.rows // top_k, fewest).astype(np.uint32))
        return self._experts(rows[tokens], mx.array(rows_of)).squeeze(-2)[:count]

    # ---- reads ---------------------------------------------------------------------------------------------------

    def reads(self, expert: int, views: Sequence[memoryview]) -> list[Read]:
        return self._engine.store.reads(self.number, expert, views)

    def place(self, expert: int, slot: int) -> None:
        """Notes the slot in the table; nothing unfinished reads that slot any more when it returns."""
        if self._last is not None:
            mx.eval(self._last)
            self._last = None
        self._row_of.host[expert] = self.bank.row(slot)

    def _begin(self, plan: Plan) -> Fill:
        self.counters.hits += plan.hits
        self.counters.misses += len(plan.misses)
        for miss in plan.misses:
            self.place(miss.expert, miss.slot)
        return Fill(self, self._engine.reader, self._engine.prefetch, plan)

    def _finish(self, fill: Fill) -> None:
        if not fill.plan.misses:
            return
        started = time.perf_counter()
        try:
            demanded = fill.finish()
        finally:
            self.counters.wait_s += time.perf_counter() - started
        self.counters.guesses_used += len(fill.plan.misses) - demanded
        self.counters.demand_bytes += demanded * self._engine.store.read_bytes(self.number)
