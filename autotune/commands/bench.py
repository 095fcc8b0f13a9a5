"""`mlx-autotune bench`: resident and streamed, side by side in time."""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.text import Text

from autotune.context import Choice, Context, chosen_settings, model_name, set_values
from autotune.errors import RequestInvalid, WorkerFailed
from autotune.prepare import Place, outline_of, pack_store, plan_of, store_files
from autotune.probe import Ceiling, ceiling_of, probe_disk
from autotune.result import rounded
from autotune.runner import WorkerRunner
from autotune.subject import probe_plan
from autotune.tables import ceiling_text, plain_table
from autotune.trial import Crashed, Engine, Infeasible, Measured, Procedure, TimedOut, TrialSpec
from autotune.wording import changes_text, seconds_text, tps_text
from autotune.workloads import pages_of, repeats_of, workload_of
from streaming_core.hardware import detect
from streaming_core.progress import Progress
from streaming_core.settings import Settings

__all__ = ["run"]


@dataclass(slots=True)
class _Contestant:
    name: str
    spec: TrialSpec
    trials: list[Measured] = field(default_factory=list)
    failure: str = ""


def run(args: argparse.Namespace, context: Context) -> int:
    if args.rounds < 1:
        raise RequestInvalid(f"--rounds must be at least 1, got {args.rounds}")
    model = model_name(args)
    set_values(args)
    workload = workload_of(args)
    procedure = Procedure(repeats=repeats_of(args), pages=pages_of(args))
    machine = detect()
    place = Place(machine, args.cache_dir)
    screen = context.screen
    choice = chosen_settings(args, machine)
    workload.check_room(choice.settings.memory.context)
    screen.notice(f"settings: {choice.reason}")
    outline = outline_of(model, place, screen.progress)
    plan_of(outline, choice.settings, place)  # what cannot fit is said before anything is packed
    pack_store(outline, place, choice.settings, screen.progress)

    def spec(settings: Settings, engine: Engine) -> TrialSpec:
        return TrialSpec(
            model=model,
            settings=settings.to_mapping(),
            workload=workload,
            cache_dir=args.cache_dir,
            procedure=procedure,
            engine=engine,
        )

    contestants = [_Contestant("resident", spec(choice.settings, Engine.RESIDENT))]
    contestants += [_Contestant(name, spec(each, Engine.STREAMED)) for name, each in _streamed(choice, args)]
    with WorkerRunner(context.environment) as runner:
        _rounds(contestants, args, runner, screen.progress)
    streamed = contestants[-1]
    if not streamed.trials:
        raise WorkerFailed(f"streaming does not run with these settings: {streamed.failure}")
    rows = probe_disk(store_files(outline, place, choice.settings.store.layout), machine, probe_plan(outline))
    ceiling = ceiling_of(streamed.trials, rows)
    data = _data(outline.name, contestants, ceiling)
    summary = ", ".join(f"{each.name} {_decode(each)}" for each in contestants if each.trials)
    screen.result(data, summary, lambda console: _show(console, outline.name, contestants, ceiling))
    return 0 if data["same_tokens"] else 1


def _streamed(choice: Choice, args: argparse.Namespace) -> list[tuple[str, Settings]]:
    """The settings in question, and before them the default if that is something else."""
    default = Settings().with_values(set_values(args))
    before = [] if choice.settings == default else [("default", default)]
    return [*before, ("streamed", choice.settings)]


def _rounds(
    contestants: Sequence[_Contestant], args: argparse.Namespace, runner: WorkerRunner, on_progress: Any
) -> None:
    rng = random.Random(args.seed)
    total = args.rounds * len(contestants)
    done = 0
    for _ in range(args.rounds):
        for contestant in rng.sample(list(contestants), len(contestants)):
            on_progress(Progress(f"measuring {contestant.name}", done, total, "trials"))
            done += 1
            if contestant.failure:
                continue
            outcome = runner.run(contestant.spec)
            match outcome:
                case Measured():
                    contestant.trials.append(outcome)
                case Infeasible(reason=reason) | Crashed(reason=reason):
                    contestant.failure = reason
                case TimedOut(after_s=after_s):
                    contestant.failure = f"silent for {after_s:.0f} s"
    on_progress(Progress("measuring", total, total, "trials"))


def _decode(contestant: _Contestant) -> str:
    speeds = [each.decode_tps for each in contestant.trials]
    return f"{tps_text(statistics.median(speeds))} tok/s"


def _prefill_tps(trial: Measured) -> float:
    return trial.prompt_tokens / sum(trial.prefill_s)


def _data(model: str, contestants: Sequence[_Contestant], ceiling: Ceiling | None) -> dict[str, Any]:
    found: dict[str, Any] = {"model": model, "ceiling": None if ceiling is None else asdict(ceiling)}
    for each in contestants:
        found[each.name] = {
            "failure": each.failure,
            "decode_tps": [trial.samples for trial in each.trials],
            "prefill_tps": [_prefill_tps(trial) for trial in each.trials],
            "first_token_s": [trial.prefill_s for trial in each.trials],
            "needed_bytes": [trial.needed_bytes for trial in each.trials],
            "counters": [{**asdict(trial.counters), "layers": None} for trial in each.trials],
            "effective": each.trials[0].effective if each.trials else {},
        }
    found["same_tokens"] = _same_tokens(contestants)
    plain: dict[str, Any] = rounded(found)
    return plain


def _same_tokens(contestants: Sequence[_Contestant]) -> bool:
    return len({trial.tokens_hash for each in contestants for trial in each.trials}) <= 1


def _show(console: Console, model: str, contestants: Sequence[_Contestant], ceiling: Ceiling | None) -> None:
    rows = []
    for each in contestants:
        if each.trials:
            rows.append([each.name, *_cells(each)])
    console.print(Text(model))
    console.print(plain_table(["", "tok/s", "spread", "prefill", "1st token"], rows))
    for each in contestants:
        if each.failure:
            console.print(Text(f"{each.name} was not measured: {each.failure}"))
    if ceiling is not None:
        console.print(Text(f"{tps_text(ceiling.tps)} tok/s {ceiling_text(ceiling)}"))
    settings = Settings.from_mapping(contestants[-1].spec.settings)
    console.print(Text(f"streamed: {changes_text(settings.changes_from(Settings()))}"))
    same = "the same tokens everywhere" if _same_tokens(contestants) else "TOKENS DIFFER between contestants"
    console.print(Text(same))


def _cells(contestant: _Contestant) -> list[str]:
    speeds = [each.decode_tps for each in contestant.trials]
    return [
        tps_text(statistics.median(speeds)),
        f"{tps_text(min(speeds))}-{tps_text(max(speeds))}",
        tps_text(statistics.median(_prefill_tps(each) for each in contestant.trials)),
        seconds_text(statistics.median(each.first_token_s for each in contestant.trials)),
    ]
