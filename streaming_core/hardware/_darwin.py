"""Readings of a Mac: sysctl, libproc, NSProcessInfo and the system's own tools, none of which needs root."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import struct
from functools import cached_property
from pathlib import Path

from streaming_core.errors import AutotuneError
from streaming_core.hardware import _darwin_parse as parse
from streaming_core.hardware._darwin_calls import Calls, SystemCalls
from streaming_core.hardware._files import cannot_bypass, cannot_open, drop_cached, free_disk_bytes, open_regular
from streaming_core.hardware._mlx import read_device
from streaming_core.hardware._types import (
    Conditions,
    Hardware,
    LargePages,
    MemoryState,
    PinnedMemory,
    ProcessMemory,
    Thermal,
)

__all__ = ["DarwinMachine"]

_F_RDADVISE = 44
_F_NOCACHE = 48  # absent from Python's fcntl module on other systems
_BADNESS: tuple[Thermal, ...] = ("unknown", "nominal", "fair", "serious", "critical")


class DarwinMachine:
    """A Mac as seen through `calls`, which are the system's except in tests."""

    direct_alignment = 1  # F_NOCACHE has no rule of alignment

    def __init__(self, calls: Calls | None = None) -> None:
        self._calls = SystemCalls() if calls is None else calls

    def hardware(self) -> Hardware:
        return self._hardware

    @cached_property
    def _hardware(self) -> Hardware:
        device = read_device()
        version, build = self._text("kern.osproductversion"), self._text("kern.osversion")
        return Hardware(
            system="darwin",
            chip=self._text("machdep.cpu.brand_string") or self._overview.get("chip") or "Apple processor",
            cores=self._cores(),
            memory_bytes=self._number("hw.memsize") or os.sysconf("SC_PHYS_PAGES") * resource.getpagesize(),
            page_bytes=self._number("hw.pagesize") or resource.getpagesize(),
            backend=device.backend,
            model_id=self._text("hw.model") or self._overview.get("model"),
            gpu=device.gpu,
            gpu_cores=None if device.backend == "cpu" else self._gpu_cores(),
            gpu_memory_bytes=device.memory_bytes,
            max_buffer_bytes=device.max_buffer_bytes,
            os_version=f"{version} ({build})" if version and build else version or "",
        )

    def memory(self) -> MemoryState:
        available = self._vm_stat().available_bytes
        if available is None:
            total, percent = self._number("hw.memsize"), self._number("kern.memorystatus_level")
            available = None if total is None or percent is None else total * min(percent, 100) // 100
        return MemoryState(
            available_bytes=available,
            swap_used_bytes=parse.swap_used(self._calls.sysctl("vm.swapusage")),
            pressure=parse.pressure_of(self._number("kern.memorystatus_vm_pressure_level")),
        )

    def process_memory(self) -> ProcessMemory:
        usage = parse.process_usage(self._calls.rusage())
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS
        if usage is None:
            return ProcessMemory(peak, peak)
        peak = max(peak, usage.resident_bytes)
        return ProcessMemory(usage.resident_bytes, peak, usage.footprint_bytes, usage.peak_footprint_bytes or None)

    def physical_read_bytes(self) -> int | None:
        usage = parse.process_usage(self._calls.rusage())
        return None if usage is None else usage.read_bytes

    def swap_in_bytes(self) -> int | None:
        return self._vm_stat().swap_in_bytes

    def conditions(self) -> Conditions:
        info = self._calls.process_info()
        thermal = (
            parse.thermal_of_state(None if info is None else info[0]),
            parse.thermal_of_pmset(self._calls.run(["pmset", "-g", "therm"])),
        )
        return Conditions(
            power=parse.power_of_pmset(self._calls.run(["pmset", "-g", "batt"])),
            low_power=parse.low_power_of_pmset(self._calls.run(["pmset", "-g"])) if info is None else info[1],
            thermal=max(thermal, key=_BADNESS.index),
            load_1m=os.getloadavg()[0],
        )

    def free_disk_bytes(self, path: Path) -> int:
        return free_disk_bytes(path)

    def drop_cached(self, path: Path) -> bool:
        return drop_cached(path, lambda fd: self._calls.invalidate(fd, os.fstat(fd).st_size))

    def advise(self, fd: int, offset: int, nbytes: int) -> None:
        with contextlib.suppress(OSError):  # a hint
            # struct radvisory: off_t, then int; the struct is padded to 16 bytes.
            fcntl.fcntl(fd, _F_RDADVISE, struct.pack("=qi4x", offset, min(nbytes, 0x7FFFFFFF)))

    def large_pages(self) -> LargePages:
        return "not_needed"

    def open_files(self) -> tuple[int, int]:
        return resource.getrlimit(resource.RLIMIT_NOFILE)

    def join_pages(self, address: int, nbytes: int) -> None:
        return  # Apple silicon has one page size, 16 KiB

    def pin(self, nbytes: int) -> PinnedMemory:
        raise AutotuneError("macOS has one memory for host and device; nothing needs to be pinned")

    def open_for_read(self, path: Path, bypass: bool) -> int:
        try:
            fd = open_regular(path)
        except OSError as err:
            raise cannot_open(path, err) from err
        if bypass:
            try:
                fcntl.fcntl(fd, _F_NOCACHE, 1)
            except OSError as err:
                os.close(fd)
                raise cannot_bypass(path, err) from err
        return fd

    def _cores(self) -> int:
        """Sum over the performance levels, of which there are one to three with names that change by generation."""
        levels = self._number("hw.nperflevels") or 0
        counts = [self._number(f"hw.perflevel{level}.logicalcpu") for level in range(levels)]
        if counts and all(counts):
            return sum(count or 0 for count in counts)
        total = self._number("hw.logicalcpu") or parse.processors(self._overview.get("processors"))
        return total or os.cpu_count() or 1

    def _gpu_cores(self) -> int | None:
        """The chip's name does not tell its 30-core from its 40-core GPU."""
        cores = parse.gpu_cores_of_ioreg(self._calls.run(["ioreg", "-rc", "AGXAccelerator"]))
        if cores is not None:
            return cores
        return parse.gpu_cores_of_displays(self._calls.run(["system_profiler", "-json", "SPDisplaysDataType"]))

    @cached_property
    def _overview(self) -> dict[str, str]:
        """A third of a second, so only asked when sysctl has gaps."""
        return parse.overview(self._calls.run(["system_profiler", "-json", "SPHardwareDataType"]))

    def _vm_stat(self) -> parse.VmStat:
        return parse.vm_stat(self._calls.run(["vm_stat"]))

    def _number(self, name: str) -> int | None:
        return parse.integer(self._calls.sysctl(name))

    def _text(self, name: str) -> str | None:
        return parse.text(self._calls.sysctl(name))
