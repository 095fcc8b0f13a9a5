"""Where guesses come from: a later layer's own router, recent use, or a recorded run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import mlx.core as mx

from streaming_core.predict.guess import Guess, KnownGuess, ScoredGuess
from streaming_core.residency.link import Link

__all__ = [
    "CascadePredictor",
    "FrequencyPredictor",
    "GatePredictor",
    "NoPrediction",
    "OraclePredictor",
    "Predictor",
    "RouterView",
]


class RouterView(Protocol):
    """How a layer chooses its experts, as far as a guess needs to know."""

    def scores(self, hidden: mx.array, *, normed: bool) -> mx.array:
        """hidden [..., D] -> [..., E], higher is likelier; `normed`: the norm before the router was applied already."""


class Predictor(Protocol):
    """Told what happens, asked for guesses.  Each method may return a guess or None.

    `sees_input` is called before a decoder layer runs, `sees_router_input` when its experts are called, `sees_choice`
    when the choice is known, all with decoder-layer numbers.
    """

    needs_input: bool  # whether decoder layers have to be observed

    def begin_pass(self) -> None: ...
    def sees_input(self, layer: int, hidden: mx.array) -> Guess | None: ...
    def sees_router_input(self, layer: int, hidden: mx.array) -> Guess | None: ...
    def sees_choice(self, layer: int, experts: Sequence[int]) -> Guess | None: ...


class NoPrediction:
    """Guesses nothing."""

    needs_input = False

    def begin_pass(self) -> None:
        return

    def sees_input(self, layer: int, hidden: mx.array) -> Guess | None:
        return None

    def sees_router_input(self, layer: int, hidden: mx.array) -> Guess | None:
        return None

    def sees_choice(self, layer: int, experts: Sequence[int]) -> Guess | None:
        return None


class GatePredictor(NoPrediction):
    """Asks the router of a later layer, at the input of a layer or in it, what it would choose now.

    From the un-normed input of a decoder layer (`from_router_input` False), or, cheaper and nearer in time, from what
    this layer's own router sees.
    """

    def __init__(
        self, ahead: Mapping[int, tuple[int, RouterView]], width: int, link: Link, *, from_router_input: bool
    ) -> None:
        """`ahead[layer]` is the layer that a guess made at `layer` is for, and how that one's router is asked."""
        self._link = link
        self.needs_input = not from_router_input
        self._ahead = ahead
        self._width = width

    def sees_input(self, layer: int, hidden: mx.array) -> Guess | None:
        return self._guess(layer, hidden, normed=False) if self.needs_input else None

    def sees_router_input(self, layer: int, hidden: mx.array) -> Guess | None:
        return None if self.needs_input else self._guess(layer, hidden, normed=True)

    def _guess(self, layer: int, hidden: mx.array, *, normed: bool) -> Guess | None:
        if layer not in self._ahead:
            return None
        target, router = self._ahead[layer]
        scores = router.scores(hidden, normed=normed)
        width = min(self._width, scores.shape[-1])
        experts = mx.argpartition(scores, kth=-width, axis=-1)[..., -width:]
        best = mx.take_along_axis(scores, experts, axis=-1).astype(mx.float32)
        return ScoredGuess(target, self._link.send(experts), self._link.send(best))


class CascadePredictor(NoPrediction):
    """Two opinions of one layer's router: on what the layer before sees, and again on the layer's own input.

    The first has the time of a whole layer to be read in; the second, better one takes back what it disagrees with and
    has not begun, and adds what the first did not see.
    """

    needs_input = True

    def __init__(self, early: GatePredictor, late: GatePredictor) -> None:
        self._early = early
        self._late = late

    def sees_input(self, layer: int, hidden: mx.array) -> Guess | None:
        return self._late.sees_input(layer, hidden)

    def sees_router_input(self, layer: int, hidden: mx.array) -> Guess | None:
        return self._early.sees_router_input(layer, hidden)


class FrequencyPredictor(NoPrediction):
    """The most used experts of late, per layer; a use loses half its weight every `half_life` calls.

    `ahead` counts streamed layers, the first ones of the next pass after the last ones of this.
    """

    def __init__(self, layers: Sequence[int], width: int, ahead: int, half_life: int) -> None:
        self._ahead = _ahead(layers, ahead)
        self._width = width
        self._decay = 0.5 ** (1.0 / half_life)
        self._uses: dict[int, dict[int, float]] = {layer: {} for layer in layers}

    def sees_choice(self, layer: int, experts: Sequence[int]) -> Guess | None:
        uses = self._uses[layer]
        for expert in uses:
            uses[expert] *= self._decay
        for expert in experts:
            uses[expert] = uses.get(expert, 0.0) + 1.0
        target, _ = self._ahead[layer]
        if target == layer:
            return None
        known = self._uses[target]
        total = sum(known.values()) or 1.0
        best = sorted(known, key=lambda e: (-known[e], e))[: self._width]
        return KnownGuess(target, tuple((e, known[e] / total) for e in best))


class OraclePredictor(NoPrediction):
    """Knows the answer: replays the choices of a recorded run, pass by pass.  The ceiling of any guess.

    `ahead` counts streamed layers, the first ones of the next pass after the last ones of this.
    """

    def __init__(self, passes: Sequence[Mapping[int, Sequence[int]]], layers: Sequence[int], ahead: int) -> None:
        """`passes[n][layer]` are the experts that pass n asked for."""
        self._passes = passes
        self._ahead = _ahead(layers, ahead)
        self._pass = -1

    def begin_pass(self) -> None:
        self._pass += 1

    def sees_choice(self, layer: int, experts: Sequence[int]) -> Guess | None:
        target, later = self._ahead[layer]
        if target == layer or self._pass + later >= len(self._passes):
            return None
        return KnownGuess(target, tuple((e, 1.0) for e in self._passes[self._pass + later].get(target, ())))


def _ahead(layers: Sequence[int], ahead: int) -> dict[int, tuple[int, int]]:
    """Layer -> (the layer whose guess is made there, in which pass after this one)."""
    order = sorted(layers)
    places = ((layer, place + ahead) for place, layer in enumerate(order))
    return {layer: (order[place % len(order)], place // len(order)) for layer, place in places}
