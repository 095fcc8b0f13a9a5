"""Moves along one knob at a time.

Landscapes of such settings are mostly unimodal along a knob, so lines find most of the gain in few trials; what only
pays together is left to the model-based search that follows.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator

from autotune.knobs import Knob, Params
from autotune.space import Space

__all__ = ["coordinate_moves", "neighbours"]


def coordinate_moves(
    space: Space, start: Params, start_score: float, *, threshold: float, rng: random.Random
) -> Generator[Params, float, None]:
    """Yields proposals and is sent their scores; ends when a pass over all knobs moved nowhere.

    A proposal is adopted when it beats the best one by more than `threshold`.  Ordinal knobs are walked with doubling
    steps as long as that helps, first in one direction, then, if it never helped, in the other.
    """
    best, best_score = start, start_score
    moved = True
    while moved:
        moved = False
        knobs = list(space.knobs)
        rng.shuffle(knobs)
        for knob in knobs:
            for line in _lines(knob, rng):
                step, helped = 1, False
                while (proposal := line(space, best, step)) is not None:
                    score = yield proposal
                    if score <= best_score + threshold:
                        break
                    best, best_score, helped, moved = proposal, score, True, True
                    step *= 2
                if helped and knob.ordinal:
                    break


class _Line:
    """One direction of an ordinal knob."""

    def __init__(self, knob: Knob, direction: int) -> None:
        self._knob = knob
        self._direction = direction

    def __call__(self, space: Space, at: Params, step: int) -> Params | None:
        name = self._knob.name
        if name not in at:
            return None
        last = len(self._knob.options) - 1
        index = int(at[name])
        target = min(max(index + step * self._direction, 0), last)
        return None if target == index else space.canonical({**at, name: target})


class _Choice:
    """One option of a knob without an order."""

    def __init__(self, knob: Knob, option: str) -> None:
        self._knob = knob
        self._option = option

    def __call__(self, space: Space, at: Params, step: int) -> Params | None:
        name = self._knob.name
        if at.get(name, self._option) == self._option:
            return None
        return space.canonical({**at, name: self._option})


def _lines(knob: Knob, rng: random.Random) -> list[_Line | _Choice]:
    lines: list[_Line | _Choice]
    if knob.ordinal:
        lines = [_Line(knob, +1), _Line(knob, -1)]
    else:
        lines = [_Choice(knob, str(option)) for option in knob.options]
    rng.shuffle(lines)
    return lines


def neighbours(space: Space, at: Params, rng: random.Random, *, changes: int) -> Iterator[Params]:
    """Endless random proposals that differ from `at` in up to `changes` knobs."""
    while True:
        params = dict(at)
        for knob in rng.sample(list(space.knobs), min(changes, len(space.knobs))):
            params[knob.name] = rng.randrange(len(knob.options)) if knob.ordinal else str(rng.choice(knob.options))
        yield space.canonical(params)
