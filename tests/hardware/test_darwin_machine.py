"""A Mac whose system calls are played by a table."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from streaming_core.errors import ReadError, StoreInvalid
from streaming_core.hardware import Machine, _darwin
from streaming_core.hardware._darwin import DarwinMachine
from streaming_core.hardware._mlx import Device
from streaming_core.units import GIB

M5_MAX = {
    "machdep.cpu.brand_string": b"Apple M5 Max\0",
    "hw.model": b"Mac17,7\0",
    "hw.memsize": struct.pack("<Q", 128 * GIB),
    "hw.pagesize": struct.pack("<Q", 16384),
    "hw.nperflevels": struct.pack("<I", 2),
    "hw.perflevel0.logicalcpu": struct.pack("<I", 6),
    "hw.perflevel1.logicalcpu": struct.pack("<I", 12),
    "kern.osproductversion": b"26.6.2\0",
    "kern.osversion": b"25G83\0",
    "vm.swapusage": struct.pack("<3QI?3x", 2 * GIB, GIB, GIB, 16384, True),
    "kern.memorystatus_vm_pressure_level": struct.pack("<I", 2),
    "kern.memorystatus_level": struct.pack("<I", 40),
}
TOOLS = {
    "ioreg": '"gpu-core-count" = 40',
    "vm_stat": "(page size of 16384 bytes)\nPages free: 1000.\nPages inactive: 500.\nSwapins: 3.\n",
    "pmset -g batt": "Now drawing from 'AC Power'",
    "pmset -g therm": "\tCPU_Speed_Limit \t= 62",
    "pmset -g": " lowpowermode 1",
}


class TableOfCalls:
    def __init__(
        self,
        sysctls: dict[str, bytes] | None = None,
        tools: dict[str, str] | None = None,
        usage: bytes | None = None,
        info: tuple[int, bool] | None = None,
    ) -> None:
        self.sysctls, self.tools, self.usage, self.info = sysctls or {}, tools or {}, usage, info
        self.commands: list[str] = []
        self.invalidated: list[int] = []

    def sysctl(self, name: str) -> bytes | None:
        return self.sysctls.get(name)

    def rusage(self) -> bytes | None:
        return self.usage

    def process_info(self) -> tuple[int, bool] | None:
        return self.info

    def invalidate(self, fd: int, nbytes: int) -> bool:
        self.invalidated.append(nbytes)
        return True

    def run(self, command: Sequence[str]) -> str:
        line = " ".join(command)
        self.commands.append(line)
        return next((text for tool, text in self.tools.items() if line == tool or line.startswith(f"{tool} -r")), "")


@pytest.fixture(autouse=True)
def metal(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device("metal", "Apple M5 Max", 115448725504, 86586540032)
    monkeypatch.setattr(_darwin, "read_device", lambda: device)


def test_a_whole_mac_is_described_without_the_slow_tool() -> None:
    calls = TableOfCalls(M5_MAX, TOOLS)
    machine: Machine = DarwinMachine(calls)
    hardware = machine.hardware()
    assert hardware.profile_name() == "m5max-128g"
    assert (hardware.model_id, hardware.cores, hardware.gpu_cores, hardware.page_bytes) == ("Mac17,7", 18, 40, 16384)
    assert (hardware.gpu_memory_bytes, hardware.max_buffer_bytes) == (115448725504, 86586540032)
    assert hardware.os_version == "26.6.2 (25G83)"
    assert machine.hardware() is hardware
    assert not any("system_profiler" in command for command in calls.commands)


def test_a_third_performance_level_counts_too() -> None:
    sysctls = M5_MAX | {"hw.nperflevels": struct.pack("<I", 3), "hw.perflevel2.logicalcpu": struct.pack("<I", 4)}
    assert DarwinMachine(TableOfCalls(sysctls, TOOLS)).hardware().cores == 22


def test_a_virtual_machine_with_gaps_in_its_sysctls_is_asked_the_slow_way() -> None:
    tools = {
        "system_profiler -json SPHardwareDataType": (
            '{"SPHardwareDataType":[{"number_processors":"3","machine_model":"VM2,1"}]}'
        ),
        "system_profiler -json SPDisplaysDataType": '{"SPDisplaysDataType":[{"sppci_cores":"14"}]}',
    }
    hardware = DarwinMachine(TableOfCalls({"hw.memsize": struct.pack("<Q", 4 * GIB)}, tools)).hardware()
    assert (hardware.chip, hardware.cores, hardware.model_id, hardware.gpu_cores) == ("Apple processor", 3, "VM2,1", 14)
    assert hardware.profile_name() == "apple-processor-4g" and hardware.os_version == ""


def test_memory_is_read_from_vm_stat_swap_and_the_pressure_level() -> None:
    memory = DarwinMachine(TableOfCalls(M5_MAX, TOOLS)).memory()
    assert (memory.available_bytes, memory.swap_used_bytes, memory.pressure) == (1500 * 16384, GIB, "warn")


def test_without_vm_stat_memory_is_the_systems_own_percentage() -> None:
    assert DarwinMachine(TableOfCalls(M5_MAX)).memory().available_bytes == 128 * GIB * 40 // 100


def test_unknown_readings_are_none_and_never_zero() -> None:
    machine = DarwinMachine(TableOfCalls())
    memory = machine.memory()
    assert (memory.available_bytes, memory.swap_used_bytes, memory.pressure) == (None, None, "unknown")
    assert machine.physical_read_bytes() is None and machine.swap_in_bytes() is None
    assert machine.process_memory().footprint_bytes is None and machine.process_memory().rss_bytes > 0
    conditions = machine.conditions()
    assert (conditions.power, conditions.low_power, conditions.thermal) == ("unknown", None, "unknown")


def test_the_process_is_measured_by_its_footprint() -> None:
    raw = bytearray(512)
    for at, value in ((64, 1 << 45), (72, 200), (144, 300), (240, 400)):
        struct.pack_into("<Q", raw, at, value)
    machine = DarwinMachine(TableOfCalls(M5_MAX, TOOLS, bytes(raw)))
    memory = machine.process_memory()
    assert (memory.rss_bytes, memory.footprint_bytes, memory.peak_footprint_bytes) == (1 << 45, 200, 400)
    assert memory.peak_rss_bytes == 1 << 45
    assert machine.physical_read_bytes() == 300 and machine.swap_in_bytes() == 3 * 16384


def test_the_worse_of_two_thermal_reports_is_believed() -> None:
    conditions = DarwinMachine(TableOfCalls(M5_MAX, TOOLS, info=(1, False))).conditions()
    assert (conditions.power, conditions.low_power, conditions.thermal) == ("ac", False, "serious")
    assert DarwinMachine(TableOfCalls(M5_MAX, TOOLS, info=(3, False))).conditions().thermal == "critical"


def test_low_power_mode_comes_from_pmset_where_foundation_is_silent() -> None:
    assert DarwinMachine(TableOfCalls(M5_MAX, TOOLS)).conditions().low_power is True


def test_bypass_asks_for_no_cache_and_a_refusal_closes_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"
    path.write_bytes(b"abc")
    asked: list[tuple[int, int, int]] = []
    monkeypatch.setattr(_darwin.fcntl, "fcntl", lambda fd, what, value: asked.append((fd, what, value)))
    machine = DarwinMachine(TableOfCalls())
    fd = machine.open_for_read(path, bypass=True)
    assert asked == [(fd, 48, 1)] and machine.direct_alignment == 1
    os.close(fd)

    def refuse(*args: object) -> int:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(_darwin.fcntl, "fcntl", refuse)
    with pytest.raises(ReadError, match=r"cannot bypass the page cache .* set reading\.page_cache=keep"):
        machine.open_for_read(path, bypass=True)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    with pytest.raises(StoreInvalid, match="does not exist"):
        machine.open_for_read(tmp_path / "none", bypass=False)


def test_cached_pages_are_dropped_over_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "store"
    path.write_bytes(b"x" * 12345)
    calls = TableOfCalls()
    assert DarwinMachine(calls).drop_cached(path) is True
    assert calls.invalidated == [12345]


def test_importing_the_mac_part_starts_nothing() -> None:
    code = "import sys, streaming_core.hardware._darwin; print('mlx.core' in sys.modules)"
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.strip() == "False"
