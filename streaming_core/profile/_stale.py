"""What is not as it was when an entry was measured."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from streaming_core.hardware import Conditions, Hardware

if TYPE_CHECKING:
    from streaming_core.profile._entry import Entry
    from streaming_core.profile._profile import Profile

__all__ = ["VERSIONS", "changes_since", "installed", "power_changes", "records_power"]

VERSIONS = ("mlx-autotune", "mlx", "mlx-lm")  # what trials run through


def installed(names: tuple[str, ...] = VERSIONS) -> dict[str, str]:
    """By distribution; "source" when it is run from a checkout without being installed."""
    # Imported only here: it takes a third of the time that finding a profile does.
    metadata = importlib.import_module("importlib.metadata")
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "source"
    return found


def recorded_versions(profile: Profile, entry: Entry) -> dict[str, str]:
    then = entry.evidence.get("versions")
    own = {"mlx-autotune": profile.program.version} if profile.program.version else {}
    return {**own, **{str(key): str(value) for key, value in (then if isinstance(then, Mapping) else {}).items()}}


def changes_since(
    profile: Profile, entry: Entry, here: Hardware, versions: Mapping[str, str], fingerprint: str | None = None
) -> list[str]:
    """Checkpoint, operating system and versions that have changed, in words.

    What the profile does not tell is not held against it, nor what `versions` and `fingerprint` do not.
    """
    found = []
    if fingerprint is not None and entry.fingerprint != fingerprint:
        found.append(f"the checkpoint is another one ({_said(entry.fingerprint)} then, {fingerprint} now)")
    systems = (profile.hardware.os_version, here.os_version)
    same_system = profile.hardware.system == here.system == "darwin"  # macOS decides what stays in memory
    if same_system and all(systems) and systems[0] != systems[1]:
        found.append(f"macOS was {_said(systems[0])}, now it is {systems[1]}")
    recorded = recorded_versions(profile, entry)
    for name in VERSIONS:
        if name in versions and recorded.get(name, versions[name]) != versions[name]:
            found.append(f"{name} was {_said(recorded[name])}, now it is {versions[name]}")
    return found


def _said(text: str) -> str:
    """Others wrote it: no line breaks, no commands to the terminal."""
    return text if text.isprintable() and len(text) < 80 else repr(text[:80])


def records_power(entry: Entry) -> bool:
    return isinstance(entry.evidence.get("conditions"), Mapping)


def power_changes(entry: Entry, now: Conditions) -> list[str]:
    """Power source and low power mode, in words."""
    then = entry.evidence.get("conditions")
    if not isinstance(then, Mapping):
        return []
    found = []
    power = then.get("power")
    if isinstance(power, str) and {power, now.power} == {"ac", "battery"}:
        found.append(f"power was {power}, now it is {now.power}")
    low = then.get("low_power")
    if isinstance(low, bool) and isinstance(now.low_power, bool) and low != now.low_power:
        words = {True: "on", False: "off"}
        found.append(f"low power mode was {words[low]}, now it is {words[now.low_power]}")
    return found
