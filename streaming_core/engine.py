"""One streamed layer at work: sync, plan, read, compute; and what the layers of a model share.

Legend: T tokens of a call (all leading axes together), K experts per token, E experts, S slots, D model width.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from streaming_core.errors import ReadError
from streaming_core.reading import NothingToRead, Read, Reader, Ticket
from streaming_core.residency.bank import Bank
from streaming_core.residency.table import Miss, Plan, SlotTable
from streaming_core.store import Store
from streaming_core.trace import LayerCounters, LayerStats, Stats
from streaming_core.waves import Wave, split_waves

__all__ = ["Engine", "StreamedLayer"]

# A result this small is kept until the next call, so that slots it may still read are not overwritten; a larger one is
# evaluated at once instead, because keeping it would hold a prompt chunk's activations for every layer.
_KEEP_BYTES = 1 << 20


class Engine:
    """Store, reader and the pass in progress.  Used by the one thread that runs the model."""

    def __init__(self, store: Store, reader: Reader, fewest_rows: int = 1) -> None:
        """A wave computes at least `fewest_rows` rows if its call has as many, some of them twice: GPU backends take
        another kernel, which rounds differently, for a handful of rows."""
        self.store = store
        self.reader = reader
        self.fewest_rows = fewest_rows
        # Counters only, not the layers: a cycle between the two would keep a closed model's banks until a collection.
        self.counters: dict[int, LayerCounters] = {}
        self.unneeded_layer: int | None = None
        self._tokens = 0
        self._passes = 0

    @contextlib.contextmanager
    def discarding_output(self, last_layer: int | None) -> Iterator[None]:
        """Within it a pass only fills caches: the experts of `last_layer`, which feed nothing but the discarded output,
        are neither read nor run."""
        self.unneeded_layer = last_layer
        try:
            yield
        finally:
            self.unneeded_layer = None

    def note_pass(self, tokens: int) -> None:
        self._tokens += tokens
        self._passes += 1

    def stats(self) -> Stats:
        rows = list(self.counters.items())
        return Stats(
            tokens=self._tokens,
            passes=self._passes,
            hits=sum(c.hits for _, c in rows),
            misses=sum(c.misses for _, c in rows),
            demand_bytes=sum(c.demand_bytes for _, c in rows),
            prefetch_bytes=0,
            wait_s=sum(c.wait_s for _, c in rows),
            syncs=sum(c.syncs for _, c in rows),
            peak_bytes=mx.get_peak_memory(),
            layers=tuple(LayerStats(n, c.hits, c.misses, c.demand_bytes, c.wait_s) for n, c in rows),
        )

    def reset_stats(self) -> None:
        self._tokens = self._passes = 0
        for counters in self.counters.values():
            counters.reset()
        mx.reset_peak_memory()

    def close(self) -> None:
        self.reader.close()
        self.store.close()


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
        """`experts(x [..., D], slots [..., K]) -> [..., K, D]` computes over the bank's arrays."""
        self.number = number
        self._first_of_pass = not engine.counters
        self.counters = engine.counters[number] = LayerCounters()
        self._engine = engine
        self._table = table
        self._bank = bank
        self._experts = experts
        # Expert -> slot, looked up inside the graph.  Updated in place, so a call makes no new array of it.
        self._slot_of = mx.zeros((table.experts,), dtype=mx.uint32)
        mx.eval(self._slot_of)
        self._slot_of_host = np.array(self._slot_of, copy=False)
        self._last: mx.array | None = None

    def __call__(self, x: mx.array, indices: mx.array) -> mx.array:
        """x [..., D], indices [..., K] (any integer type, unsorted, may repeat) -> [..., K, D]."""
        if self._first_of_pass:
            self._engine.note_pass(indices.size // indices.shape[-1])
        if self._engine.unneeded_layer == self.number:
            return mx.zeros((*indices.shape, x.shape[-1]), dtype=x.dtype)
        mx.eval(indices)
        self.counters.calls += 1
        self.counters.syncs += 1
        asked = np.array(indices, copy=False).reshape(-1)
        experts = list(dict.fromkeys(asked.tolist())) if asked.size <= 64 else np.unique(asked).tolist()
        if len(experts) > self._table.slots:
            return self._in_waves(x, indices, asked)
        plan = self._table.plan(experts)
        try:
            self._finish(self._begin(plan))
        finally:
            self._table.release(plan)
        return self._keep(self._experts(x, self._slot_of[indices]))

    def _keep(self, out: mx.array) -> mx.array:
        if out.nbytes <= _KEEP_BYTES:
            # Started now, so that the device works while the next layer's graph is built.
            mx.async_eval(out)  # type: ignore[no-untyped-call]
            self._last = out
        else:
            mx.eval(out)
            self._last = None
        return out

    # ---- several waves: more experts than slots ----------------------------------------------------------------------

    def _in_waves(self, x: mx.array, indices: mx.array, asked: np.ndarray[Any, Any]) -> mx.array:
        """Runs at most S/2 experts at a time; the next ones are read into the other half meanwhile."""
        top_k = indices.shape[-1]
        waves = split_waves(asked, self._table, most=max(1, self._table.slots // 2))
        rows = x.reshape(-1, x.shape[-1])
        outs: list[mx.array] = []
        held: list[Plan] = []  # the wave that computes, and the one that is read meanwhile
        fill = self._hold(waves[0], held)
        try:
            for number, wave in enumerate(waves):
                if outs and not self._bank.shared:
                    mx.eval(outs)  # the device copy must not meet a kernel that reads the same arrays
                self._finish(fill)
                outs.append(self._run_wave(rows, wave, top_k))
                mx.async_eval(outs[-1])  # type: ignore[no-untyped-call]
                if number + 1 < len(waves):
                    if len(held) == 2 or self._table.slots == 1:
                        mx.eval(outs[: len(outs) + 1 - len(held)])  # whoever used the slots that come free now
                        self._table.release(held.pop(0))
                    fill = self._hold(waves[number + 1], held)
        except BaseException:
            self._abandon(fill)
            raise
        finally:
            mx.eval(outs)
            for plan in held:
                self._table.release(plan)
        order = np.argsort(np.concatenate([wave.rows for wave in waves]))
        out = mx.concatenate(outs)[mx.array(order.astype(np.uint32))]
        return self._keep(out.reshape(*indices.shape, out.shape[-1]))

    def _hold(self, wave: Wave, held: list[Plan]) -> _Fill:
        held.append(self._table.plan(wave.experts))
        return self._begin(held[-1])

    def _run_wave(self, rows: mx.array, wave: Wave, top_k: int) -> mx.array:
        """[T, D] -> [rows of the wave, D].  Slots come from the host, the table in the graph may change meanwhile."""
        count = len(wave.rows)
        fewest = max(count, min(self._engine.fewest_rows, rows.shape[0] * top_k))
        slots = np.resize(self._slot_of_host[wave.expert_of_row], (fewest, 1))
        tokens = mx.array(np.resize(wave.rows // top_k, fewest).astype(np.uint32))
        return self._experts(rows[tokens], mx.array(slots)).squeeze(-2)[:count]

    # ---- reads ---------------------------------------------------------------------------------------------------

    def _begin(self, plan: Plan) -> _Fill:
        self.counters.hits += plan.hits
        self.counters.misses += len(plan.misses)
        if plan.misses:
            if self._last is not None:
                mx.eval(self._last)  # nothing unfinished may read the slots that are written now
                self._last = None
            for miss in plan.misses:
                self._slot_of_host[miss.expert] = miss.slot
        return _Fill(self._engine, self.number, self._bank, plan)

    def _finish(self, fill: _Fill) -> None:
        if not fill.plan.misses:
            return
        started = time.perf_counter()
        try:
            self.counters.demand_bytes += fill.finish()
        except BaseException:
            self._abandon(fill)
            raise
        finally:
            self.counters.wait_s += time.perf_counter() - started

    def _abandon(self, fill: _Fill) -> None:
        """Whatever of it arrived, its experts count as absent.  Returns when nothing writes to their slots any more."""
        fill.settle()
        if not fill.complete:
            for miss in fill.plan.misses:
                if miss.expert in self._table:
                    self._table.forget(miss.expert)


class _Fill:
    """The misses of one plan on their way into the bank, as many at a time as the bank takes."""

    def __init__(self, engine: Engine, layer: int, bank: Bank, plan: Plan) -> None:
        self.plan = plan
        self.complete = not plan.misses
        self._engine = engine
        self._layer = layer
        self._bank = bank
        self._batches = [plan.misses[i : i + bank.batch] for i in range(0, len(plan.misses), bank.batch)]
        self._ticket = self._submit(self._batches[0]) if self._batches else NothingToRead()

    def _submit(self, misses: Sequence[Miss]) -> Ticket:
        reads: list[Read] = []
        views = self._bank.destinations([miss.slot for miss in misses])
        for miss, view in zip(misses, views, strict=True):
            reads += self._engine.store.reads(self._layer, miss.expert, view)
        return self._engine.reader.submit(reads)

    def finish(self) -> int:
        """Waits until the bank shows every miss; returns the bytes read.  Raises ReadError."""
        for number, batch in enumerate(self._batches):
            if number:
                self._ticket = self._submit(batch)
            self._engine.reader.wait(self._ticket)
            self._bank.commit([miss.slot for miss in batch])
        self.complete = True
        return len(self.plan.misses) * self._engine.store.read_bytes(self._layer)

    def settle(self) -> None:
        """Blocks until no read of this fill is under way."""
        self._engine.reader.cancel(self._ticket)
        with contextlib.suppress(ReadError):
            self._engine.reader.wait(self._ticket)
