"""What readings of a machine mean for streaming, and what to do about it, in plain words.  Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from autotune.device import DeviceCosts
from autotune.probe import DiskRow, best_bandwidth
from autotune.wording import seconds_text
from streaming_core.hardware import Conditions, Hardware, LargePages, MemoryState
from streaming_core.units import GIB, format_size

__all__ = ["Finding", "Level", "Readings", "Volume", "findings_of", "load_finding"]

_LEAST_OPEN_FILES = 4096  # mlx_lm sets this as the hard limit while it is imported
_OPEN_FILES = 2048  # and this as the one in force
_SPARE_FILES = 64  # libraries, pipes, the study
_FREE_PART = 0.25  # of the memory; with less available, others take what was planned for
_SWAP_PART = 0.05  # of the memory
_BUSY, _VERY_BUSY = 0.25, 0.75  # of the cores
_SPARE_DISK = 10 * GIB
_SLOW_DISK, _HOPELESS_DISK = 1e9, 1e8  # bytes per second; internal SSDs of Macs read 1.5 GB/s and more
_SLOW_SYNC_S = 1e-3
_HAS_DEPTH = 1.2  # times one reader's speed


class Level(Enum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line, and one about what to do unless all is well."""

    about: str
    level: Level
    text: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """Where experts are read from, and where the cache is."""

    read_from: Path
    rows: Sequence[DiskRow] = ()  # (): nothing could be read
    refused: str = ""  # why reads past the page cache, or all of them, were not measured
    cache_dir: Path
    free_bytes: int  # on the volume of the cache
    to_pack_bytes: int = 0  # that a first run would copy there
    files: int = 0  # open at once while a model runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """Everything that was looked at."""

    hardware: Hardware
    memory: MemoryState
    conditions: Conditions
    budget_bytes: int  # what a run may use unless it is told
    large_pages: LargePages
    open_files: tuple[int, int]
    versions: Mapping[str, str]
    reader_missing: str | None  # why there is no reader in C; None: it is there
    volume: Volume
    device: DeviceCosts | str  # text: why it was not measured


def findings_of(readings: Readings) -> list[Finding]:
    """Every area has at least one finding where the system tells anything about it."""
    return [
        *_memory(readings),
        *_volume(readings.volume),
        *_reads(readings.volume),
        *_conditions(readings),
        *_device(readings),
        *_program(readings),
    ]


def _memory(readings: Readings) -> Iterator[Finding]:
    total, memory = readings.hardware.memory_bytes, readings.memory
    limit = readings.hardware.gpu_memory_bytes
    of_gpu = f", the GPU may use {format_size(limit)}" if limit is not None else ""
    budget = f"a run may use {format_size(readings.budget_bytes)}"
    text = f"{format_size(total)} in all{of_gpu}; {budget}"
    if readings.budget_bytes == 0:
        yield Finding("memory", Level.PROBLEM, text, "close other programs, or name a --budget")
    else:
        yield Finding("memory", Level.OK, text)
    available = memory.available_bytes
    if available is not None:
        scarce = available < _FREE_PART * total
        level = Level.WARNING if scarce else Level.OK
        remedy = "close programs that hold memory: the more is free, the more experts stay in it" if scarce else ""
        yield Finding("available", level, f"{format_size(available)} of memory can be had now", remedy)
    swap = memory.swap_used_bytes
    if swap is not None:
        much = swap > _SWAP_PART * total
        remedy = "close programs, or restart the machine: what was swapped out is read back while you measure"
        level = Level.WARNING if much else Level.OK
        yield Finding("swap", level, f"{format_size(swap)} in use", remedy if much else "")
    match memory.pressure:
        case "critical":
            yield Finding(
                "pressure", Level.PROBLEM, "the system is out of memory", "close programs now; a run would swap or die"
            )
        case "warn":
            yield Finding("pressure", Level.WARNING, "the system is short of memory", "close programs before you tune")
        case "normal":
            yield Finding("pressure", Level.OK, "the system has memory to spare")


def _volume(volume: Volume) -> Iterator[Finding]:
    free = f"{format_size(volume.free_bytes)} free on the volume of {volume.cache_dir}"
    if volume.to_pack_bytes > volume.free_bytes:
        text = f"{free}; packing the experts takes {format_size(volume.to_pack_bytes)}"
        remedy = "free space, choose another --cache-dir, or read the checkpoint with --set store.layout=checkpoint"
        yield Finding("room", Level.PROBLEM, text, remedy)
        return
    packing = f"; the first run packs {format_size(volume.to_pack_bytes)} there" if volume.to_pack_bytes else ""
    tight = volume.free_bytes - volume.to_pack_bytes < _SPARE_DISK
    remedy = "free space: nearly full SSDs write slowly, and swap needs room too" if tight else ""
    yield Finding("room", Level.WARNING if tight else Level.OK, free + packing, remedy)


def _reads(volume: Volume) -> Iterator[Finding]:
    if volume.refused:
        remedy = "keep reading.page_cache=keep here, or move the model to another volume" if volume.rows else ""
        remedy = remedy or "make room or give this user access, then look again"
        yield Finding("reads", Level.WARNING, volume.refused, remedy)
    if not volume.rows:
        return
    cold = best_bandwidth(volume.rows, cold=True)
    if cold is None:
        yield _not_cold(volume)
        return
    best = next(row for row in volume.rows if row.state == "cold" and row.bytes_per_s == cold)
    text = f"{_rate(cold)} from {volume.read_from}, proven cold ({_point(best)}){_depth(volume.rows, best)}"
    where = "an external or network disk? Keep the model and the cache on the internal SSD"
    if cold < _HOPELESS_DISK:
        yield Finding("reads", Level.PROBLEM, text, f"too slow to stream from: {where}")
    elif cold < _SLOW_DISK:
        yield Finding("reads", Level.WARNING, text, f"slow for streaming: {where}")
    else:
        yield Finding("reads", Level.OK, text)


def _not_cold(volume: Volume) -> Finding:
    fastest = max(volume.rows, key=lambda row: row.bytes_per_s)
    if fastest.physical_share is None:
        text = f"{_rate(fastest.bytes_per_s)}, not known to be cold: the system does not count what the device reads"
        return Finding("reads", Level.WARNING, text, "take disk speeds of `run` and `bench` for upper bounds")
    text = f"{_rate(fastest.bytes_per_s)} from memory: no read came from the device, also not past the page cache"
    remedy = "something below caches (a virtual disk, a RAM disk, a network share): a bigger model will read slower"
    return Finding("reads", Level.WARNING, text, remedy)


def _depth(rows: Sequence[DiskRow], best: DiskRow) -> str:
    alone = [
        row.bytes_per_s
        for row in rows
        if row.state == "cold"
        and (row.threads, row.read_bytes, row.page_cache) == (1, best.read_bytes, best.page_cache)
    ]
    if not alone or best.bytes_per_s < _HAS_DEPTH * max(alone):
        return ""
    return f", {best.bytes_per_s / max(alone):.1f} times what one read at a time gives"


def _point(row: DiskRow) -> str:
    cache = "past the page cache" if row.page_cache == "bypass" else "through the page cache"
    return f"{format_size(row.read_bytes)} x {row.threads} at once, {cache}, {row.reader}"


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.2f} GB/s"


def _conditions(readings: Readings) -> Iterator[Finding]:
    found, cores = readings.conditions, readings.hardware.cores
    if found.power == "battery":
        yield Finding("power", Level.WARNING, "on battery", "plug the machine in: many run slower on battery")
    elif found.power == "ac":
        yield Finding("power", Level.OK, "plugged in")
    if found.low_power:
        remedy = "turn it off (macOS: System Settings, Battery; Linux: powerprofilesctl set balanced)"
        yield Finding("low power", Level.WARNING, "the low-power mode is on", remedy)
    elif found.low_power is not None:
        yield Finding("low power", Level.OK, "the low-power mode is off")
    match found.thermal:
        case "serious" | "critical":
            remedy = "let it cool down and free its vents; what is measured now says nothing about other days"
            yield Finding("heat", Level.PROBLEM, f"the system calls it {found.thermal}: it is slowed down", remedy)
        case "fair":
            yield Finding("heat", Level.WARNING, "getting warm", "wait some minutes before you measure")
        case "nominal":
            yield Finding("heat", Level.OK, "nominal")
    yield load_finding(found.load_1m, cores)


def load_finding(load_1m: float, cores: int) -> Finding:
    """What else computes here, as the system tells it; before anything of this program does."""
    text = f"on average {load_1m:.1f} threads wanted the {cores} cores over the last minute"
    if load_1m > _VERY_BUSY * cores:
        return Finding("load", Level.PROBLEM, text, "end what is computing beside this, or nothing measured is true")
    if load_1m > _BUSY * cores:
        remedy = "wait for it to end (indexing, backups, updates), or close the program"
        return Finding("load", Level.WARNING, text, remedy)
    return Finding("load", Level.OK, text)


def _device(readings: Readings) -> Iterator[Finding]:
    hardware, costs = readings.hardware, readings.device
    gpu = f" ({hardware.gpu})" if hardware.gpu else ""
    text = f"MLX computes on {hardware.backend}{gpu}"
    if hardware.system == "darwin" and hardware.backend == "cpu":
        remedy = "install mlx for Apple silicon with a native (arm64) Python, outside of a virtual machine"
        yield Finding("backend", Level.PROBLEM, text, remedy)
    else:
        yield Finding("backend", Level.OK, text)
    if isinstance(costs, str):
        yield Finding("compute", Level.PROBLEM, costs, "try `mlx-autotune generate`, which says more about the cause")
        return
    slow = costs.sync_s > _SLOW_SYNC_S
    remedy = "every streamed layer waits so once a token: end other programs that use the GPU" if slow else ""
    text = f"{seconds_text(costs.sync_s)} to evaluate a small operation and wait for it"
    yield Finding("sync", Level.WARNING if slow else Level.OK, text, remedy)
    if costs.layers:
        parts = ", ".join(f"{seconds_text(each.layer_s)} for {each.tokens}" for each in costs.layers)
        read = any(each.misses for each in costs.layers)
        note = "; the larger calls also read experts, waits left out" if read else ""
        yield Finding("compute", Level.OK, f"a layer takes {parts} tokens a call{note}")


def _program(readings: Readings) -> Iterator[Finding]:
    yield Finding("versions", Level.OK, ", ".join(f"{name} {found}" for name, found in readings.versions.items()))
    if readings.reader_missing is None:
        yield Finding("reader", Level.OK, "the reader in C is there")
    else:
        text = f"the reader in C is not there ({readings.reader_missing}): Python's threads read, which is slower"
        yield Finding("reader", Level.WARNING, text, "install a C compiler and install the package again")
    yield _open_files(readings.open_files, readings.volume.files)
    match readings.large_pages:
        case "always" | "madvise":
            yield Finding("large pages", Level.OK, f"{readings.large_pages}: banks lie on large pages")
        case "never":
            remedy = "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
            text = "never: direct reads into small pages cost the processor more"
            yield Finding("large pages", Level.WARNING, text, remedy)


def _open_files(limits: tuple[int, int], files: int) -> Finding:
    soft, hard = (limit if limit >= 0 else 1 << 62 for limit in limits)  # -1: no limit
    text = f"up to {_count(soft)} open files, {_count(hard)} at most"
    if hard < _LEAST_OPEN_FILES:
        remedy = f"mlx_lm does not start below {_LEAST_OPEN_FILES}: raise the hard limit (ulimit -Hn)"
        return Finding("open files", Level.PROBLEM, text, remedy)
    if files + _SPARE_FILES > _OPEN_FILES:
        needs = f"; the model has {files}, mlx_lm sets the limit to {_OPEN_FILES}"
        return Finding("open files", Level.WARNING, text + needs, "use the packed store: it has one file a layer")
    return Finding("open files", Level.OK, text)


def _count(limit: int) -> str:
    return "any number of" if limit >= 1 << 60 else str(limit)
