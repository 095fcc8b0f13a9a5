"""Results for people.  Narrow enough for forty columns."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.probe import Ceiling, DiskRow
from autotune.result import Side, TuneResult
from autotune.wording import changes_text, gain_text, seconds_text, tps_text
from streaming_core.units import format_size

if TYPE_CHECKING:
    from autotune.estimate import Estimate
    from autotune.pareto import BudgetPoint

__all__ = ["ceiling_text", "curve_table", "disk_table", "dry_run_table", "plain_table", "result_table"]


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Names to the left, numbers to the right, no lines: it survives narrow terminals and copying."""
    table = Table(box=None, pad_edge=False, show_header=any(columns))
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def result_table(console: Console, result: TuneResult, path: Path) -> None:
    """Default, tuned and ceiling side by side, then the verdict."""
    sides = [result.default, *([result.tuned] if result.tuned is not None else [])]
    head = ["", "default", *(["tuned"] if result.tuned is not None else [])]
    rows = [
        ["decode tok/s", *(tps_text(side.decode_tps) for side in sides)],
        ["  spread", *(_spread(side) for side in sides)],
        ["first token", *(seconds_text(side.first_token_s) for side in sides)],
        ["p99 token", *(seconds_text(side.token_p99_s) for side in sides)],
        ["memory", *(format_size(side.needed_bytes) for side in sides)],
        ["missed/token", *(format_size(int(side.missed_bytes_per_token)) for side in sides)],
    ]
    if result.ceiling is not None:
        head.append("ceiling")
        rows = [[*row, tps_text(result.ceiling.tps) if n == 0 else ""] for n, row in enumerate(rows)]
    console.print(plain_table(head, rows))
    if result.ceiling is not None:
        console.print(Text(ceiling_text(result.ceiling)))
    if result.tuned is not None:
        console.print(Text(f"tuned: {changes_text(result.tuned.changes)}"))
    interval = result.interval
    if interval is not None:
        noise = f"{result.noise.sigma:.1%}" if result.noise.measurements > 1 else "unknown"
        span = f"{gain_text(interval.low)} to {gain_text(interval.high)}"
        console.print(Text(f"gain {gain_text(interval.middle)} ({span} at 95 %), noise {noise}"))
    console.print(Text(result.reason))
    search = result.search
    console.print(Text(f"{search['trials']} trials of {1 + search['tried']} settings: {search['ended']}"))
    console.print(Text(f"profile: {path}"))


def curve_table(console: Console, points: Sequence[BudgetPoint], knee: BudgetPoint, path: Path) -> None:
    """What each budget reaches, the smallest first."""
    rows = [
        [
            format_size(point.budget_bytes),
            tps_text(point.result.default.decode_tps),
            tps_text(point.tps),
            "<- knee" if point is knee else "",
        ]
        for point in sorted(points, key=lambda point: point.budget_bytes)
    ]
    console.print(plain_table(["budget", "default tok/s", "tuned tok/s", ""], rows))
    console.print(Text(f"beyond {format_size(knee.budget_bytes)} memory buys little"))
    console.print(Text(f"profile: {path}"))


def _spread(side: Side) -> str:
    medians = [statistics.median(trial) for trial in side.samples]
    return f"{tps_text(min(medians))}-{tps_text(max(medians))}"


def ceiling_text(ceiling: Ceiling, of: str = "") -> str:
    """Where a ceiling comes from."""
    head = f"ceiling of {of} (estimated)" if of else "ceiling (estimated)"
    raised = (
        "; the best trial was faster than this estimate, so its speed stands in the table" if ceiling.raised else ""
    )
    compute = f"{seconds_text(ceiling.compute_s)} of computation ({ceiling.compute})"
    if ceiling.bytes_per_s is None:
        return f"{head}: {compute} a token, nothing was read{raised}"
    return (
        f"{head}: {compute} and {seconds_text(ceiling.read_s)} of {ceiling.reads} reads a token "
        f"at {format_size(int(ceiling.bytes_per_s))}/s{raised}"
    )


def disk_table(rows: Sequence[DiskRow]) -> Table:
    return plain_table(
        ["read", "threads", "reader", "cache", "GB/s", "state"],
        [
            [
                format_size(row.read_bytes),
                str(row.threads),
                row.reader,
                row.page_cache,
                f"{row.bytes_per_s / 1e9:.2f}",
                row.state,
            ]
            for row in rows
        ],
    )


def dry_run_table(console: Console, found: Estimate) -> None:
    console.print(Text(f"{found.model} on {found.hardware}"))
    memory = [[name, format_size(nbytes)] for name, nbytes in found.memory.items()]
    memory.append(["total", format_size(found.memory_total_bytes)])
    if found.budget_bytes is not None:
        memory.append(["budget", format_size(found.budget_bytes)])
    console.print(plain_table(["memory of the default", ""], memory))
    console.print()
    knobs = [[name, " ".join(str(option) for option in options)] for name, options in found.knobs.items()]
    console.print(plain_table([f"searched: {found.combinations} combinations", ""], knobs))
    console.print()
    console.print(Text(found.summary))
