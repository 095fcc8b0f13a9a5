"""`mlx-autotune probe`: what this machine and its disk can do."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from autotune.context import Context, model_name, set_values
from autotune.errors import RequestInvalid
from autotune.prepare import Place, outline_of, pack_store, store_files
from autotune.probe import DiskRow, ProbePlan, best_bandwidth, probe_disk
from autotune.result import rounded
from autotune.tables import disk_table, plain_table
from streaming_core.hardware import Machine, default_budget_bytes, detect
from streaming_core.progress import Progress
from streaming_core.settings import Settings
from streaming_core.units import format_size

__all__ = ["run"]


def run(args: argparse.Namespace, context: Context) -> int:
    if not (math.isfinite(args.seconds) and args.seconds > 0):
        raise RequestInvalid(f"--seconds must be positive, got {args.seconds}")
    settings = Settings().with_values(set_values(args))
    machine = detect()
    screen = context.screen
    if not args.model:
        found = _Found(machine, [])
        screen.result(found.to_json(), found.summary, found.show)
        return 0
    model = model_name(args)
    place = Place(machine, args.cache_dir)
    outline = outline_of(model, place, screen.progress)
    pack_store(outline, place, settings, screen.progress)
    size = outline.record_bytes
    rows = probe_disk(
        store_files(outline, place, settings.store.layout),
        machine,
        ProbePlan(
            read_bytes=(size, 4 * size), threads=(1, 4, 8, 16), reader=settings.reading.reader, seconds=args.seconds
        ),
        lambda done, of: screen.progress(Progress("probing the disk", done, of, "points")),
    )
    found = _Found(machine, rows)
    screen.result(found.to_json(), found.summary, found.show)
    return 0


@dataclass(frozen=True, slots=True)
class _Found:
    """What the probe saw."""

    machine: Machine
    rows: Sequence[DiskRow]

    @property
    def best_bytes_per_s(self) -> float | None:
        return best_bandwidth(self.rows, cold=True)

    @property
    def summary(self) -> str:
        best = self.best_bytes_per_s
        if not self.rows:
            return f"{self.machine.hardware().profile_name()}: the disk was not measured (--model is missing)"
        speed = "no cold read could be proven" if best is None else f"{best / 1e9:.2f} GB/s cold"
        return f"{self.machine.hardware().profile_name()}: {speed}"

    def to_json(self) -> dict[str, Any]:
        machine = self.machine
        plain: dict[str, Any] = rounded(
            {
                "hardware": machine.hardware().to_mapping(),
                "memory": asdict(machine.memory()),
                "conditions": asdict(machine.conditions()),
                "default_budget_bytes": default_budget_bytes(machine.hardware(), machine.memory()),
                "disk": [row.to_json() for row in self.rows],
            }
        )
        return plain

    def show(self, console: Console) -> None:
        hardware, memory, conditions = self.machine.hardware(), self.machine.memory(), self.machine.conditions()
        available = memory.available_bytes
        facts = [
            ["machine", hardware.profile_name()],
            ["chip", hardware.chip],
            ["MLX backend", hardware.backend],
            ["memory", format_size(hardware.memory_bytes)],
            ["available", "unknown" if available is None else format_size(available)],
            ["default budget", format_size(default_budget_bytes(hardware, memory))],
            ["power", conditions.power],
            ["thermal", conditions.thermal],
            ["load", f"{conditions.load_1m:.2f}"],
        ]
        console.print(plain_table(["", ""], facts))
        console.print()
        if not self.rows:
            console.print(Text("disk: not measured; --model says which model's files to read"))
            return
        console.print(disk_table(self.rows))
        if self.best_bytes_per_s is None:
            console.print(Text("no read was proven to be cold: the figures are those of memory"))
