"""`mlx-autotune predict`: what settings would do to a recorded run, here or on a machine that is not here."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from datetime import date
from typing import Any

from rich.console import Console
from rich.text import Text

from autotune.context import Choice, Context, chosen_settings, model_name, say_settings
from autotune.errors import RequestInvalid
from autotune.prepare import Place, outline_of, pack_store, read_bytes_of
from autotune.simulate.costs import TokenCosts
from autotune.simulate.described import Described, read_described
from autotune.simulate.forecast import Forecast, Point, forecast
from autotune.tables import plain_table
from autotune.versions import program_version
from autotune.wording import tps_text
from streaming_core.hardware import FakeMachine, Machine, MemoryState, default_budget_bytes, detect
from streaming_core.models.outline import ModelOutline
from streaming_core.profile import Entry, Profile, Program
from streaming_core.residency.memory import MemoryPlan, plan_memory
from streaming_core.route_trace import RouteTrace, read_trace
from streaming_core.settings import Settings
from streaming_core.units import format_size

__all__ = ["run"]


def run(args: argparse.Namespace, context: Context) -> int:
    model = model_name(args)
    if args.output is not None and args.hardware is None:
        raise RequestInvalid("--output writes a modelled profile, which is for --hardware; here, measure with `run`")
    if args.output is not None and args.output.suffix not in (".yaml", ".yml"):
        raise RequestInvalid(f"--output {args.output}: a .yaml file is expected")
    described = None if args.hardware is None else read_described(args.hardware)
    machine, screen = detect(), context.screen
    choice = _choice(args, described, context)
    settings = choice.settings
    place = Place(machine, args.cache_dir)
    outline = outline_of(model, place, screen.progress)
    trace = read_trace(args.trace, outline.fingerprint)
    hardware, memory = machine.hardware(), machine.memory()
    if described is not None:
        hardware, memory = described.hardware, MemoryState(None)

    def plan_for(wanted: Settings) -> MemoryPlan:
        return plan_memory(outline.demand, wanted, default_budget_bytes(hardware, memory))

    if (chunk := plan_for(settings).chunk) != trace.chunk:
        screen.notice(
            f"recorded with prefill.chunk {trace.chunk}; with these settings it is {chunk}: counts may differ"
        )
    costs = None if args.counts_only else _costs(outline, settings, place, described, context)
    found = forecast(trace, settings, plan_for, read_bytes_of(outline, settings, place), costs)
    if args.output is not None:
        _write(args, context, outline, settings, described, found)
    shown = _Shown(found, outline, None if described is None else described.hardware.profile_name(), trace)
    screen.result(shown.to_json(), shown.summary, shown.show)
    return 0


def _choice(args: argparse.Namespace, described: Described | None, context: Context) -> Choice:
    """This machine's profile says nothing of another machine."""
    if described is not None and args.profile is None:
        args = argparse.Namespace(**{**vars(args), "profile": "none"})
    there: Machine = (
        detect()
        if described is None
        else FakeMachine(hardware_reading=described.hardware, memory_reading=MemoryState(None))
    )
    choice = chosen_settings(args, there)
    say_settings(choice, there.hardware(), context.screen)
    return choice


def _costs(
    outline: ModelOutline, settings: Settings, place: Place, described: Described | None, context: Context
) -> TokenCosts:
    from autotune.simulate.measure import costs_of, measure_compute, measure_reads

    if place.machine.hardware().backend == "cuda":
        raise RequestInvalid("times cannot be predicted on CUDA, where misses pass through a stage; add --counts-only")
    pack_store(outline, place, settings, context.screen.progress)
    context.screen.notice("measuring what a layer, a miss and a read take on this machine")
    costs = costs_of(measure_compute(outline, settings, place), measure_reads(outline, settings, place))
    return costs if described is None else costs.scaled(described.compute, described.host, described.disk)


def _write(
    args: argparse.Namespace,
    context: Context,
    outline: ModelOutline,
    settings: Settings,
    described: Described | None,
    found: Forecast,
) -> None:
    """Other models' entries of the file stay if it is of the same machine."""
    assert described is not None
    chosen = found.chosen.to_json()
    entry = Entry(
        fingerprint=outline.fingerprint,
        settings=settings,
        status="modelled",
        evidence={"forecast": {key: value for key, value in chosen.items() if value is not None}},
        command=context.command_line,
        written=date.today().isoformat(),
    )
    program = Program(version=program_version())
    profile = Profile(hardware=described.hardware, program=program)
    if args.output.exists():
        there = Profile.read(args.output)
        if difference := there.hardware.difference(described.hardware):
            raise RequestInvalid(f"--output {args.output}: is of another machine ({difference}); name another file")
        old = there.entries.get(model_name(args))
        if old is not None and old.status != "modelled":
            raise RequestInvalid(
                f"--output {args.output}: has a {old.status} entry for {model_name(args)}, which is worth more than a "
                "modelled one; name another file"
            )
        profile = there
    profile.with_entry(model_name(args), entry).write(args.output)
    context.screen.notice(f"modelled profile: {args.output}")


@dataclass(frozen=True, slots=True)
class _Shown:
    found: Forecast
    outline: ModelOutline
    elsewhere: str | None
    trace: RouteTrace

    @property
    def summary(self) -> str:
        point = self.found.chosen
        each = format_size((point.demand_bytes + point.prefetch_bytes) // max(1, point.tokens))
        speed = "" if point.tps is None else f", {tps_text(point.tps)} tok/s"
        where = f" on {self.elsewhere} (modelled)" if self.elsewhere else ""
        return f"{self.outline.name}{where}: {point.hit_rate:.1%} hits, {each} read a token{speed}, {point.slots} slots"

    def to_json(self) -> dict[str, Any]:
        return {"model": self.outline.name, "modelled_hardware": self.elsewhere, **self.found.to_json()}

    def show(self, console: Console) -> None:
        if self.found.sweep:
            heads = ["slots", "memory", "hits", "read/token", "tok/s", ""]
            console.print(plain_table(heads, [_row(point) for point in self.found.sweep]))
        console.print(Text(self.summary))


def _row(point: Point) -> list[str]:
    return [
        str(point.slots),
        format_size(point.needed_bytes),
        f"{point.hit_rate:.1%}",
        format_size((point.demand_bytes + point.prefetch_bytes) // max(1, point.tokens)),
        "-" if point.tps is None else tps_text(point.tps),
        "" if point.fits else "over budget",
    ]
