"""The misses of one plan on their way into a bank, as many at a time as the bank takes."""

from __future__ import annotations

from collections.abc import Sequence

from streaming_core.prefetch import Prefetch, PrefetchLayer
from streaming_core.reading import NothingToRead, Read, Reader, Ticket
from streaming_core.residency.table import Miss, Plan

__all__ = ["Fill"]


class Fill:
    """Begun by its constructor.  What a guess has fetched already is taken from there, everything else is read."""

    def __init__(self, layer: PrefetchLayer, reader: Reader, prefetch: Prefetch, plan: Plan) -> None:
        self.plan = plan
        self._layer = layer
        self._reader = reader
        self._prefetch = prefetch
        size = layer.bank.batch
        self._batches = [plan.misses[i : i + size] for i in range(0, len(plan.misses), size)]
        self._guessed: list[tuple[Miss, list[memoryview]]] = []
        self._ticket = self._submit(self._batches[0]) if self._batches else NothingToRead()

    def _submit(self, misses: Sequence[Miss]) -> Ticket:
        reads: list[Read] = []
        views = self._layer.bank.destinations([miss.slot for miss in misses])
        for miss, view in zip(misses, views, strict=True):
            if self._prefetch.holds(self._layer, miss.expert):
                self._guessed.append((miss, view))
            else:
                reads += self._layer.reads(miss.expert, view)
        return self._reader.submit(reads)

    def finish(self) -> int:
        """Waits until the bank shows every miss; returns how many of them nobody had guessed.  Raises ReadError."""
        demanded = 0
        for number, batch in enumerate(self._batches):
            if number:
                self._ticket = self._submit(batch)
            demanded += len(batch) - self._deliver_guessed()
            self._reader.wait(self._ticket)
            self._layer.bank.commit([miss.slot for miss in batch])
        return demanded

    def _deliver_guessed(self) -> int:
        """Takes over what was guessed; what did not come after all is read on demand.  Returns how many came."""
        lost: list[Read] = []
        guessed, self._guessed = self._guessed, []
        came = 0
        for miss, views in guessed:
            if self._prefetch.deliver(self._layer, miss.expert, miss.slot, views):
                came += 1
            else:
                lost += self._layer.reads(miss.expert, views)
        if lost:
            self._reader.wait(self._reader.submit(lost))
        return came
