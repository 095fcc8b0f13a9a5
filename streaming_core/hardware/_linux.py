"""Readings of a Linux machine: /proc, /sys and cgroups."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import resource
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from streaming_core.errors import ReadError
from streaming_core.hardware._cuda import CudaPinned
from streaming_core.hardware._files import cannot_bypass, cannot_open, drop_cached, free_disk_bytes, open_regular
from streaming_core.hardware._linux_parse import (
    Zone,
    cgroup_folders,
    colon_numbers,
    cpu_name,
    kib_values,
    large_pages_of,
    power_of,
    pressure_of,
    space_numbers,
    thermal_of,
)
from streaming_core.hardware._mlx import read_device
from streaming_core.hardware._types import Conditions, Hardware, LargePages, MemoryState, PinnedMemory, ProcessMemory
from streaming_core.units import round_up

__all__ = ["LinuxMachine"]

_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25  # the second from Linux 6.1 on
_UNLIMITED = 1 << 60  # version 1 writes "no limit" as the largest multiple of a page below 2**63


@dataclass(frozen=True, slots=True)
class _Limit:
    limit_bytes: int
    available_bytes: int


class LinuxMachine:
    """The machine under `root`, which is `/` except in tests."""

    direct_alignment = 4096  # the largest logical block in common use; O_DIRECT wants multiples of the device's own

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def hardware(self) -> Hardware:
        return self._hardware

    @cached_property
    def _hardware(self) -> Hardware:
        device = read_device()
        return Hardware(
            system="linux",
            chip=cpu_name(self._text("proc/cpuinfo") or "") or platform.machine() or "unknown",
            cores=len(os.sched_getaffinity(0)),
            memory_bytes=min([self._total_bytes(), *(limit.limit_bytes for limit in self._limits())]),
            page_bytes=resource.getpagesize(),
            backend=device.backend,
            model_id=self._line("sys/class/dmi/id/product_name") or self._line("proc/device-tree/model"),
            gpu=device.gpu,
            gpu_memory_bytes=device.memory_bytes,
            max_buffer_bytes=device.max_buffer_bytes,
            os_version=self._os_version(),
        )

    def memory(self) -> MemoryState:
        known = kib_values(self._text("proc/meminfo") or "")
        available = [limit.available_bytes for limit in self._limits()]
        if "MemAvailable" in known:
            available.append(known["MemAvailable"])
        swap = known["SwapTotal"] - known["SwapFree"] if {"SwapTotal", "SwapFree"} <= known.keys() else None
        return MemoryState(min(available, default=None), swap, pressure_of(self._text("proc/pressure/memory")))

    def process_memory(self) -> ProcessMemory:
        known = kib_values(self._text("proc/self/status") or "")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        rss = known.get("VmRSS", peak)
        return ProcessMemory(rss, max(known.get("VmHWM", peak), rss))

    def physical_read_bytes(self) -> int | None:
        return colon_numbers(self._text("proc/self/io") or "").get("read_bytes")

    def swap_in_bytes(self) -> int | None:
        pages = space_numbers(self._text("proc/vmstat") or "").get("pswpin")
        return None if pages is None else pages * resource.getpagesize()

    def conditions(self) -> Conditions:
        profile = self._line("sys/firmware/acpi/platform_profile")
        return Conditions(
            power=power_of([self._supply(folder) for folder in self._folders("sys/class/power_supply", "*")]),
            low_power=None if profile is None else profile in ("low-power", "quiet"),
            thermal=thermal_of(self._zones()),
            load_1m=os.getloadavg()[0],
        )

    def free_disk_bytes(self, path: Path) -> int:
        return free_disk_bytes(path)

    def drop_cached(self, path: Path) -> bool:
        def drop(fd: int) -> bool:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            return True

        return drop_cached(path, drop)

    def advise(self, fd: int, offset: int, nbytes: int) -> None:
        with contextlib.suppress(OSError):  # a hint
            os.posix_fadvise(fd, offset, nbytes, os.POSIX_FADV_WILLNEED)

    def large_pages(self) -> LargePages:
        return large_pages_of(self._line("sys/kernel/mm/transparent_hugepage/enabled"))

    def open_files(self) -> tuple[int, int]:
        return resource.getrlimit(resource.RLIMIT_NOFILE)

    def join_pages(self, address: int, nbytes: int) -> None:
        huge = self._number("sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
        if huge is None:
            return
        first, after = round_up(address, huge), (address + nbytes) // huge * huge
        if first < after:
            # The hint serves kernels before 6.1, which cannot do it at once but do it in time.
            for advice in (_MADV_HUGEPAGE, _MADV_COLLAPSE):
                self._libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(after - first), advice)

    def pin(self, nbytes: int) -> PinnedMemory:
        return CudaPinned(nbytes)

    @cached_property
    def _libc(self) -> ctypes.CDLL:
        return ctypes.CDLL(None)

    def open_for_read(self, path: Path, bypass: bool) -> int:
        try:
            return open_regular(path, os.O_DIRECT if bypass else 0)
        except OSError as err:
            if bypass and err.errno in (errno.EINVAL, errno.EOPNOTSUPP):
                raise cannot_bypass(path, err) from err
            raise cannot_open(path, err) from err

    def _limits(self) -> list[_Limit]:
        """Memory limits of the groups this process is in."""
        found = []
        for folder in cgroup_folders(self._text("proc/self/cgroup") or ""):
            place = str(folder).lstrip("/")
            limit = self._number(f"{place}/memory.max", f"{place}/memory.limit_in_bytes")
            if limit is None or limit >= _UNLIMITED:
                continue
            used = self._number(f"{place}/memory.current", f"{place}/memory.usage_in_bytes") or 0
            stat = space_numbers(self._text(f"{place}/memory.stat") or "")
            # Pages of files count as used but are given up on demand.  Version 1 keeps sums over subgroups in total_*.
            lists = [stat.get(f"total_{name}", stat.get(name, 0)) for name in ("inactive_file", "active_file")]
            found.append(_Limit(limit, max(0, min(limit, limit - used + sum(lists)))))
        return found

    def _total_bytes(self) -> int:
        total = kib_values(self._text("proc/meminfo") or "").get("MemTotal")
        if total is None:
            raise ReadError(f"{self._root / 'proc/meminfo'} does not tell MemTotal; mount /proc to run here")
        return total

    def _os_version(self) -> str:
        release = platform.release()
        for line in (self._text("etc/os-release") or "").splitlines():
            if line.startswith("PRETTY_NAME="):
                return f"{line.partition('=')[2].strip().strip(chr(34))}, kernel {release}"
        return f"kernel {release}"

    def _supply(self, folder: Path) -> dict[str, str]:
        read = {name: self._line(f"{folder}/{name}") for name in ("type", "online", "status", "scope")}
        return {name: value for name, value in read.items() if value is not None}

    def _zones(self) -> list[Zone]:
        zones = []
        for folder in self._folders("sys/class/thermal", "thermal_zone*"):
            temperature = self._number(f"{folder}/temp")
            if temperature is None:
                continue
            trips = []
            for kind_file in sorted((self._root / folder).glob("trip_point_*_type")):
                kind = self._line(f"{folder}/{kind_file.name}")
                limit = self._number(f"{folder}/{kind_file.name.removesuffix('_type')}_temp")
                if kind and limit is not None:
                    trips.append((kind, limit))
            zones.append(Zone(temperature, tuple(trips)))
        return zones

    def _folders(self, place: str, pattern: str) -> list[Path]:
        """Folders under `place`, relative to the root."""
        return [found.relative_to(self._root) for found in sorted((self._root / place).glob(pattern))]

    def _text(self, place: str) -> str | None:
        try:
            return (self._root / place).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def _line(self, place: str) -> str | None:
        return (self._text(place) or "").strip(" \n\0") or None

    def _number(self, *places: str) -> int | None:
        """The number in the first of these files that holds one."""
        for place in places:
            text = self._line(place)
            if text is not None and text.lstrip("-").isdigit():
                return int(text)
        return None
