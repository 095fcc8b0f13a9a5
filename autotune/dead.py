"""Knobs that do nothing here, by what the runtime says of every trial: which settings were in force, and which unread.

Without this, noise is credited to them, and trials are spent on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autotune.journal import Record
from autotune.kernel_knobs import MAX_SEQ
from autotune.space import Space
from autotune.trial import Measured

__all__ = ["dead_knobs", "dead_notices"]

_Nested = Mapping[str, Mapping[str, Any]]


def dead_knobs(space: Space, records: Sequence[Record]) -> dict[str, str]:
    """Knobs of which two values or more were tried in vain, with the reason in words.

    A knob is judged by all trials, so one that later turns out to be read is dead no longer.
    """
    trials = [(each.settings, each.outcome) for each in records if isinstance(each.outcome, Measured)]
    reported = [(asked, outcome) for asked, outcome in trials if outcome.effective]
    return {knob.name: reason for knob in space.knobs if (reason := _reason(knob.name, reported))}


def dead_notices(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What changed, in words."""
    found = [f"{name} is searched no further: {now[name]}" for name in now if name not in before]
    return found + [f"{name} is searched again: with other settings it is read" for name in before if name not in now]


def _reason(key: str, trials: Sequence[tuple[_Nested, Measured]]) -> str:
    """Empty for a knob that does something, or of which too little is known."""
    asked = {_value(settings, key) for settings, _ in trials}
    read = list(_read(key, trials))
    if len(asked) > 1 and not read:
        return "nothing reads it here"
    in_force = {value for _, value in read}
    if len({value for value, _ in read}) > 1 and len(in_force) == 1:
        return f"it is {in_force.pop()} here, whatever is asked for"
    return ""


def _read(key: str, trials: Sequence[tuple[_Nested, Measured]]) -> Iterator[tuple[Any, Any]]:
    """What was asked for and what came of it, where anything looked at it."""
    for settings, outcome in trials:
        if key not in outcome.unread:
            yield _value(settings, key), _value(outcome.effective, key)


def _value(settings: _Nested, key: str) -> Any:
    section, _, name = key.partition(".")
    values = settings[section]
    if key in MAX_SEQ and values[MAX_SEQ[key]] == "off":  # one knob for the switch and its limit
        return "off"
    return values[name]
