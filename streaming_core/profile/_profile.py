"""A profile as a value: one machine, and an entry for each model measured on it."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from streaming_core.errors import DiskFull, ProfileInvalid
from streaming_core.hardware import Hardware
from streaming_core.models.resolve import ALIASES, model_names
from streaming_core.profile._document import dump, parse, read_text
from streaming_core.profile._entry import Entry
from streaming_core.profile._strict import check_keys, mapping_at, plain, text_at
from streaming_core.settings import Settings
from streaming_core.whole_file import replace_file

__all__ = ["KEYS", "REQUIRED", "VERSION", "Profile", "Program"]

VERSION = "1"
KEYS = ("schema_version", "program", "hardware", "probe", "models")
REQUIRED = ("schema_version", "hardware", "models")


@dataclass(frozen=True, slots=True)
class Program:
    """Who wrote a profile."""

    name: str = "mlx-autotune"
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Immutable; `with_entry` gives a new one.  Where it came from does not count when two are compared."""

    hardware: Hardware
    entries: Mapping[str, Entry] = field(default_factory=dict)
    program: Program = Program()
    probe: Mapping[str, Any] | None = None
    path: Path | None = field(default=None, compare=False)  # None: built in, or not written yet
    reason: str = field(default="", compare=False)  # one line: which file this is, and why this one
    fallback: Settings | None = field(default=None, compare=False)  # for models without an entry; None: they raise
    borrowed: bool = field(default=False, compare=False)  # of another machine, and made to fit this one

    def __post_init__(self) -> None:
        object.__setattr__(self, "entries", {name: self.entries[name] for name in sorted(self.entries)})
        if self.probe is not None:
            object.__setattr__(self, "probe", plain(mapping_at(self.probe, "probe"), "probe"))

    @classmethod
    def read(cls, path: str | Path) -> Profile:
        """Reads a file strictly.  Raises ProfileInvalid: file, section, what is wrong and what would be right."""
        path = Path(path)
        raw = parse(read_text(path), path)
        if raw is None:
            raise ProfileInvalid(f"{path}: is empty; `mlx-autotune run` writes a profile")
        mapping = mapping_at(raw, str(path))
        _check_version(mapping, path)
        check_keys(mapping, KEYS, REQUIRED, str(path))
        models = mapping_at(mapping["models"], f"{path}: models")
        for name in models:
            if not isinstance(name, str) or not name:
                raise ProfileInvalid(f"{path}: models: key {name!r} must be a model's name in quotes")
        return cls(
            hardware=_hardware(mapping, path),
            entries={name: Entry.from_mapping(raw, f"{path}: models.{name}") for name, raw in models.items()},
            program=_program(mapping.get("program", {}), f"{path}: program"),
            probe=_probe(mapping, path),
            path=path,
            reason=f"{path}: the file asked for",
        )

    @classmethod
    def read_head(cls, path: Path) -> Profile:
        """Machine and probe, without entries where they come last, as in files that `write` wrote: ten times faster.

        Raises ProfileInvalid, but does not look at the entries.
        """
        head, found, _ = read_text(path).partition("\nmodels:")
        mapping = parse(head, path) if found else None
        if not isinstance(mapping, Mapping) or "hardware" not in mapping:
            return cls.read(path)
        _check_version(mapping, path)
        return cls(hardware=_hardware(mapping, path), probe=_probe(mapping, path), path=path)

    def entry(self, model: str | Path) -> Entry:
        """The entry of a model, by its name, its alias or its folder.

        Raises:
            ProfileInvalid: there is none (with those there are), or a folder's name fits several.
        """
        name = self.entry_name(model)
        if name is None:
            there = ", ".join(self.entries) or "none"
            advice = f"`mlx-autotune run --model {model}` measures it"
            raise ProfileInvalid(f"{self._place()}: no entry for {model}; {advice}. Entries: {there}")
        return self.entries[name]

    def entry_name(self, model: str | Path) -> str | None:
        """The name under which `entry` would find a model; None when it would find none."""
        names = model_names(model)
        for name in names:
            if name in self.entries:
                return name
        # A folder matches whoever owns the model of that name; the id of one owner never matches another's.
        bare = {_tail(name) for name in names if "/" not in name}
        tails = {_tail(name) for name in names}
        found = [
            name
            for name in self.entries
            if ALIASES.get(name) in names or _tail(name) in bare or ("/" not in name and _tail(name) in tails)
        ]
        if len(found) > 1:
            raise ProfileInvalid(f"{self._place()}: {model} fits {' and '.join(found)}; use the full name")
        return found[0] if found else None

    def check_checkpoint(self, model: str | Path, fingerprint: str, folder: Path) -> None:
        """Raises ProfileInvalid when the model's entry was measured on another checkpoint.

        Not where the profile was borrowed: what holds for one checkpoint only was left behind.
        """
        if self.borrowed:
            return
        name = self.entry_name(model)
        if name is not None and self.entry(name).fingerprint != fingerprint:
            raise ProfileInvalid(
                f"{self._place()}: its entry {name!r} was measured on another checkpoint than {folder}; "
                f"run `mlx-autotune run --model {model}` again"
            )

    def for_model(self, model: str | Path) -> Settings:
        """The settings of a model; without an entry, `fallback` if this profile has one.  Raises as `entry` does."""
        if self.fallback is not None and self.entry_name(model) is None:
            return self.fallback
        return self.entry(model).settings

    def with_entry(self, name: str, entry: Entry) -> Profile:
        """A copy in which the model has this entry; the others are untouched."""
        if not name.strip():
            raise ProfileInvalid(f"{self._place()}: the name of a model is empty")
        return replace(self, entries={**self.entries, name: entry})

    def to_mapping(self) -> dict[str, Any]:
        """Plain data for YAML."""
        probe = {} if self.probe is None else {"probe": plain(self.probe, "probe")}
        return {
            "schema_version": VERSION,
            "program": {"name": self.program.name, "version": self.program.version},
            "hardware": self.hardware.to_mapping(),
            **probe,
            "models": {name: entry.to_mapping() for name, entry in self.entries.items()},
        }

    def to_text(self) -> str:
        """What `write` writes.  Raises ProfileInvalid when the content cannot be kept in YAML."""
        return dump(self.to_mapping(), self.path or Path("profile"))

    def write(self, path: str | Path) -> Path:
        """Replaces the file in one step; on any failure and after any crash, the old or the new one is there whole.

        Raises:
            ProfileInvalid: the folder cannot be written to, or the content cannot be kept in YAML.
            DiskFull: no room; the old file is as it was.
        """
        path = Path(path)
        text = dump(self.to_mapping(), path)
        try:
            replace_file(path, text.encode())
        except OSError as err:
            if err.errno == errno.ENOSPC:
                raise DiskFull(f"{path}: no room to write the profile; free space there and run again") from err
            raise ProfileInvalid(f"{path}: cannot be written: {err.strerror or err}; write to another folder") from err
        return path

    def _place(self) -> str:
        return "profile" if self.path is None else str(self.path)


def _tail(name: str) -> str:
    return name.rpartition("/")[2].replace(":", "-")


def _check_version(mapping: Mapping[Any, Any], path: Path) -> None:
    """Before anything else, since a later schema may have other keys."""
    if "schema_version" not in mapping:
        raise ProfileInvalid(f'{path}: schema_version is missing; a profile starts with schema_version: "{VERSION}"')
    version = text_at(mapping, "schema_version", str(path))
    if version == VERSION:
        return
    if version.isdigit() and int(version) > int(VERSION):
        raise ProfileInvalid(f"{path}: schema_version {version} is newer than this program knows; update mlx-autotune")
    raise ProfileInvalid(f'{path}: schema_version must be "{VERSION}", got {version!r}')


def _hardware(mapping: Mapping[Any, Any], path: Path) -> Hardware:
    where = f"{path}: hardware"
    return Hardware.from_mapping(mapping_at(mapping["hardware"], where), where)


def _probe(mapping: Mapping[Any, Any], path: Path) -> Mapping[str, Any] | None:
    probe, where = mapping.get("probe"), f"{path}: probe"
    if probe is None:
        return None
    found: Mapping[str, Any] = plain(mapping_at(probe, where), where)
    return found


def _program(raw: object, where: str) -> Program:
    mapping = mapping_at(raw, where)
    check_keys(mapping, ("name", "version"), (), where)
    return Program(**{key: text_at(mapping, key, where) for key in mapping})
