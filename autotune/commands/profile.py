"""`mlx-autotune profile`: validate files, compare two, export an entry to commit."""

from __future__ import annotations

import argparse
import contextlib
import os
import pwd
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from autotune.context import Context, model_name, profile_for
from autotune.errors import RequestInvalid
from autotune.sharing import shareable
from autotune.tables import plain_table
from autotune.wording import gain_text, tps_text
from streaming_core.errors import ProfileInvalid
from streaming_core.hardware import detect
from streaming_core.profile import Entry, Profile
from streaming_core.units import format_size

__all__ = ["run"]


def run(args: argparse.Namespace, context: Context) -> int:
    match args.action:
        case "validate":
            return _validate(args, context)
        case "diff":
            return _diff(args, context)
        case "export":
            return _export(args, context)
        case action:
            raise AssertionError(action)


def _validate(args: argparse.Namespace, context: Context) -> int:
    faults: dict[str, str | None] = {}
    for path in args.files:
        try:
            Profile.read(path)
            faults[str(path)] = None
        except ProfileInvalid as err:
            faults[str(path)] = " ".join(str(err).split())
    wrong = [fault for fault in faults.values() if fault is not None]
    summary = "\n".join([*wrong, f"{len(faults) - len(wrong)} of {len(faults)} can be used"])

    def show(console: Console) -> None:
        for path, fault in faults.items():
            console.print(Text(fault or f"{path}: fine"), soft_wrap=True)

    context.screen.result({"files": [{"path": path, "fault": fault} for path, fault in faults.items()]}, summary, show)
    return 1 if wrong else 0


def _diff(args: argparse.Namespace, context: Context) -> int:
    first, second = Profile.read(args.first), Profile.read(args.second)
    pairs = _pairs(first, second, args.model)
    machines = [_machine(each) for each in (first, second)]
    data = {
        "first": str(args.first),
        "second": str(args.second),
        "machines": machines,
        "models": {name: _compared(*pair) for name, pair in pairs.items()},
    }
    lines = [_line(name, *pair) for name, pair in pairs.items()]

    def show(console: Console) -> None:
        rows = [["machine", *machines]]
        console.print(plain_table(["", args.first.name, args.second.name], rows))
        for pair, line in zip(pairs.values(), lines, strict=True):
            console.print(Text(line))
            if table := _rows(*pair):
                console.print(plain_table(["", "", ""], table))

    context.screen.result(data, "\n".join(lines) or "neither has an entry", show)
    return 0


_Pair = tuple[Entry | None, Entry | None]


def _pairs(first: Profile, second: Profile, model: str | None) -> dict[str, _Pair]:
    """By name; one of the two is None where only the other profile has the model."""
    if model is not None:
        return {model: (first.entry(model), second.entry(model))}
    pairs: dict[str, _Pair] = {}
    met = set()
    for name, entry in first.entries.items():
        other = name if name in second.entries else second.entry_name(name)
        met.add(other)
        pairs[name] = (entry, None if other is None else second.entries[other])
    return {**pairs, **{name: (None, entry) for name, entry in second.entries.items() if name not in met}}


def _machine(profile: Profile) -> str:
    return profile.hardware.profile_name()


def _line(name: str, first: Entry | None, second: Entry | None) -> str:
    if first is None or second is None:
        return f"{name}: only in the {'second' if first is None else 'first'}"
    count = len(first.settings.changes_from(second.settings))
    checkpoint = "" if first.fingerprint == second.fingerprint else ", of different checkpoints"
    settings = "1 setting differs" if count == 1 else f"{count or 'no'} settings differ"
    return f"{name}: {settings}{checkpoint}"


def _compared(first: Entry | None, second: Entry | None) -> dict[str, Any]:
    if first is None or second is None:
        return {"only_in": "second" if first is None else "first"}
    mine, theirs = first.settings.changes_from(second.settings), second.settings.changes_from(first.settings)
    return {
        "same_checkpoint": first.fingerprint == second.fingerprint,
        "settings": {key: [mine[key], theirs[key]] for key in mine},
        "evidence": {key: list(pair) for key, pair in _evidence(first, second).items()},
    }


def _rows(first: Entry | None, second: Entry | None) -> list[list[str]]:
    if first is None or second is None:
        return []
    mine, theirs = first.settings.changes_from(second.settings), second.settings.changes_from(first.settings)
    rows = [[key, _word(mine[key]), _word(theirs[key])] for key in mine]
    return rows + [[key, *pair] for key, pair in _evidence(first, second).items()]


def _word(value: Any) -> str:
    return "none" if value is None else str(value)


def _evidence(first: Entry, second: Entry) -> dict[str, tuple[str, str]]:
    """What both, or one, has to say for itself."""
    mine, theirs = _facts(first), _facts(second)
    return {key: (mine.get(key, "-"), theirs.get(key, "-")) for key in {**mine, **theirs}}


def _facts(entry: Entry) -> dict[str, str]:
    """Whatever of our own evidence is there; a profile written by hand may have none, or another."""
    found = {"status": entry.status}
    if entry.written:
        found["written"] = entry.written[:10]
    for side in ("default", "tuned", "ceiling", "forecast"):
        facts = _mapping(entry.evidence.get(side))
        tps = facts.get("decode_tps", facts.get("tps"))
        if isinstance(tps, (int, float)):
            found[f"{side} tok/s"] = tps_text(float(tps))
    interval = _mapping(entry.evidence.get("interval"))
    ends = (interval.get("low"), interval.get("high"))
    if all(isinstance(end, (int, float)) for end in ends):
        found["gain at 95 %"] = " to ".join(gain_text(float(end)) for end in ends if end is not None)
    budget = entry.evidence.get("budget_bytes")
    if isinstance(budget, int):
        found["budget"] = format_size(budget)
    found.update({name: str(version) for name, version in _mapping(entry.evidence.get("versions")).items()})
    return found


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _export(args: argparse.Namespace, context: Context) -> int:
    model, output, machine = model_name(args), args.output, detect()
    if output is not None and output.suffix not in (".yaml", ".yml"):
        raise RequestInvalid(f"--output {output}: a .yaml file is expected")
    if output is not None and output.exists():
        raise RequestInvalid(f"--output {output}: is there already; name a file that is not, or remove it")
    found = profile_for(args, machine)
    name = None if found is None or found.path is None else found.entry_name(model)
    if found is None or found.path is None or name is None:
        reason = "no profile was wanted" if found is None else found.reason
        raise RequestInvalid(f"there is no entry for {model} ({reason}); `mlx-autotune run --model {model}` makes one")
    if difference := found.hardware.difference(machine.hardware()):
        raise RequestInvalid(f"{found.path} is of another machine ({difference}); share it from there")
    users = _users(context.environment)
    shared = shareable(Profile.read(found.path), name, users)  # as it was measured, not as it would be used now
    text = shared.to_text()
    if output is not None:
        shared.write(output)
    written = None if output is None else str(output)
    summary = text.rstrip("\n") if output is None else f"{name} of {found.path}: written to {output}"
    data = {"model": name, "source": str(found.path), "output": written, "profile": shared.to_mapping()}
    context.screen.result(data, summary, lambda console: console.out(summary, highlight=False))
    return 0


def _users(environment: Mapping[str, str]) -> set[str]:
    """Whoever is at this machine: the account, who became it, and the owner of the home folder."""
    found = {environment.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER")}
    with contextlib.suppress(KeyError):  # a container's user with a number and no name
        found.add(pwd.getpwuid(os.getuid()).pw_name)
    with contextlib.suppress(RuntimeError):
        found.add(Path.home().name)
    return found
