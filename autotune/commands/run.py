"""`mlx-autotune run`: search, race, verdict, profile."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

import optuna

from autotune.commands.curve import along_budgets
from autotune.commands.output import Output
from autotune.commands.tuning import EXIT, tuned
from autotune.context import (
    Context,
    chosen_settings,
    model_name,
    say_budget,
    say_unused,
    set_values,
)
from autotune.errors import RequestInvalid
from autotune.estimate import estimate
from autotune.options import PARETO, duration_s
from autotune.prepare import Place, outline_of
from autotune.request import TuneRequest
from autotune.result import Status
from autotune.shared_study import without_password
from autotune.space import Objective
from autotune.subject import subject_of
from autotune.tables import dry_run_table, result_table
from autotune.versions import program_version
from autotune.workloads import pages_of, repeats_of, workload_of
from streaming_core.errors import ProfileInvalid
from streaming_core.hardware import Machine, detect
from streaming_core.profile import Profile, Program
from streaming_core.settings import Settings

__all__ = ["run"]

_TRIALS = 40
_CURVE_TRIALS = 20  # for each budget


def run(args: argparse.Namespace, context: Context) -> int:
    model = model_name(args)
    request = request_of(args, priors=())
    machine = detect()
    place = Place(machine, args.cache_dir)
    screen = context.screen
    path = args.output or Path("profiles") / f"{machine.hardware().profile_name()}.yaml"
    profile = _profile_at(path, machine)
    if not args.dry_run:
        _check_folder(path)
    say_budget(request.base, machine.hardware(), screen)
    outline = outline_of(model, place, screen.progress)
    request = replace(request, priors=_priors(args, machine, outline.fingerprint))
    say_unused(outline, screen)
    subject = subject_of(model, outline, place)
    if args.dry_run:
        if args.objective == PARETO:
            screen.notice("what follows is for the largest budget; as much again for each of the others")
        found = estimate(request, subject, outline, place)
        screen.result(found.to_json(), found.summary, lambda console: dry_run_table(console, found))
        return 0
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # what it has to say about studies is said by the screen
    output = Output(path, profile, outline, machine, _shown(context.command_line, args.storage))
    if args.objective == PARETO:
        return along_budgets(request, subject, outline, place, context, output)
    result = tuned(request, subject, outline, place, context, output.write_best)
    if result.status is Status.INTERRUPTED:
        where = place.cache_dir / "studies" / str(result.search["study"])
        screen.notice(f"the trials so far are in {where}; the same command carries on")
    kept = not output.write(result)
    written = f"{path} keeps its finished result for {outline.name}" if kept else f"written to {path}"
    if kept:
        screen.notice(written)
    summary = f"{result.status.value}: {result.reason}; {written}"
    screen.result(
        {"profile": str(path), "written": not kept, **result.to_json()},
        summary,
        lambda console: result_table(console, result, path),
    )
    return EXIT[result.status]


def _shown(command: str, storage: str | None) -> str:
    """Profiles are passed on: no password of a database in them."""
    return command if storage is None else command.replace(storage, without_password(storage))


def request_of(args: argparse.Namespace, priors: tuple[Settings, ...]) -> TuneRequest:
    """Raises RequestInvalid, SettingsError."""
    values = set_values(args)
    time_s = None if args.time is None else duration_s(args.time)
    curve = args.objective == PARETO
    usual = _CURVE_TRIALS if curve else _TRIALS
    trials = usual if args.trials is None and time_s is None else args.trials
    base = Settings().with_values(values, "--set")
    return TuneRequest(
        base=base,
        workload=workload_of(args, base.memory.context),
        fixed=frozenset(values),
        objective=Objective.DECODE if curve else Objective(args.objective),
        trials=trials,
        time_s=time_s,
        seed=args.seed,
        repeats=repeats_of(args),
        pages=pages_of(args),
        fresh=args.fresh,
        priors=priors,
        version=program_version(),
        storage=args.storage,
    )


def _profile_at(path: Path, machine: Machine) -> Profile:
    """What the result will be added to.  Read before hours are spent.  Raises ProfileInvalid, RequestInvalid."""
    if path.suffix not in (".yaml", ".yml"):
        raise RequestInvalid(f"--output {path}: a .yaml file is expected")
    hardware = machine.hardware()
    program = Program(version=program_version())
    if not os.path.lexists(path):
        return Profile(hardware=hardware, program=program)
    profile = Profile.read(path)
    if difference := profile.hardware.difference(hardware):
        raise ProfileInvalid(f"{path} is of another machine ({difference}); name another file with --output")
    return replace(profile, hardware=hardware, program=program)


def _check_folder(path: Path) -> None:
    """Raises RequestInvalid when no file can be put there: better now than after hours."""
    folder = Path(os.path.realpath(path)).parent
    while not os.path.lexists(folder):
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise RequestInvalid(f"--output {path}: {folder} is no folder that can be written to; choose another")


def _priors(args: argparse.Namespace, machine: Machine, fingerprint: str) -> tuple[Settings, ...]:
    """Settings that served this model before, worth a trial each."""
    if args.profile == "none":
        return ()
    settings = chosen_settings(args, machine, fingerprint).settings
    return () if settings == Settings().with_values(set_values(args)) else (settings,)
