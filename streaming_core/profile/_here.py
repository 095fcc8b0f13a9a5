"""What a profile comes to on this machine: its settings made to fit, and the line that says so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from streaming_core.hardware import Conditions, Machine
from streaming_core.profile._borrow import Room, borrowed, fitted, room_of
from streaming_core.profile._entry import Entry
from streaming_core.profile._profile import Profile
from streaming_core.profile._stale import changes_since, installed, power_changes, recorded_versions, records_power
from streaming_core.settings import Settings

__all__ = ["Here"]


class Here:
    """This machine; takes only the readings that a profile makes necessary."""

    def __init__(self, machine: Machine, fingerprint: str | None, versions: Mapping[str, str] | None) -> None:
        self.hardware = machine.hardware()
        self._machine = machine
        self._fingerprint = fingerprint
        self._versions = versions
        self._room: Room | None = None
        self._conditions: Conditions | None = None

    def asked_for(self, profile: Profile) -> Profile:
        difference = profile.hardware.difference(self.hardware)
        reason = f"{profile.path}: the file asked for{_modelled(profile)}"
        if difference is not None:
            reason += f", though of another machine ({difference})"
        # Whoever asks for a file means its counts too; that they are of this checkpoint is checked once it is open.
        names = list(profile.entries)
        fitting, notes = self._fitting(profile, names, difference is not None, trusted=True)
        return replace(fitting, reason="; ".join([reason, *notes, *self._changes(profile, names)]))

    def own(self, profile: Profile, model: str | Path | None) -> Profile:
        names = _names(profile, model)
        reason = f"{profile.path}: this machine's profile{_entry_words(profile, model, names)}"
        fitting, notes = self._fitting(profile, names, False, trusted=True)
        return replace(fitting, reason="; ".join([reason, *notes, *self._changes(profile, names)]))

    def nearest(self, profile: Profile, model: str | Path | None) -> Profile:
        names = _names(profile, model)
        there, here = profile.hardware.profile_name(), self.hardware.profile_name()
        if there == here:
            reason = f"{profile.path}: the nearest profile ({profile.hardware.difference(self.hardware)})"
        else:
            reason = f"{profile.path}: the nearest profile ({there} there, {here} here)"
        reason += _entry_words(profile, model, names)
        fitting, notes = self._fitting(profile, names, True, trusted=False)
        advice = f"`mlx-autotune run --model {'NAME' if model is None else model}` measures this machine"
        line = "; ".join([reason, *notes, *self._changes(profile, names), advice])
        return replace(fitting, borrowed=True, reason=line)

    def _fitting(
        self, profile: Profile, names: list[str], elsewhere: bool, *, trusted: bool
    ) -> tuple[Profile, list[str]]:
        """All entries made to fit, and what was changed in those with these names."""
        entries: dict[str, Entry] = {}
        notes: list[str] = []
        for name, entry in profile.entries.items():
            settings, said = self._settings(entry, profile, elsewhere, trusted)
            entries[name] = replace(entry, settings=settings)
            notes += said if name in names else []
        return replace(profile, entries=entries), _once(notes)

    def _settings(self, entry: Entry, profile: Profile, elsewhere: bool, trusted: bool) -> tuple[Settings, list[str]]:
        if elsewhere:
            fingerprint = entry.fingerprint if trusted else self._fingerprint
            return borrowed(entry, profile.hardware, self._room_here(), fingerprint)
        if entry.settings.memory.budget is None:
            return entry.settings, []
        return fitted(entry.settings, self._room_here())

    def _room_here(self) -> Room:
        if self._room is None:
            self._room = room_of(self.hardware, self._machine.memory())
        return self._room

    def _changes(self, profile: Profile, names: Iterable[str]) -> list[str]:
        """What is not as it was when these entries were measured, as one part of the line."""
        found: list[str] = []
        for entry in (profile.entries[name] for name in names):
            if self._versions is None and recorded_versions(profile, entry):
                self._versions = installed()
            found += changes_since(profile, entry, self.hardware, self._versions or {}, self._fingerprint)
            if records_power(entry):
                self._conditions = self._conditions or self._machine.conditions()
                found += power_changes(entry, self._conditions)
        return [f"since then: {', '.join(_once(found))}"] if found else []


def _names(profile: Profile, model: str | Path | None) -> list[str]:
    if model is None:
        return list(profile.entries)
    name = profile.entry_name(model)
    return [] if name is None else [name]


def _entry_words(profile: Profile, model: str | Path | None, names: list[str]) -> str:
    if model is None:
        return _modelled(profile)
    entry = profile.entries[names[0]]
    when = f" {entry.written[:10]}" if entry.written else ""
    return f", entry {names[0]} ({entry.status}{when})"


def _modelled(profile: Profile) -> str:
    """Of which entries nothing was ever run."""
    names = [name for name, entry in profile.entries.items() if entry.status == "modelled"]
    return f" (modelled, never run: {', '.join(names)})" if names else ""


def _once(words: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(words))
