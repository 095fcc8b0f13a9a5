"""The profile that a run writes into, again and again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from autotune.pareto import BudgetPoint
from autotune.result import Status, TuneResult, rounded
from autotune.versions import versions
from streaming_core.hardware import Machine
from streaming_core.models.outline import ModelOutline
from streaming_core.profile import Entry, Profile

__all__ = ["Output"]


@dataclass(frozen=True, slots=True)
class Output:
    """The profile that results go into, again and again while the run gets better ones."""

    path: Path
    profile: Profile  # as it was before the run
    outline: ModelOutline
    machine: Machine
    command: str

    def write_best(self, result: TuneResult) -> None:
        self.write(result)

    def write(self, result: TuneResult, curve: Sequence[BudgetPoint] = (), *, finished: bool = True) -> bool:
        """False where the profile has something better, and is left as it is.

        `curve`: the budgets that `result` was chosen from; not all of those wanted if not `finished`.
        """
        interrupted = result.status is Status.INTERRUPTED or not finished
        if self._keeps(result, interrupted=interrupted):
            return False
        shown = {"curve": [point.to_json() for point in curve]} if curve else {}
        entry = Entry(
            fingerprint=self.outline.fingerprint,
            settings=result.settings,
            status="interrupted" if interrupted else "measured",
            evidence={**result.evidence(), **shown, "conditions": _conditions(self.machine), "versions": versions()},
            command=self.command,
            written=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        )
        disk = {"disk": rounded([row.to_json() for row in result.disk])} if result.disk else self.profile.probe
        replace(self.profile, probe=disk).with_entry(self.outline.name, entry).write(self.path)
        return True

    def _keeps(self, result: TuneResult, *, interrupted: bool) -> bool:
        """Whether it has a finished result for this very model, which half a run, or one without the time to try
        anything, does not replace."""
        earlier = self.profile.entries.get(self.outline.name)
        if earlier is None or earlier.status != "measured" or earlier.fingerprint != self.outline.fingerprint:
            return False
        tried = earlier.evidence.get("search", {}).get("tried", 1)
        return interrupted or (result.search["tried"] == 0 and bool(tried))


def _conditions(machine: Machine) -> dict[str, Any]:
    found = machine.conditions()
    return {
        "power": found.power,
        "low_power": found.low_power,
        "thermal": found.thermal,
        "load_1m": round(found.load_1m, 2),
    }
