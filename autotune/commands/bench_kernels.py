"""`mlx-autotune bench --kernels`: up to how many tokens of a call each custom kernel is faster than MLX's own."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from autotune.context import Context, chosen_settings, model_name
from autotune.errors import RequestInvalid
from autotune.kernel_bench import BenchPlan, FormatTimes, bench_format
from autotune.prepare import Place, outline_of
from autotune.result import rounded
from autotune.tables import plain_table
from streaming_core.hardware import detect
from streaming_core.kernels.formats import ExpertFormat, Unknown
from streaming_core.kernels.offer import PLAIN, makers
from streaming_core.progress import Progress

__all__ = ["run"]

_SAMPLES = 3  # of each kernel and T, a round


def run(args: argparse.Namespace, context: Context) -> int:
    """Raises RequestInvalid where there is no kernel to measure."""
    if args.rounds < 1:
        raise RequestInvalid(f"--rounds must be at least 1, got {args.rounds}")
    model = model_name(args)
    place = Place(detect(), args.cache_dir)
    backend = place.machine.hardware().backend
    offered = makers(backend)
    if not offered:
        raise RequestInvalid(f"--kernels: kernels need Metal or CUDA, MLX computes on {backend} here")
    settings = chosen_settings(args, place.machine).settings.kernels
    screen = context.screen
    outline = outline_of(model, place, screen.progress)
    plan = BenchPlan(outline.top_k, outline.experts, samples=_SAMPLES * args.rounds, seed=args.seed)
    times: list[FormatTimes] = []
    unknown = [each.reason for each in outline.formats if isinstance(each, Unknown)]
    for experts in outline.formats:
        if isinstance(experts, ExpertFormat):
            stage = f"measuring {experts}"

            def report(done: int, of: int, stage: str = stage) -> None:
                screen.progress(Progress(stage, done, of, "calls"))

            times.append(bench_format(experts, offered, settings, plan, report))
    found = _Found(outline.name, times, unknown)
    screen.result(found.to_json(), found.summary, found.show)
    return 0


@dataclass(frozen=True, slots=True)
class _Found:
    model: str
    times: Sequence[FormatTimes]
    unknown: Sequence[str]  # why layers of other formats have no kernel

    def to_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = rounded(
            {"model": self.model, "formats": [each.to_json() for each in self.times], "without_kernels": self.unknown}
        )
        return plain

    @property
    def lines(self) -> list[str]:
        """One a kernel: where it stops winning."""
        lines = [line for each in self.times for line in _lines(each)]
        return lines + [f"some layers have no kernel: {reason}" for reason in self.unknown]

    @property
    def summary(self) -> str:
        return f"{self.model}: {'; '.join(self.lines)}"

    def show(self, console: Console) -> None:
        for each in self.times:
            console.print(Text(str(each.experts)))
            names = list(each.samples_s)
            rows = [[str(t), *(_cell(each, name, t) for name in names)] for t in each.samples_s[PLAIN]]
            console.print(plain_table(["tokens", *(f"{name} us" for name in names)], rows))
        for line in self.lines:
            console.print(Text(line))


def _lines(times: FormatTimes) -> list[str]:
    lines = []
    for name in times.samples_s:
        if name == PLAIN:
            continue
        most = times.wins_up_to(name)
        if most is None:
            lines.append(f"{name} does not win: leave kernels.{name} off")
        else:
            lines.append(f"{name} wins up to {most} tokens: kernels.{name}=on, kernels.{name}_max_seq={most}")
    return lines + [f"{name} was not measured: {reason}" for name, reason in times.left_out.items()]


def _cell(times: FormatTimes, name: str, tokens: int) -> str:
    """Median, and the smallest and largest."""
    samples = times.samples_s[name][tokens]
    return f"{times.median_s(name, tokens) * 1e6:.1f} ({min(samples) * 1e6:.1f}-{max(samples) * 1e6:.1f})"
