"""`mlx-autotune run`: search, race, verdict, profile."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import optuna

from autotune.context import (
    Context,
    chosen_settings,
    model_name,
    say_budget,
    say_busy,
    say_kernels,
    say_reader,
    say_unused,
    set_values,
)
from autotune.errors import RequestInvalid
from autotune.estimate import estimate
from autotune.knobs import Params
from autotune.options import duration_s
from autotune.prepare import Place, outline_of, pack_store, store_files
from autotune.probe import DiskRow, probe_disk
from autotune.request import Subject, TuneRequest
from autotune.result import Status, TuneResult, rounded
from autotune.runner import WorkerRunner
from autotune.shared_study import without_password
from autotune.simulate.outlook import Outlook
from autotune.simulate.priors import best_of, candidates, foreseen
from autotune.space import Objective, Space
from autotune.subject import probe_plan, subject_of
from autotune.tables import dry_run_table, result_table
from autotune.tuner import tune
from autotune.versions import program_version, versions
from autotune.workloads import pages_of, repeats_of, workload_of
from streaming_core.errors import AutotuneError, ProfileInvalid
from streaming_core.hardware import Machine, detect
from streaming_core.models.outline import ModelOutline
from streaming_core.profile import Entry, Profile, Program
from streaming_core.progress import Progress
from streaming_core.settings import Settings

__all__ = ["run"]

_TRIALS = 40
_SIMULATION_S = 8.0
_EXIT = {Status.PROVEN: 0, Status.DEFAULT_KEPT: 0, Status.INTERRUPTED: 130}


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
    request = replace(request, priors=_priors(args, machine))
    outline = outline_of(model, place, screen.progress)
    say_unused(outline, screen)
    subject = subject_of(model, outline, place)
    if args.dry_run:
        found = estimate(request, subject, outline, place)
        screen.result(found.to_json(), found.summary, lambda console: dry_run_table(console, found))
        return 0
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # what it has to say about studies is said by the screen
    output = _Output(path, profile, outline, machine, _shown(context.command_line, args.storage))
    result = _tuned(request, subject, outline, place, context, output.write_best)
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
    return _EXIT[result.status]


@dataclass(frozen=True, slots=True)
class _Output:
    """The profile that results go into, again and again while the run gets better ones."""

    path: Path
    profile: Profile  # as it was before the run
    outline: ModelOutline
    machine: Machine
    command: str

    def write_best(self, result: TuneResult) -> None:
        self.write(result)

    def write(self, result: TuneResult) -> bool:
        """False where the profile has something better, and is left as it is."""
        if self._keeps(result):
            return False
        entry = Entry(
            fingerprint=self.outline.fingerprint,
            settings=result.settings,
            status="interrupted" if result.status is Status.INTERRUPTED else "measured",
            evidence={**result.evidence(), "conditions": _conditions(self.machine), "versions": versions()},
            command=self.command,
            written=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        )
        disk = {"disk": rounded([row.to_json() for row in result.disk])} if result.disk else self.profile.probe
        replace(self.profile, probe=disk).with_entry(self.outline.name, entry).write(self.path)
        return True

    def _keeps(self, result: TuneResult) -> bool:
        """Whether it has a finished result for this very model, which half a run, or one without the time to try
        anything, does not replace."""
        earlier = self.profile.entries.get(self.outline.name)
        if earlier is None or earlier.status != "measured" or earlier.fingerprint != self.outline.fingerprint:
            return False
        tried = earlier.evidence.get("search", {}).get("tried", 1)
        return result.status is Status.INTERRUPTED or (result.search["tried"] == 0 and bool(tried))


def _shown(command: str, storage: str | None) -> str:
    """Profiles are passed on: no password of a database in them."""
    return command if storage is None else command.replace(storage, without_password(storage))


def request_of(args: argparse.Namespace, priors: tuple[Settings, ...]) -> TuneRequest:
    """Raises RequestInvalid, SettingsError."""
    values = set_values(args)
    time_s = None if args.time is None else duration_s(args.time)
    trials = _TRIALS if args.trials is None and time_s is None else args.trials
    base = Settings().with_values(values, "--set")
    return TuneRequest(
        base=base,
        workload=workload_of(args, base.memory.context),
        fixed=frozenset(values),
        objective=Objective(args.objective),
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


def _tuned(
    request: TuneRequest,
    subject: Subject,
    outline: ModelOutline,
    place: Place,
    context: Context,
    on_best: Callable[[TuneResult], None],
) -> TuneResult:
    screen = context.screen
    say_busy(place.machine, screen)
    say_reader(request.base, screen)
    say_kernels(request.base, place.machine, screen)

    def probe() -> Sequence[DiskRow]:
        settings = request.base
        pack_store(outline, place, settings, screen.progress)
        files = store_files(outline, place, settings.store.layout)
        return probe_disk(
            files,
            place.machine,
            probe_plan(outline, settings),
            lambda done, of: screen.progress(Progress("probing the disk", done, of, "points")),
        )

    def foresee(space: Space) -> Sequence[Params]:
        if place.machine.hardware().backend == "cuda" or request.objective is not Objective.DECODE:
            return ()  # what the simulation does not tell
        proposals = candidates(space, request.seed)
        asked = Outlook(
            model=subject.asked,
            cache_dir=place.cache_dir,
            workload=request.workload,
            base=space.base.to_mapping(),
            candidates=[space.settings(params).to_mapping() for params in proposals],
            limit_s=_SIMULATION_S,
        )
        try:
            return best_of(foreseen(asked, context.environment), proposals)
        except AutotuneError as err:
            screen.notice(f"no settings were foreseen by simulation: {err}")
            return ()

    try:
        with WorkerRunner(context.environment) as runner:
            return tune(
                request, subject, runner, place.cache_dir, screen.event, probe=probe, foresee=foresee, on_best=on_best
            )
    finally:
        screen.close()


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


def _priors(args: argparse.Namespace, machine: Machine) -> tuple[Settings, ...]:
    """Settings that served this model before, worth a trial each."""
    if args.profile == "none":
        return ()
    settings = chosen_settings(args, machine).settings
    return () if settings == Settings().with_values(set_values(args)) else (settings,)


def _conditions(machine: Machine) -> dict[str, Any]:
    found = machine.conditions()
    return {
        "power": found.power,
        "low_power": found.low_power,
        "thermal": found.thermal,
        "load_1m": round(found.load_1m, 2),
    }
