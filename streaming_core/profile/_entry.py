"""What was found for one model on one machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from streaming_core.errors import ProfileInvalid, SettingsError
from streaming_core.profile._strict import check_keys, mapping_at, plain, text_at
from streaming_core.settings import Settings

__all__ = ["ENTRY_KEYS", "ENTRY_REQUIRED", "STATUSES", "Entry"]

# measured: the search ended and its winner was compared with the default; interrupted: the best until it was stopped;
# modelled: computed from measurements of parts, never run.
STATUSES = ("measured", "interrupted", "modelled")

ENTRY_REQUIRED = ("fingerprint", "status", "settings")
ENTRY_KEYS = ("fingerprint", "status", "written", "command", "settings", "evidence")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Settings of one model with what speaks for them.  Evidence is copied, and must be plain data."""

    fingerprint: str  # of the checkpoint that was measured
    settings: Settings
    status: str = "measured"
    evidence: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""  # measures this again
    written: str = ""  # ISO date, or date and time

    def __post_init__(self) -> None:
        _check(self, "entry")
        object.__setattr__(self, "evidence", plain(mapping_at(self.evidence, "evidence"), "evidence"))

    def to_mapping(self) -> dict[str, Any]:
        """Plain data for YAML, with every setting."""
        return {
            "fingerprint": self.fingerprint,
            "status": self.status,
            "written": self.written,
            "command": self.command,
            "settings": self.settings.to_mapping(),
            "evidence": plain(self.evidence, "evidence"),
        }

    @classmethod
    def from_mapping(cls, raw: object, where: str) -> Entry:
        """The inverse of `to_mapping`; settings that are not there have their default.  Raises ProfileInvalid."""
        mapping = mapping_at(raw, where)
        check_keys(mapping, ENTRY_KEYS, ENTRY_REQUIRED, where)
        texts = {key: text_at(mapping, key, where) for key in ENTRY_KEYS[:4] if key in mapping}
        evidence = plain(mapping_at(mapping.get("evidence", {}), f"{where}.evidence"), f"{where}.evidence")
        try:
            settings = Settings.from_mapping(mapping["settings"], f"{where}.settings")
        except SettingsError as err:
            raise ProfileInvalid(str(err)) from err
        try:
            return cls(settings=settings, evidence=evidence, **texts)
        except ProfileInvalid as err:
            raise ProfileInvalid(where + str(err).removeprefix("entry")) from None


def _check(entry: Entry, where: str) -> None:
    for name in ("fingerprint", "status", "command", "written"):
        if not isinstance(getattr(entry, name), str):
            raise ProfileInvalid(f"{where}: {name} must be text, got {getattr(entry, name)!r}")
    if not entry.fingerprint:
        raise ProfileInvalid(f"{where}: fingerprint is empty; it tells which checkpoint was measured")
    if entry.status not in STATUSES:
        raise ProfileInvalid(f"{where}: status must be one of {', '.join(STATUSES)}, got {entry.status!r}")
    if entry.written:
        try:
            date.fromisoformat(entry.written[:10])
        except ValueError:
            example = '"2030-01-31"'
            raise ProfileInvalid(f"{where}: written must be a date such as {example}, got {entry.written!r}") from None
