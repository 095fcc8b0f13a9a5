"""`mlx-autotune show`: which profile is used here, what it changes, and what speaks for it."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console
from rich.text import Text

from autotune.context import Context, explanation_for, profile_for, set_values
from autotune.wording import gain_text, tps_text
from streaming_core.hardware import detect
from streaming_core.profile import Candidate, Entry
from streaming_core.settings import Settings

__all__ = ["run"]


def run(args: argparse.Namespace, context: Context) -> int:
    set_values(args)
    machine = detect()
    explained = explanation_for(args, machine) if args.explain else None
    profile = profile_for(args, machine) if explained is None else explained.profile
    entries: dict[str, Entry] = {}
    reason = "built-in default: no profile was wanted"
    if profile is not None:
        reason = profile.reason
        name = profile.entry_name(args.model) if args.model else None
        if args.model and name is None and args.profile is not None:
            profile.entry(args.model)  # raises, and says which there are
        entries = dict(profile.entries) if not args.model else {name: profile.entries[name]} if name else {}
    data: dict[str, Any] = {
        "machine": machine.hardware().profile_name(),
        "reason": reason,
        "path": str(profile.path) if profile is not None and profile.path is not None else None,
        "models": {
            name: {"changes": entry.settings.changes_from(Settings()), **entry.to_mapping()}
            for name, entry in entries.items()
        },
    }
    candidates = () if explained is None else explained.candidates
    if args.explain:
        data["candidates"] = [{"path": str(each.path), "used": each.used, "reason": each.reason} for each in candidates]

    def show(console: Console) -> None:
        console.print(Text(f"{data['machine']}: {reason}"))
        for candidate in candidates:
            console.print(Text(_candidate_line(candidate)))
        for name, entry in entries.items():
            for line in entry_lines(name, entry):
                console.print(Text(line))

    context.screen.result(data, reason, show)
    return 0


def _candidate_line(candidate: Candidate) -> str:
    return f"  {'used' if candidate.used else 'passed over'}: {candidate.path}: {candidate.reason}"


def entry_lines(name: str, entry: Entry) -> list[str]:
    """An entry in words."""
    changes = entry.settings.changes_from(Settings())
    lines = [f"{name} [{entry.status}{' ' + entry.written[:10] if entry.written else ''}]"]
    lines += [f"  {key} = {value}" for key, value in changes.items()] or ["  as the built-in default"]
    lines += [f"  {line}" for line in _evidence_lines(entry.evidence)]
    if entry.command:
        lines.append(f"  again: {entry.command}")
    return lines


def _evidence_lines(evidence: Any) -> list[str]:
    """Whatever of our own evidence is there; a profile written by hand may have none."""
    lines = []
    if reason := evidence.get("reason"):
        lines.append(f"verdict: {reason}")
    for side in ("default", "tuned", "ceiling"):
        found = evidence.get(side)
        if isinstance(found, dict) and (tps := found.get("decode_tps", found.get("tps"))) is not None:
            lines.append(f"{side}: {tps_text(float(tps))} tok/s")
    interval, noise = evidence.get("interval"), evidence.get("noise")
    if isinstance(interval, dict) and {"low", "high"} <= interval.keys():
        lines.append(f"gain: {gain_text(float(interval['low']))} to {gain_text(float(interval['high']))} at 95 %")
    if isinstance(noise, dict) and "sigma" in noise:
        lines.append(f"noise: {float(noise['sigma']):.1%}")
    search = evidence.get("search")
    dead = search.get("dead") if isinstance(search, dict) else None
    if isinstance(dead, dict):
        lines += [f"not searched: {key}, {reason}" for key, reason in dead.items()]
    return lines
