"""The guesses of a simulated run: those that were recorded, or made anew where they follow from the routes alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from streaming_core.errors import TraceInvalid
from streaming_core.predict import FrequencyPredictor, OraclePredictor, Predictor
from streaming_core.route_trace import PassRecord, RouteTrace
from streaming_core.settings import Settings

__all__ = ["Guesses", "guesses_of"]

Ranked = list[tuple[int, float]]


class Guesses(Protocol):
    """Told of a run, pass by pass and layer by layer."""

    def begins_pass(self, step: PassRecord) -> None: ...

    def own(self, layer: int) -> Ranked | None:
        """The guess that is acted upon just before the layer's own choice."""

    def made(self, layer: int, experts: Sequence[int]) -> list[tuple[int, Ranked]]:
        """(target, guess) of those that are acted upon in the call of `layer`, in order."""


class NoGuesses:
    """None."""

    def begins_pass(self, step: PassRecord) -> None:
        return

    def own(self, layer: int) -> Ranked | None:
        return None

    def made(self, layer: int, experts: Sequence[int]) -> list[tuple[int, Ranked]]:
        return []


class RecordedGuesses:
    """A router's opinions.  They follow from what the model computes, which no setting changes."""

    def __init__(self, streamed: Sequence[int], kind: str, ahead: int) -> None:
        self._streamed = sorted(streamed)
        self._early = kind != "gate" or ahead > 0
        self._late = kind == "cascade" or (kind == "gate" and ahead == 0)
        # What a resident layer's input gives is acted upon in the next streamed layer's call; its router is not asked.
        self._moves = kind == "gate"
        self._own: dict[int, Ranked] = {}
        self._made: dict[int, list[tuple[int, Ranked]]] = {}

    def begins_pass(self, step: PassRecord) -> None:
        self._own, self._made = {}, {}
        for guess in step.guessed:
            if guess.layer not in self._streamed:
                continue
            if guess.at == guess.layer:
                if self._late:
                    self._own[guess.layer] = list(guess.ranked)
            elif self._early and (at := self._acting(guess.at, guess.layer)) is not None:
                self._made.setdefault(at, []).append((guess.layer, list(guess.ranked)))

    def _acting(self, at: int, target: int) -> int | None:
        if at in self._streamed:
            return at
        return next((n for n in self._streamed if at < n < target), None) if self._moves else None

    def own(self, layer: int) -> Ranked | None:
        return self._own.get(layer)

    def made(self, layer: int, experts: Sequence[int]) -> list[tuple[int, Ranked]]:
        return self._made.get(layer, [])


class RepeatedGuesses:
    """A predictor that only looks at choices, asked again."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor

    def begins_pass(self, step: PassRecord) -> None:
        self._predictor.begin_pass()

    def own(self, layer: int) -> Ranked | None:
        return None

    def made(self, layer: int, experts: Sequence[int]) -> list[tuple[int, Ranked]]:
        guess = self._predictor.sees_choice(layer, experts)
        return [] if guess is None else [(guess.layer, guess.ranked())]


def guesses_of(trace: RouteTrace, settings: Settings, streamed: Sequence[int]) -> Guesses:
    """Raises TraceInvalid: the settings ask routers for guesses that were not recorded."""
    kind, ahead = settings.predict.kind, settings.prefetch.ahead
    if kind == "none" or settings.prefetch.backend == "none":
        return NoGuesses()
    if kind == "frequency":
        width = max(1, math.ceil(trace.top_k * settings.predict.mult))
        return RepeatedGuesses(FrequencyPredictor(streamed, width, ahead, settings.residency.half_life))
    if kind == "oracle":
        return RepeatedGuesses(OraclePredictor(trace.routes, streamed, ahead))
    wanted = (kind, settings.predict.mult, ahead)
    if wanted not in _recorded(trace):
        raise TraceInvalid(
            f"the trace has no guesses of predict.kind {kind} with predict.mult {settings.predict.mult:g} and "
            f"prefetch.ahead {ahead}, but of {trace.predict_kind}, {trace.predict_mult:g} and {trace.ahead}; record "
            "one with the same --set"
        )
    return RecordedGuesses(streamed, kind, ahead)


def _recorded(trace: RouteTrace) -> list[tuple[str, float, int]]:
    """A cascade is two guesses, either of which can be had alone."""
    found = [(trace.predict_kind, trace.predict_mult, trace.ahead)]
    if trace.predict_kind == "cascade":
        found += [("gate_input", trace.predict_mult, trace.ahead), ("gate", trace.predict_mult, 0)]
    return found
