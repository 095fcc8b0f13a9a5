"""Which profile a program should use on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from streaming_core.errors import ProfileInvalid
from streaming_core.hardware import Machine, detect
from streaming_core.models.resolve import default_cache_dir
from streaming_core.profile._borrow import distance, incompatible, ssd_gb_per_s
from streaming_core.profile._here import Here
from streaming_core.profile._profile import Profile
from streaming_core.settings import Settings

__all__ = ["Candidate", "Explanation", "default_folders", "explain_profile", "load_profile"]

_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file that was looked at."""

    path: Path
    used: bool
    reason: str  # what it is used as, or why it was passed over


@dataclass(frozen=True, slots=True)
class Explanation:
    """The choice, and everything it was chosen from, in the order in which it was looked at."""

    profile: Profile
    candidates: tuple[Candidate, ...]


def default_folders() -> list[Path]:
    """Where profiles are looked for: the current folder, the user's own, then those that came with us."""
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
    fingerprint: str | None = None,
    versions: Mapping[str, str] | None = None,
) -> Profile:
    """The profile to use here; its `reason` says in one line which file that is, why, and what has changed since.

    - With a path that ends in .yaml or .yml: that file, on any machine.  Models without an entry raise.
    - Otherwise this machine's file in `folders` or those of `default_folders()`; with a model, one that has an entry.
    - Otherwise the nearest compatible machine's: same backend, system and make; least apart in memory, and in the
      disk's speed where both were measured.  What may not fit here goes back to its default.
    - Nothing found: the built-in default, whose `path` is None.
    - A profile that was searched for never raises for want of an entry: such models get the built-in default.

    With the checkpoint's `fingerprint`, counts that only hold for a checkpoint can come from another machine too.
    `versions` are those installed unless given.

    Raises:
        ProfileInvalid: the file asked for, or the one with this machine's name, cannot be read.
    """
    here = Here(machine or detect(), fingerprint, versions)
    if _is_file(model_or_path):
        return here.asked_for(Profile.read(Path(str(model_or_path))))
    return _Search(here, folders, model_or_path).run(everything=False).profile


def explain_profile(
    model_or_path: str | Path | None = None,
    *,
    folders: Sequence[Path] | None = None,
    machine: Machine | None = None,
    fingerprint: str | None = None,
    versions: Mapping[str, str] | None = None,
) -> Explanation:
    """`load_profile` with the reason for every file it could have taken.  Raises as that does."""
    here = Here(machine or detect(), fingerprint, versions)
    if _is_file(model_or_path):
        profile = here.asked_for(Profile.read(Path(str(model_or_path))))
        return Explanation(profile, (Candidate(Path(str(model_or_path)), True, "the file asked for"),))
    return _Search(here, folders, model_or_path).run(everything=True)


def _is_file(model_or_path: str | Path | None) -> bool:
    return model_or_path is not None and Path(model_or_path).suffix in _SUFFIXES


def _path(profile: Profile) -> Path:
    assert profile.path is not None, "it was read"
    return profile.path


class _Search:
    def __init__(self, here: Here, folders: Sequence[Path] | None, model: str | Path | None) -> None:
        self._here = here
        self._places = default_folders() if folders is None else list(folders)
        self._model = model
        self._name = f"{here.hardware.profile_name()}.yaml"
        self._seen: list[Candidate] = []

    def run(self, everything: bool) -> Explanation:
        own, others = self._named()
        first = next(filter(self._serves, own), None)
        if first is None or everything:
            more_own, more_others = self._unnamed(own, everything)
            own, others = own + more_own, others + more_others
            first = first or next(filter(self._serves, own), None)
        near = self._nearest(others, own)
        profile = self._chosen(first, near, own)
        for each in own:
            taken = each is first
            self._see(each, taken, "this machine's profile" if taken else self._why_not_own(each))
        for each in others:
            taken = first is None and each is near
            self._see(each, taken, "the nearest profile" if taken else self._why_not(each))
        order = {path: at for at, path in enumerate(self._paths())}
        seen = sorted(self._seen, key=lambda one: order.get(one.path, -1))
        if profile.path is None or not any(one.used for one in seen):
            profile = replace(profile, reason=profile.reason + self._passed_over(own))
        return Explanation(profile, tuple(seen))

    def _named(self) -> tuple[list[Profile], list[Profile]]:
        """Files with this machine's name.  One that is broken is an error: its owner believes that it is in use."""
        return self._sorted_out(Profile.read(path) for path in self._own_paths() if os.path.exists(path))

    def _unnamed(self, own: Sequence[Profile], everything: bool) -> tuple[list[Profile], list[Profile]]:
        """Files with other names: this machine's first, then from the nearest on until one will do.

        Only what is needed is read whole: a folder of many profiles must not make programs start slowly.
        """
        named = set(self._own_paths())
        heads = self._readable(Profile.read_head, (path for path in self._paths() if path not in named))
        same, strangers = self._sorted_out(heads)
        mine = list(self._readable(Profile.read, (_path(head) for head in self._by_distance(same, own))))
        others: list[Profile] = []
        done = any(map(self._serves, mine))
        for head in self._by_distance(strangers, [*own, *mine]):
            if incompatible(head.hardware, self._here.hardware):
                others.append(head)
            elif everything or not done:
                whole = list(self._readable(Profile.read, [_path(head)]))
                others += whole
                done = any(self._unfit(each) is None and not self._modelled(each) for each in whole)
        return mine, others

    def _own_paths(self) -> list[Path]:
        return [folder / self._name for folder in self._places]

    def _paths(self) -> list[Path]:
        found = self._own_paths()
        for folder in self._places:
            found += sorted(each for suffix in _SUFFIXES for each in folder.glob(f"*{suffix}"))
        return list(dict.fromkeys(found))

    def _readable(self, read: Callable[[Path], Profile], paths: Iterable[Path]) -> Iterator[Profile]:
        for path in paths:
            try:
                yield read(path)
            except ProfileInvalid as err:
                self._seen.append(Candidate(path, False, str(err).removeprefix(str(path)).lstrip(": ")))

    def _sorted_out(self, profiles: Iterable[Profile]) -> tuple[list[Profile], list[Profile]]:
        """This machine's, and those of others."""
        own: list[Profile] = []
        others: list[Profile] = []
        for profile in profiles:
            (others if profile.hardware.difference(self._here.hardware) else own).append(profile)
        return own, others

    def _serves(self, profile: Profile) -> bool:
        return self._model is None or profile.entry_name(self._model) is not None

    def _nearest(self, others: Sequence[Profile], own: Sequence[Profile]) -> Profile | None:
        fit = (each for each in others if self._unfit(each) is None)
        return min(fit, key=lambda each: (self._modelled(each), self._far(each, own)), default=None)

    def _modelled(self, profile: Profile) -> bool:
        names = [profile.entry_name(self._model)] if self._model is not None else list(profile.entries)
        return all(profile.entries[name].status == "modelled" for name in names if name)

    def _by_distance(self, profiles: Iterable[Profile], own: Sequence[Profile]) -> list[Profile]:
        return sorted(profiles, key=lambda each: self._far(each, own))

    def _far(self, profile: Profile, own: Sequence[Profile]) -> float:
        ours = next((speed for each in own if (speed := ssd_gb_per_s(each.probe))), None)
        return distance(profile.hardware, self._here.hardware, ssd_gb_per_s(profile.probe), ours)

    def _unfit(self, other: Profile) -> str | None:
        """Why another machine's profile is of no use here."""
        if difference := incompatible(other.hardware, self._here.hardware):
            return f"is of another machine ({difference})"
        try:
            there = self._serves(other)
        except ProfileInvalid as err:
            return str(err).removeprefix(f"{other.path}: ")
        return None if there and other.entries else f"has no entry for {self._model or 'any model'}"

    def _why_not(self, other: Profile) -> str:
        far = other.hardware.difference(self._here.hardware)
        return self._unfit(other) or f"is of another machine ({far}); there is a better one"

    def _why_not_own(self, own: Profile) -> str:
        return "an earlier folder has one" if self._serves(own) else f"has no entry for {self._model}"

    def _see(self, profile: Profile, used: bool, reason: str) -> None:
        self._seen.append(Candidate(_path(profile), used, reason))

    def _chosen(self, first: Profile | None, near: Profile | None, own: Sequence[Profile]) -> Profile:
        if first is not None:
            return replace(self._here.own(first, self._model), fallback=Settings())
        if near is not None:
            return replace(self._here.nearest(near, self._model), fallback=Settings())
        if own:
            there = ", ".join(own[0].entries) or "none"
            reason = f"built-in default: {own[0].path} has no entry for {self._model} (entries: {there})"
            return replace(self._here.own(own[0], None), reason=reason, fallback=Settings())
        where = ", ".join(map(str, self._places)) or "no folder"
        reason = f"built-in default: no {self._name} in {where}"
        return Profile(hardware=self._here.hardware, reason=reason, fallback=Settings())

    def _passed_over(self, own: Sequence[Profile]) -> str:
        told = {each.path for each in own}
        rest = [one for one in self._seen if one.path not in told]
        if not rest:
            return ""
        if len(rest) == 1:
            return f"; {rest[0].path} {rest[0].reason}"
        return f"; {len(rest)} profiles passed over, `mlx-autotune show --explain` says why"
