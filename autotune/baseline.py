"""What a profile's entry was compared with: the default, with what the user had fixed, within the same budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from streaming_core.errors import ProfileInvalid, SettingsError
from streaming_core.profile import Entry
from streaming_core.settings import Settings

__all__ = ["Baseline", "Pair", "pair_of"]

_BUDGET = "memory.budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """How `run` had its default."""

    default: Settings = field(default_factory=Settings)
    budget_bytes: int | None = None  # that all trials had; None: not known
    known: bool = True  # the entry says what was fixed

    @classmethod
    def read(cls, entry: Entry, where: str) -> Baseline:
        """From the evidence of an entry; older ones and those written by hand need not say.  Raises ProfileInvalid."""
        where = f"{where}.evidence"
        fixed = entry.evidence.get("fixed", {})
        if not isinstance(fixed, Mapping):
            raise ProfileInvalid(f"{where}.fixed: must be a mapping of settings to values, got {fixed!r}")
        budget = entry.evidence.get("budget_bytes")
        if budget is not None and (type(budget) is not int or budget < 1):
            raise ProfileInvalid(f"{where}.budget_bytes: must be a whole number from 1, got {budget!r}")
        try:
            default = Settings().with_values(fixed, f"{where}.fixed")
        except SettingsError as err:
            raise ProfileInvalid(str(err)) from err
        return cls(default=default, budget_bytes=budget, known="fixed" in entry.evidence)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two settings that differ in nothing but what was tuned, so with one budget written out."""

    default: Settings
    streamed: Settings

    @property
    def same(self) -> bool:
        return self.default == self.streamed


def pair_of(
    streamed: Settings, baseline: Baseline, values: Mapping[str, Any], budget_of: Callable[[Settings], int | None]
) -> Pair:
    """`streamed` and its default; `values` are the user's of today and go for both.

    A budget that nobody named is the one that was measured with, else today's.  It is pinned in any case: left to each
    worker, it would follow what is available at that moment.
    """
    budget = streamed.memory.budget
    if budget is None and _BUDGET not in values:
        budget = baseline.budget_bytes
    if budget is None:
        budget = budget_of(streamed)
    pinned = {_BUDGET: budget}
    return Pair(baseline.default.with_values({**values, **pinned}), streamed.with_values(pinned))
