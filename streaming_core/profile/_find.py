"""Which profile a program should use on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from streaming_core.hardware import Hardware, Machine, detect
from streaming_core.models.resolve import default_cache_dir
from streaming_core.profile._profile import Profile
from streaming_core.settings import Settings

__all__ = ["default_folders", "load_profile"]


def default_folders() -> list[Path]:
    """Where this machine's profile is looked for: the current folder, the user's own, then those that came with us."""
    folders = [Path.cwd() / "profiles", default_cache_dir() / "profiles"]
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / "pyproject.toml").is_file():  # else these are the site-packages of everybody
        folders.append(checkout / "profiles")
    return list(dict.fromkeys(folders))


def load_profile(
    model_or_path: str | Path | None = None,
    *,
    folders: Sequence[Path] | None = None,
    machine: Machine | None = None,
) -> Profile:
    """The profile to use here; its `reason` says in one line which file that is and why.

    - With a path that ends in .yaml or .yml: that file, on any machine.  Models without an entry raise.
    - Otherwise the file `<profile_name of this machine>.yaml`, in `folders` or those of `default_folders()`.  One that
      was written on another chip, backend or memory size is passed over, and `reason` says so.  With a model, a file
      with an entry for it goes before one without.
    - Nothing found: the built-in default, whose `path` is None.
    - A profile that was searched for never raises for want of an entry: such models get the built-in default.

    Raises:
        ProfileInvalid: a file was found but cannot be read.
    """
    here = (machine or detect()).hardware()
    if model_or_path is not None and Path(model_or_path).suffix in (".yaml", ".yml"):
        return _asked_for(Path(model_or_path), here)
    name = f"{here.profile_name()}.yaml"
    places = default_folders() if folders is None else list(folders)
    found: list[Profile] = []
    refused: list[str] = []
    for path in (folder / name for folder in places):
        if not path.exists():
            continue
        profile = Profile.read(path)
        if difference := profile.hardware.difference(here):
            refused.append(f"{path} is of another machine ({difference})")
        else:
            found.append(profile)
    if found:
        return _best(found, model_or_path)
    why = "; ".join(refused) or f"no {name} in {', '.join(map(str, places)) or 'no folder'}"
    return Profile(hardware=here, reason=f"built-in default: {why}", fallback=Settings())


def _asked_for(path: Path, here: Hardware) -> Profile:
    profile = Profile.read(path)
    profile = replace(profile, reason=profile.reason + _modelled(profile))
    difference = profile.hardware.difference(here)
    if difference is None:
        return profile
    return replace(profile, reason=f"{profile.reason}, though of another machine ({difference})")


def _best(found: Sequence[Profile], model: str | Path | None) -> Profile:
    """The first that knows the model, else the first."""
    if model is None:
        return replace(
            found[0], reason=f"{found[0].path}: this machine's profile{_modelled(found[0])}", fallback=Settings()
        )
    for profile in found:
        name = profile.entry_name(model)
        if name is not None:
            entry = profile.entries[name]
            when = f" {entry.written[:10]}" if entry.written else ""
            reason = f"{profile.path}: this machine's profile, entry {name} ({entry.status}{when})"
            return replace(profile, reason=reason, fallback=Settings())
    there = ", ".join(found[0].entries) or "none"
    reason = f"built-in default: {found[0].path} has no entry for {model} (entries: {there})"
    return replace(found[0], reason=reason, fallback=Settings())


def _modelled(profile: Profile) -> str:
    """Of which entries nothing was ever run."""
    names = [name for name, entry in profile.entries.items() if entry.status == "modelled"]
    return f" (modelled, never run: {', '.join(names)})" if names else ""
