"""Whether a profile still holds: what has changed since it was measured, and how it does against the default today."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from autotune.contest import Contestant, Ratio, ratio_of
from autotune.space import Objective
from streaming_core.hardware import Hardware
from streaming_core.profile import Entry, Profile, changes_since

__all__ = ["Standing", "Verified", "objective_of", "staleness", "verified"]


class Standing(Enum):
    """The value is the exit status."""

    KEEP = 0
    DIFFERS = 1
    STALE = 3
    WORSE = 4


@dataclass(frozen=True, slots=True)
class Verified:
    standing: Standing
    reason: str  # one line
    ratio: Ratio | None = None


def staleness(
    profile: Profile, entry: Entry, fingerprint: str, here: Hardware, versions: Mapping[str, str]
) -> list[str]:
    """What is not as it was when the entry was measured, in words.  What the profile does not tell is not held
    against it."""
    found = []
    if entry.fingerprint != fingerprint:
        found.append(f"the checkpoint is another one ({entry.fingerprint} then, {fingerprint} now)")
    if difference := profile.hardware.difference(here):
        found.append(f"the machine is another one ({difference})")
    found += changes_since(profile, entry, here, versions)
    return found


def objective_of(entry: Entry) -> Objective:
    """What the entry was tuned for; decoding unless its evidence says otherwise."""
    workload = entry.evidence.get("workload")
    named = workload.get("objective") if isinstance(workload, Mapping) else None
    known = {each.value: each for each in Objective}
    return known.get(str(named), Objective.DECODE)


def verified(profile: Contestant, default: Contestant, objective: Objective) -> Verified:
    """From paired rounds.  At least one of the two has been measured."""
    if profile.failure:
        return Verified(Standing.WORSE, f"the profile's settings do not run: {profile.failure}")
    if default.failure:
        return Verified(Standing.KEEP, f"the default does not run, the profile does: {default.failure}")
    if len({trial.tokens_hash for each in (profile, default) for trial in each.trials}) > 1:
        return Verified(Standing.DIFFERS, "the profile's tokens differ from the default's")
    ratio = ratio_of(profile, default, objective)
    if ratio is None or ratio.low is None or ratio.high is None:
        return Verified(Standing.KEEP, "too few rounds to say anything against the profile", ratio)
    span = f"x{ratio.middle:.2f} [{ratio.low:.2f}, {ratio.high:.2f}] of the default over {ratio.rounds} rounds"
    if ratio.high < 1.0:
        return Verified(Standing.WORSE, f"slower than the default: {span}", ratio)
    if ratio.low > 1.0:
        return Verified(Standing.KEEP, f"still faster: {span}", ratio)
    return Verified(Standing.KEEP, f"cannot be told from the default: {span}", ratio)
