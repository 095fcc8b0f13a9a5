"""`mlx-autotune verify`: does the profile still hold on this machine?"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from rich.console import Console
from rich.text import Text

from autotune.commands.sides import baseline_of, measure, pair_for
from autotune.contest import FEWEST_ROUNDS, Contestant
from autotune.context import Context, chosen_settings, profile_for, say_kernels, say_settings, set_values
from autotune.errors import RequestInvalid, WorkerFailed
from autotune.options import duration_s
from autotune.prepare import Place, outline_of, pack_store
from autotune.result import rounded
from autotune.runner import Runner, WorkerRunner
from autotune.screen import Screen
from autotune.standing import Standing, Verified, objective_of, staleness, verified
from autotune.trial import Procedure, TrialSpec
from autotune.versions import versions
from autotune.workloads import pages_of, repeats_of, workload_of
from streaming_core.hardware import detect
from streaming_core.profile import Profile
from streaming_core.settings import Settings

__all__ = ["measure_until", "run"]

_STEP = 2  # rounds: an order and the same backwards
_LEAST_ROUNDS = FEWEST_ROUNDS + FEWEST_ROUNDS % _STEP


def run(args: argparse.Namespace, context: Context) -> int:
    if args.rounds < FEWEST_ROUNDS:
        raise RequestInvalid(f"--rounds must be at least {FEWEST_ROUNDS}, got {args.rounds}: fewer prove nothing")
    deadline = time.monotonic() + duration_s(args.time)
    set_values(args)
    place = Place(detect(), args.cache_dir)
    profile = _profile(args, place)
    args.model = args.model or _only_model(profile)
    entry = profile.entry(args.model)
    workload = workload_of(args, entry.settings.memory.context)
    outline = outline_of(args.model, place, context.screen.progress)
    changed = staleness(profile, entry, outline.fingerprint, place.machine.hardware(), versions())
    if changed:
        reason = f"{'; '.join(changed)}; `mlx-autotune run --model {args.model}` measures it anew"
        return _say(Verified(Standing.STALE, reason), profile, args.model, (), context.screen)
    spec = TrialSpec(
        model=args.model,
        settings={},
        workload=workload,
        cache_dir=args.cache_dir,
        procedure=Procedure(repeats=repeats_of(args), pages=pages_of(args)),
    )
    sides = _sides(args, spec, place, context)
    if not sides:
        found = Verified(Standing.KEEP, "the profile keeps the default, so there is nothing to compare")
        return _say(found, profile, args.model, (), context.screen)
    with WorkerRunner(context.environment, shared=False) as runner:
        measure_until(sides, args.rounds, args.seed, deadline, runner, context.screen)
    ours, default = sides
    if not ours.trials and not default.trials:
        raise WorkerFailed(f"neither the profile's settings nor the default run: {ours.failure}")
    return _say(verified(ours, default, objective_of(entry)), profile, args.model, sides, context.screen)


def _profile(args: argparse.Namespace, place: Place) -> Profile:
    profile = profile_for(args, place.machine)
    if profile is None or profile.path is None:
        reason = "no profile was wanted" if profile is None else profile.reason
        raise RequestInvalid(f"there is no profile to verify ({reason}); name one with --profile")
    return profile


def _only_model(profile: Profile) -> str:
    names = list(profile.entries)
    if len(names) != 1:
        raise RequestInvalid(f"--model is missing; {profile.path} has {', '.join(names) or 'no entries'}")
    return names[0]


def _sides(args: argparse.Namespace, spec: TrialSpec, place: Place, context: Context) -> tuple[Contestant, ...]:
    """The profile and its default; empty where they are the same."""
    screen = context.screen
    choice = chosen_settings(args, place.machine)
    say_settings(choice, place.machine.hardware(), screen)
    say_kernels(choice.settings, place.machine, screen)
    outline = outline_of(spec.model, place, screen.progress)
    baseline = baseline_of(choice, spec.model, place.machine.hardware(), screen)
    pair = pair_for(choice, baseline, set_values(args), outline, place, screen)
    if pair.same:
        return ()
    for settings in (pair.streamed, pair.default):  # their layouts may differ
        pack_store(outline, place, settings, screen.progress)

    def contestant(name: str, settings: Settings) -> Contestant:
        return Contestant(name, replace(spec, settings=settings.to_mapping()))

    return contestant("profile", pair.streamed), contestant("default", pair.default)


def measure_until(
    sides: Sequence[Contestant],
    rounds: int,
    seed: int,
    deadline: float,
    runner: Runner,
    screen: Screen,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Rounds in pairs while they fit before the deadline, and as many as an interval needs in any case.

    Returns how many.  It ends when one side fails: there is nothing left to compare.
    """
    done, start = 0, clock()
    while done < rounds and not any(each.failure for each in sides):
        round_s = (clock() - start) / max(1, done)
        if done >= _LEAST_ROUNDS and clock() + _STEP * round_s > deadline:
            break
        step = min(_STEP, rounds - done)
        measure(sides, step, seed + done, runner, screen, before=done, after=rounds - done - step)
        done += step
    return done


def _say(found: Verified, profile: Profile, model: str, sides: Sequence[Contestant], screen: Screen) -> int:
    word = found.standing.name.lower()
    data: dict[str, Any] = {
        "standing": word,
        "reason": found.reason,
        "model": model,
        "profile": str(profile.path),
        "ratio": None if found.ratio is None else asdict(found.ratio),
        "decode_tps": {each.name: [trial.samples for trial in each.trials] for each in sides},
    }
    summary = f"{word}: {found.reason}"

    def show(console: Console) -> None:
        console.print(Text(f"{profile.path}: {model}"))
        console.print(Text(summary))

    screen.result(rounded(data), summary, show)
    return found.standing.value
