"""`mlx-autotune bench`: a profile's settings, their default and the resident model, side by side in time."""

from __future__ import annotations

import argparse
import statistics
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Console
from rich.text import Text

from autotune.baseline import Pair
from autotune.commands import bench_kernels
from autotune.commands.sides import baseline_of, measure, pair_for
from autotune.contest import FEWEST_ROUNDS, Contestant, Ratio, ratio_of
from autotune.context import (
    Context,
    chosen_settings,
    model_name,
    say_busy,
    say_checkpoint,
    say_kernels,
    say_settings,
    set_values,
)
from autotune.errors import RequestInvalid, WorkerFailed
from autotune.prepare import Place, outline_of, pack_store, store_files
from autotune.probe import Ceiling, ceiling_of, probe_disk
from autotune.result import rounded
from autotune.runner import WorkerRunner
from autotune.subject import probe_plan
from autotune.tables import ceiling_text, plain_table
from autotune.trial import Engine, Measured, Procedure, TrialSpec
from autotune.wording import changes_text, seconds_text, tps_text
from autotune.workloads import pages_of, repeats_of, workload_of
from streaming_core.hardware import detect
from streaming_core.models.outline import ModelOutline
from streaming_core.settings import Settings
from streaming_core.units import format_size

__all__ = ["run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What was measured.  `streamed` is always there; the others are None where they were not wanted."""

    model: str
    streamed: Contestant
    default: Contestant | None
    resident: Contestant | None
    ceiling: Ceiling | None = None

    @property
    def contestants(self) -> list[Contestant]:
        return [each for each in (self.resident, self.default, self.streamed) if each is not None]

    def ratio_to(self, other: Contestant | None) -> Ratio | None:
        return None if other is None else ratio_of(self.streamed, other)

    @property
    def same_tokens(self) -> bool:
        return len({trial.tokens_hash for each in self.contestants for trial in each.trials}) <= 1


def run(args: argparse.Namespace, context: Context) -> int:
    if args.kernels:
        return bench_kernels.run(args, context)
    if args.rounds < 1:
        raise RequestInvalid(f"--rounds must be at least 1, got {args.rounds}")
    model = model_name(args)
    set_values(args)
    procedure = Procedure(repeats=repeats_of(args), pages=pages_of(args))
    place = Place(detect(), args.cache_dir)
    screen = context.screen
    choice = chosen_settings(args, place.machine)
    workload = workload_of(args, choice.settings.memory.context)
    say_busy(place.machine, screen)
    say_settings(choice, place.machine.hardware(), screen)
    say_kernels(choice.settings, place.machine, screen)
    baseline = baseline_of(choice, model, place.machine.hardware(), screen)
    outline = outline_of(model, place, screen.progress)
    say_checkpoint(outline, choice.settings, screen)
    choice.check(model, outline)
    pair = pair_for(choice, baseline, set_values(args), outline, place, screen)
    spec = TrialSpec(model=model, settings={}, workload=workload, cache_dir=args.cache_dir, procedure=procedure)
    found = _entered(outline.name, pair, args, spec)
    for settings in (pair.streamed, *([] if found.default is None else [pair.default])):  # their layouts may differ
        pack_store(outline, place, settings, screen.progress)
    with WorkerRunner(context.environment, shared=False) as runner:
        measure(found.contestants, args.rounds, args.seed, runner, screen)
    if not found.streamed.trials:
        raise WorkerFailed(f"streaming does not run with these settings: {found.streamed.failure}")
    found = replace(found, ceiling=_ceiling(found, pair.streamed, outline, place))
    summary = ", ".join(f"{each.name} {_decode(each)}" for each in found.contestants if each.trials)
    summary = "; ".join([summary, *_ratio_lines(found)])
    screen.result(_data(found), summary, lambda console: _show(console, found))
    return 0 if found.same_tokens else 1


def _entered(model: str, pair: Pair, args: argparse.Namespace, spec: TrialSpec) -> _Found:
    """The contestants before anything is measured."""

    def contestant(name: str, settings: Settings, engine: Engine = Engine.STREAMED) -> Contestant:
        return Contestant(name, replace(spec, settings=settings.to_mapping(), engine=engine))

    return _Found(
        model=model,
        streamed=contestant("streamed", pair.streamed),
        default=contestant("default", pair.default) if args.always_default or not pair.same else None,
        resident=None if args.skip_resident else contestant("resident", pair.streamed, Engine.RESIDENT),
    )


def _ceiling(found: _Found, settings: Settings, outline: ModelOutline, place: Place) -> Ceiling | None:
    files = store_files(outline, place, settings.store.layout)
    rows = probe_disk(files, place.machine, probe_plan(outline, settings))
    if settings.reading.page_cache == "bypass":  # else the ceiling is that of a cache that is not used
        rows = [row for row in rows if row.page_cache == "bypass"]
    return ceiling_of(found.streamed.trials, rows, [] if found.resident is None else found.resident.trials)


def _decode(contestant: Contestant) -> str:
    speeds = [each.decode_tps for each in contestant.trials]
    return f"{tps_text(statistics.median(speeds))} tok/s"


def _prefill_tps(trial: Measured) -> float:
    return trial.prompt_tokens / sum(trial.prefill_s)


def _data(found: _Found) -> dict[str, Any]:
    data: dict[str, Any] = {"model": found.model, "ceiling": None if found.ceiling is None else asdict(found.ceiling)}
    for each in found.contestants:
        data[each.name] = {
            "failure": each.failure,
            "decode_tps": [trial.samples for trial in each.trials],
            "prefill_tps": [_prefill_tps(trial) for trial in each.trials],
            "first_token_s": [trial.prefill_s for trial in each.trials],
            "needed_bytes": [trial.needed_bytes for trial in each.trials],
            "counters": [{**asdict(trial.counters), "layers": None} for trial in each.trials],
            "changes": _changes(each),
            "effective": each.trials[0].effective if each.trials else {},
        }
    data.setdefault("default", data["streamed"])  # nothing else was measured: they are the same settings
    for key, other in (("ratio", found.default), ("ratio_to_resident", found.resident)):
        ratio = found.ratio_to(other)
        data[key] = None if ratio is None else asdict(ratio)
    data["same_tokens"] = found.same_tokens
    plain: dict[str, Any] = rounded(data)
    return plain


def _changes(contestant: Contestant) -> dict[str, Any]:
    """From the built-in default."""
    if contestant.spec.engine is Engine.RESIDENT:
        return {}
    return Settings.from_mapping(contestant.spec.settings).changes_from(Settings())


def _ratio_lines(found: _Found) -> list[str]:
    named = (("the default", found.default), ("resident", found.resident))
    ratios = [(name, found.ratio_to(other)) for name, other in named]
    return [ratio_text(ratio, name) for name, ratio in ratios if ratio is not None]


def ratio_text(ratio: Ratio, of: str) -> str:
    rounds = f"{ratio.rounds} round{'s' if ratio.rounds != 1 else ''}"
    if ratio.low is None or ratio.high is None:
        head = f"streamed is x{ratio.middle:.2f} of {of} over {rounds}"
        return f"{head}; an interval needs at least {FEWEST_ROUNDS}: pass --rounds {FEWEST_ROUNDS} or more"
    span = f"[{ratio.low:.2f}, {ratio.high:.2f}]"
    return f"streamed is x{ratio.middle:.2f} {span} of {of} over {rounds} (at {ratio.level * 100:.0f} %)"


def _show(console: Console, found: _Found) -> None:
    console.print(Text(found.model))
    rows = [[each.name, *_cells(each)] for each in found.contestants if each.trials]
    console.print(plain_table(["", "tok/s", "spread", "prefill", "1st token", "memory"], rows))
    lines = [f"{each.name} {_until(each)}: {each.failure}" for each in found.contestants if each.failure]
    lines += _ratio_lines(found)
    if found.default is None:
        lines.append("the default is what is streamed, so it was measured once; --always-default measures both")
    if found.ceiling is not None:
        lines.append(f"{tps_text(found.ceiling.tps)} tok/s {ceiling_text(found.ceiling, 'streamed')}")
    if found.default is not None:
        lines.append(f"default: {changes_text(_changes(found.default))}")
    lines.append(f"streamed: {changes_text(_changes(found.streamed))}")
    lines.append("the same tokens everywhere" if found.same_tokens else "TOKENS DIFFER between contestants")
    for line in lines:
        console.print(Text(line))


def _until(failed: Contestant) -> str:
    return f"failed in round {len(failed.trials) + 1}" if failed.trials else "was not measured"


def _cells(contestant: Contestant) -> list[str]:
    speeds = [each.decode_tps for each in contestant.trials]
    return [
        tps_text(statistics.median(speeds)),
        f"{tps_text(min(speeds))}-{tps_text(max(speeds))}",
        tps_text(statistics.median(_prefill_tps(each) for each in contestant.trials)),
        seconds_text(statistics.median(each.first_token_s for each in contestant.trials)),
        format_size(max(each.needed_bytes for each in contestant.trials)),
    ]
