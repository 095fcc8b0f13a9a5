"""What the streamed layers of a model share: store, reader, guesses, and the forward pass in progress."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from weakref import WeakValueDictionary

import mlx.core as mx

from streaming_core.errors import ModelClosed
from streaming_core.kernels.select import Kernels, NoKernels
from streaming_core.predict import Guess, NoPrediction, Predictor
from streaming_core.prefetch import Budget, PassBudget, Prefetch, PrefetchLayer
from streaming_core.reading import WatchedReader
from streaming_core.recording import NullRecorder, Recorder
from streaming_core.residency.link import Link
from streaming_core.store import Store
from streaming_core.trace import LayerCounters, LayerStats, Stats

__all__ = ["Engine"]


class Engine:
    """Used by the one thread that runs the model."""

    def __init__(
        self,
        store: Store,
        reader: WatchedReader,
        predictor: Predictor,
        prefetch: Prefetch,
        budget: Budget,
        link: Link,
        fewest_rows: int = 1,
        *,
        queues_work: bool = False,
    ) -> None:
        """A wave computes at least `fewest_rows` rows if its call has as many, some of them twice: GPU backends take
        another kernel, which rounds differently, for a handful of rows.

        `queues_work`: the device takes a graph without making the caller wait.  MLX's CPU backend does not: beyond ten
        operations the caller waits until some are done.
        """
        self.store = store
        self.reader = reader
        self.predictor = predictor
        self.prefetch = prefetch
        self.link = link
        self.fewest_rows = fewest_rows
        self.queues_work = queues_work
        self.counters: dict[int, LayerCounters] = {}
        # Weakly: a cycle between the two would keep a closed model's banks until a collection.
        self.layers: WeakValueDictionary[int, PrefetchLayer] = WeakValueDictionary()
        self.recorder: Recorder = NullRecorder()
        self.kernels: Kernels = NoKernels("kernels are off")
        self.unneeded_layer: int | None = None
        self.first_observed: int | None = None  # the decoder layer whose input is the first thing seen of a pass
        # Layers whose table, slots or guesses are being changed.  A change that a failing read or Ctrl-C cuts short
        # leaves its number here: Ctrl-C may come anywhere, so no handler on the spot knows what is left to undo.
        self.torn: set[int] = set()
        self._budget = budget
        self._pass: PassBudget = budget.begin_pass()
        self._guesses: list[Guess] = []  # made in this pass, not acted upon yet
        self._guess_bytes: dict[int, int] = {}  # of a record, by layer; the store may be closed when it is needed
        self._own: Guess | None = None  # for the layer that is about to run
        self._tokens = 0
        self._passes = 0
        self._closed = False
        self._left_at = time.perf_counter()  # when the last streamed layer was left, or the pass began

    @contextlib.contextmanager
    def discarding_output(self, last_layer: int | None) -> Iterator[None]:
        """Within it a pass only fills caches: the experts of `last_layer`, which feed nothing but the discarded output,
        are neither read nor run."""
        self.unneeded_layer = last_layer
        try:
            yield
        finally:
            self.unneeded_layer = None

    def begin_pass(self, tokens: int) -> None:
        """A forward pass starts: its first decoder layer is about to run, or its first streamed layer is called.

        Raises ModelClosed: mlx-lm's own functions may hold the model for longer than it is open.
        """
        if self._closed:
            raise ModelClosed
        self._guesses = []  # of a pass that was given up
        self._own = None
        self._left_at = time.perf_counter()
        self.recorder.begins_pass(tokens)
        self._tokens += tokens
        self._passes += 1
        self._pass = self._budget.begin_pass()
        self.predictor.begin_pass()

    def mend(self) -> None:
        """Empties layers whose change was interrupted: nobody knows what their slots hold.  No demand read is out."""
        if not self.torn:
            return
        self.reader.reset()
        for number in list(self.torn):
            if (layer := self.layers.get(number)) is not None:
                self.prefetch.forget(layer)
                layer.table.clear()
            self.torn.discard(number)

    # ---- guesses -------------------------------------------------------------------------------------------------

    def sees_input(self, layer: int, hidden: mx.array) -> None:
        """A decoder layer is about to run on `hidden` [..., D].  A guess for this layer is evaluated at once: it is
        there long before the layer's own choice."""
        if layer == self.first_observed:
            self.begin_pass(hidden.size // hidden.shape[-1])
        guess = self.predictor.sees_input(layer, hidden)
        if guess is None or guess.layer == self.unneeded_layer:
            return
        if guess.layer > layer:
            self._guesses.append(guess)
        else:
            mx.async_eval(*guess.arrays)  # type: ignore[no-untyped-call]
            self._own = guess

    def act_on_own(self, layer: int) -> None:
        """Acts on the guess that the layer's own input gave, if there is one."""
        guess, self._own = self._own, None
        if guess is None or guess.layer != layer:
            return
        started = time.perf_counter()
        mx.eval(*guess.arrays)
        self.counters[layer].sync_s += time.perf_counter() - started
        self.counters[layer].syncs += 1
        self.mend()
        self.act([guess], layer)

    def note(self, guess: Guess | None) -> None:
        """Keeps a guess until the next sync."""
        if guess is not None and guess.layer != self.unneeded_layer:
            self._guesses.append(guess)

    def take_guesses(self, layer: int) -> list[Guess]:
        """The guesses worth evaluating in the sync of `layer`: those for layers after it."""
        taken = [guess for guess in self._guesses if guess.layer > layer]
        self._guesses = []
        return taken

    def act(self, guesses: Sequence[Guess], at: int) -> None:
        """Begins to fetch what the evaluated guesses name and the budget allows, in the call of layer `at`."""
        for guess in guesses:
            layer = self.layers.get(guess.layer)
            if layer is None or guess.layer in self.torn:
                continue
            ranked = guess.ranked()
            self.recorder.guessed(guess.layer, ranked, at)
            chosen = self._pass.choose(guess.layer, ranked, lambda e, at=layer: self.prefetch.absent(at, e))  # type: ignore[misc]
            self.torn.add(guess.layer)
            begun = self.prefetch.fetch(layer, chosen, {expert for expert, _ in ranked}) if chosen else 0
            self.torn.discard(guess.layer)
            self._pass.spend(begun)
            if begun:
                self.counters[guess.layer].guessed += begun
                self._guess_bytes[guess.layer] = self.store.read_bytes(guess.layer)

    def leaves(self, counters: LayerCounters) -> None:
        """The call of a streamed layer is over."""
        now = time.perf_counter()
        counters.elapsed_s += now - self._left_at
        self._left_at = now

    # ---- being watched -------------------------------------------------------------------------------------------

    def record(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.reader.on_submit = recorder.submitted

    @contextlib.contextmanager
    def without_guesses(self) -> Iterator[None]:
        """Within it nothing is guessed: the predictor is neither asked nor told."""
        predictor, self.predictor = self.predictor, NoPrediction()
        try:
            yield
        finally:
            self.predictor = predictor

    # ---- counters ------------------------------------------------------------------------------------------------

    def stats(self) -> Stats:
        self._count_arrived()
        rows = list(self.counters.items())
        return Stats(
            tokens=self._tokens,
            passes=self._passes,
            hits=sum(c.hits for _, c in rows),
            misses=sum(c.misses for _, c in rows),
            demand_bytes=sum(c.demand_bytes for _, c in rows),
            prefetch_bytes=sum(c.prefetch_bytes for _, c in rows),
            guessed=sum(c.guessed for _, c in rows),
            guesses_used=sum(c.guesses_used for _, c in rows),
            wait_s=sum(c.wait_s for _, c in rows),
            syncs=sum(c.syncs for _, c in rows),
            peak_bytes=mx.get_peak_memory(),
            layers=tuple(_layer_stats(n, c) for n, c in rows),
            sync_s=sum(c.sync_s for _, c in rows),
        )

    def reset_stats(self) -> None:
        self._count_arrived()  # those before the reset
        self._tokens = self._passes = 0
        for counters in self.counters.values():
            counters.reset()
        mx.reset_peak_memory()

    def _count_arrived(self) -> None:
        if self._closed:  # what the end of the reader ended was not read
            return
        for layer, counters in self.counters.items():
            if arrived := self.prefetch.arrived(layer):
                counters.guesses_read += arrived
                counters.prefetch_bytes += arrived * self._guess_bytes[layer]

    def close(self) -> None:
        self._count_arrived()
        self._closed = True
        self.reader.close()
        self.store.close()


def _layer_stats(layer: int, counters: LayerCounters) -> LayerStats:
    return LayerStats(
        layer=layer,
        hits=counters.hits,
        misses=counters.misses,
        demand_bytes=counters.demand_bytes,
        wait_s=counters.wait_s,
        guessed=counters.guessed,
        guesses_used=counters.guesses_used,
        guesses_read=counters.guesses_read,
        prefetch_bytes=counters.prefetch_bytes,
        sync_s=counters.sync_s,
        elapsed_s=counters.elapsed_s,
    )
