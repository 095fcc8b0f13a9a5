"""`mlx-autotune doctor`: what this machine can do, what is wrong with it now, and what to do about it."""

from __future__ import annotations

import argparse
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from autotune.context import Context, set_values
from autotune.device import DeviceCosts, DeviceRequest, measure_device
from autotune.errors import RequestInvalid, WorkerFailed
from autotune.findings import Finding, Level, Readings, Volume, findings_of
from autotune.prepare import Place, is_packed, outline_of, store_files
from autotune.probe import DiskRow, ProbePlan, probe_disk
from autotune.result import rounded
from autotune.tables import disk_table
from autotune.versions import versions
from streaming_core.errors import ReadError
from streaming_core.hardware import Machine, default_budget_bytes, detect
from streaming_core.models.outline import ModelOutline
from streaming_core.progress import Progress
from streaming_core.reading import native_missing
from streaming_core.settings import Settings
from streaming_core.units import MIB

__all__ = ["look_at", "run"]

_SCRATCH_BYTES = 256 * MIB  # read where there is no model
_SCRATCH_READS = (1 * MIB, 4 * MIB)
_THREADS = (1, 4, 16)

Costs = Callable[[DeviceRequest], DeviceCosts]


def run(args: argparse.Namespace, context: Context) -> int:
    if not (math.isfinite(args.seconds) and args.seconds > 0):
        raise RequestInvalid(f"--seconds must be positive, got {args.seconds}")
    settings = Settings().with_values(set_values(args))
    place = Place(detect(), args.cache_dir)
    screen = context.screen

    def costs(request: DeviceRequest) -> DeviceCosts:
        screen.progress(Progress("measuring the device", 0, 1, "processes"))
        return measure_device(request, context.environment)

    readings = look_at(args.model, settings, place, args.seconds, costs, screen.progress)
    findings = findings_of(readings)
    problems = sum(each.level is Level.PROBLEM for each in findings)
    warnings = sum(each.level is Level.WARNING for each in findings)
    summary = f"{problems} problem{'s' * (problems != 1)}, {warnings} warning{'s' * (warnings != 1)}"
    found = [f"{f.level.value} {f.about}: {f.text}" for f in findings if f.level in (Level.PROBLEM, Level.WARNING)]
    text = "\n".join([summary, *found])
    screen.result(_data(readings, findings), text, lambda console: _show(console, readings, findings, summary))
    return 1 if problems else 0


def look_at(
    model: str | None,
    settings: Settings,
    place: Place,
    seconds: float,
    costs: Costs,
    on_progress: Callable[[Progress], None],
) -> Readings:
    """Takes every reading; load, heat and memory first, before measuring changes them."""
    machine = place.machine
    hardware, memory, conditions = machine.hardware(), machine.memory(), machine.conditions()
    outline = None if model is None else outline_of(model, place, on_progress)
    if outline is not None and not is_packed(outline, place):
        settings = settings.with_values({"store.layout": "checkpoint"})  # packing is for `run`, which asks for it
    if outline is not None and outline.indirect is not None and not is_packed(outline, place):
        model = None  # it cannot run without being packed: the device is measured without its layers
    request = DeviceRequest(model=model, cache_dir=place.cache_dir, settings=settings)
    try:
        device: DeviceCosts | str = costs(request)
    except WorkerFailed as err:
        device = str(err)
    return Readings(
        hardware=hardware,
        memory=memory,
        conditions=conditions,
        budget_bytes=settings.memory.budget or default_budget_bytes(hardware, memory),
        large_pages=machine.large_pages(),
        open_files=machine.open_files(),
        versions=versions(),
        reader_missing=native_missing(),
        volume=_volume(outline, settings, place, seconds, on_progress),
        device=device,
    )


def _volume(
    outline: ModelOutline | None,
    settings: Settings,
    place: Place,
    seconds: float,
    on_progress: Callable[[Progress], None],
) -> Volume:
    free = place.machine.free_disk_bytes(place.cache_dir)

    def probed(files: Sequence[Path], sizes: tuple[int, ...]) -> tuple[list[DiskRow], str]:
        plan = ProbePlan(read_bytes=sizes, threads=_THREADS, reader=settings.reading.reader, seconds=seconds)
        return _probed(files, place.machine, plan, on_progress)

    if outline is None:
        if free < 4 * _SCRATCH_BYTES:
            refused = f"not measured: too little room for a file of {_SCRATCH_BYTES // MIB} MiB in {place.cache_dir}"
            return Volume(read_from=place.cache_dir, refused=refused, cache_dir=place.cache_dir, free_bytes=free)
        try:
            with _scratch_file(place.cache_dir) as path:
                rows, refused = probed([path], _SCRATCH_READS)
        except OSError as err:
            rows, refused = [], f"not measured: {place.cache_dir}: {err.strerror or err}"
        return Volume(read_from=place.cache_dir, rows=rows, refused=refused, cache_dir=place.cache_dir, free_bytes=free)
    files = store_files(outline, place, settings.store.layout) or sorted(outline.folder.glob("*.safetensors"))
    rows, refused = probed(files, (outline.record_bytes, 4 * outline.record_bytes))
    return Volume(
        read_from=files[0].parent,
        rows=rows,
        refused=refused,
        cache_dir=place.cache_dir,
        free_bytes=free,
        to_pack_bytes=0 if is_packed(outline, place) else outline.expert_bytes,
        files=len(files),
    )


def _probed(
    files: Sequence[Path], machine: Machine, plan: ProbePlan, on_progress: Callable[[Progress], None]
) -> tuple[list[DiskRow], str]:
    """The table, and why reads past the page cache are not in it."""

    def on_point(done: int, of: int) -> None:
        on_progress(Progress("probing the disk", done, of, "points"))

    try:
        return probe_disk(files, machine, plan, on_point), ""
    except ReadError as err:
        refused = str(err)
    try:
        return probe_disk(files, machine, replace(plan, page_caches=("keep",)), on_point), refused
    except ReadError as err:
        return [], str(err)


@contextmanager
def _scratch_file(folder: Path) -> Iterator[Path]:
    """A file of random bytes that is on the device, and gone afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, prefix="doctor-") as file:
        for _ in range(_SCRATCH_BYTES // MIB):
            file.write(os.urandom(MIB))
        file.flush()
        os.fsync(file.fileno())
        yield Path(file.name)


def _data(readings: Readings, findings: Sequence[Finding]) -> dict[str, Any]:
    device = readings.device
    plain: dict[str, Any] = rounded(
        {
            "findings": [{**asdict(each), "level": each.level.value} for each in findings],
            "hardware": readings.hardware.to_mapping(),
            "memory": asdict(readings.memory),
            "conditions": asdict(readings.conditions),
            "default_budget_bytes": readings.budget_bytes,
            "large_pages": readings.large_pages,
            "open_files": readings.open_files,
            "versions": readings.versions,
            "disk": [row.to_json() for row in readings.volume.rows],
            "device": None if isinstance(device, str) else asdict(device),
        }
    )
    return plain


def _show(console: Console, readings: Readings, findings: Sequence[Finding], summary: str) -> None:
    console.print(Text(f"{readings.hardware.profile_name()}: {readings.hardware.chip}"))
    for each in findings:
        console.print(Text(f"{each.level.value:<8} {each.about}: {each.text}"))
        if each.remedy:
            console.print(Text(f"{'':<8} -> {each.remedy}"))
    if readings.volume.rows:
        console.print()
        console.print(disk_table(readings.volume.rows))
    console.print(Text(summary))
