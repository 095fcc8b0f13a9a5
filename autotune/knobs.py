"""One searched setting each: its options, and when it means anything at all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

__all__ = ["AnyOf", "Condition", "Knob", "Param", "Params", "Value", "nearest_index"]

Value = int | float | str | None
Param = int | str  # what Optuna sees: the index of an ordinal option, or the text of a choice
Params = Mapping[str, Param]


@dataclass(frozen=True, slots=True)
class Condition:
    """Holds while another knob has one of these values."""

    knob: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Holds while one of these does."""

    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """`name` is the key of the setting.

    Ordinal options are suggested as an index, so that the sampler and the moves know neighbours; the others as text.
    """

    name: str
    options: tuple[Value, ...]
    ordinal: bool
    when: Condition | AnyOf | None = None

    def value(self, param: Param) -> Value:
        return self.options[int(param)] if self.ordinal else param

    def param(self, value: Value) -> Param:
        """The option nearest to `value`.  A choice that is not offered becomes the first one."""
        if self.ordinal:
            return nearest_index(self.options, value)
        return str(value if value in self.options else self.options[0])

    def clamp(self, param: object) -> Param:
        """Whatever an old study or a foreign profile holds, as an option of this knob."""
        if not self.ordinal:
            return self.param(param if isinstance(param, str) else None)
        index = param if isinstance(param, int) and not isinstance(param, bool) else 0
        return min(max(index, 0), len(self.options) - 1)

    def suggest(self, trial: optuna.Trial) -> Param:
        if self.ordinal:
            return trial.suggest_int(self.name, 0, len(self.options) - 1)
        return str(trial.suggest_categorical(self.name, [str(option) for option in self.options]))

    def distribution(self) -> BaseDistribution:
        if self.ordinal:
            return IntDistribution(0, len(self.options) - 1)
        return CategoricalDistribution([str(option) for option in self.options])

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "options": list(self.options), "ordinal": self.ordinal, "when": _plain(self.when)}


def _plain(when: Condition | AnyOf | None) -> list[Any] | None:
    match when:
        case Condition(knob, values):
            return [knob, list(values)]
        case AnyOf(conditions):
            return [_plain(each) for each in conditions]
    return None


def nearest_index(options: Sequence[Value], value: Value) -> int:
    """Index of the option equal to `value`, else of the nearest number by ratio (zero counts as one half)."""
    if value in options:
        return options.index(value)
    if not isinstance(value, (int, float)):
        return 0
    numbers = [(i, option) for i, option in enumerate(options) if isinstance(option, (int, float))]
    return min(numbers, key=lambda each: abs(_log(each[1]) - _log(value)))[0]


def _log(number: float) -> float:
    return math.log(max(number, 0.5))
