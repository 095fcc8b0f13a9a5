"""What macOS's tools print, in all the forms that were seen."""

from __future__ import annotations

import json
import struct

import pytest

from streaming_core.hardware import _darwin_parse as parse

VM_STAT = """Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               10000.
Pages active:                           1000000.
Pages inactive:                           20000.
Pages speculative:                         3000.
Pages throttled:                              0.
Pages wired down:                        200000.
Pages purgeable:                            400.
"Translation faults":                 123456789.
Pages copy-on-write:                    1234567.
File-backed pages:                       300000.
Swapins:                                     12.
Swapouts:                                    34.
"""
HEALTHY = """Note: No thermal warning level has been recorded
Note: No performance warning level has been recorded
Note: No CPU power status has been recorded
"""
LIMITED = """2026-09-12 10:11:12 +0200 CPU Power notify
\tCPU_Scheduler_Limit \t= 100
\tCPU_Available_CPUs \t= 8
\tCPU_Speed_Limit \t= {}
"""


def test_vm_stat_counts_in_the_page_size_of_its_header() -> None:
    assert parse.vm_stat(VM_STAT) == parse.VmStat(33400 * 16384, 12 * 16384)
    assert parse.vm_stat(VM_STAT.replace("16384", "4096")) == parse.VmStat(33400 * 4096, 12 * 4096)


@pytest.mark.parametrize("output", ["", "command not found", VM_STAT.split("\n", 1)[1], "(page size of 4096 bytes)\n"])
def test_vm_stat_that_failed_is_unknown_and_not_zero(output: str) -> None:
    assert parse.vm_stat(output) == parse.VmStat(None, None)


def test_vm_stat_without_some_lines_counts_the_rest() -> None:
    lines = [line for line in VM_STAT.splitlines() if not line.startswith(("Pages purgeable", "Swapins"))]
    assert parse.vm_stat("\n".join(lines)) == parse.VmStat(33000 * 16384, None)


@pytest.mark.parametrize(
    "output, level",
    [
        (HEALTHY, "nominal"),
        ("", "unknown"),
        ("pmset: error\n", "unknown"),
        (LIMITED.format(100), "nominal"),
        (LIMITED.format(90), "fair"),
        (LIMITED.format(62), "serious"),
        (LIMITED.format(20), "critical"),
        ("CPU_Speed_Limit=75", "serious"),
    ],
)
def test_pmset_tells_how_far_the_processor_is_slowed(output: str, level: str) -> None:
    assert parse.thermal_of_pmset(output) == level


@pytest.mark.parametrize(
    "output, power",
    [
        ("Now drawing from 'AC Power'\n -InternalBattery-0 (id=46)\t99%; charged; 0:00 remaining\n", "ac"),
        ("Now drawing from 'Battery Power'\n -InternalBattery-0 (id=1)\t61%; discharging; 3:02 remaining\n", "battery"),
        ("Now drawing from 'AC Power'\n", "ac"),
        ("Now drawing from 'UPS Power'\n", "battery"),
        ("Now drawing from 'Solar Power'\n", "unknown"),
        ("", "unknown"),
    ],
)
def test_pmset_tells_where_power_comes_from(output: str, power: str) -> None:
    assert parse.power_of_pmset(output) == power


@pytest.mark.parametrize(
    "output, low",
    [
        ("Currently in use:\n standby              1\n lowpowermode         1\n", True),
        (" lowpowermode         0\n", False),
        (" powermode            0\n", False),
        (" powermode            1\n", True),
        (" powermode            2\n", False),
        (" sleep                1\n", None),
        ("", None),
    ],
)
def test_pmset_tells_low_power_mode_under_either_name(output: str, low: bool | None) -> None:
    assert parse.low_power_of_pmset(output) is low


@pytest.mark.parametrize(
    "count, total",
    [
        ("proc 8:4:4", 8),
        ("proc 18:6:0:12", 18),
        ("proc 16:12:4:0", 16),
        ("proc 24:16:8:0", 24),
        ("proc 12:0:8:4", 12),
        ("2", 2),
        ("proc 0", None),
        ("eight", None),
        ("", None),
        (None, None),
    ],
)
def test_processors_are_counted_in_every_notation(count: str | None, total: int | None) -> None:
    assert parse.processors(count) == total


def test_the_hardware_overview_keeps_no_serial_number() -> None:
    output = {
        "SPHardwareDataType": [
            {
                "_name": "hardware_overview", "chip_type": "Apple M5 Max", "machine_model": "Mac17,7",
                "machine_name": "MacBook Pro", "number_processors": "proc 18:6:0:12", "physical_memory": "128 GB",
                "platform_UUID": "X-UUID", "serial_number": "X-SERIAL", "provisioning_UDID": "X-UDID",
            }
        ]
    }  # fmt: skip
    found = parse.overview(json.dumps(output))
    assert found == {"chip": "Apple M5 Max", "model": "Mac17,7", "processors": "proc 18:6:0:12"}


def test_the_hardware_overview_of_a_virtual_machine_has_a_bare_number() -> None:
    output = json.dumps({"SPHardwareDataType": [{"number_processors": 2, "cpu_type": "Apple processor"}]})
    assert parse.overview(output) == {"chip": "Apple processor", "processors": "2"}


@pytest.mark.parametrize(
    "output", ["", "no json", "[]", "{}", '{"SPHardwareDataType": 3}', '{"SPHardwareDataType": [1]}']
)
def test_an_overview_that_failed_is_empty(output: str) -> None:
    assert parse.overview(output) == {}
    assert parse.gpu_cores_of_displays(output) is None


def test_gpu_cores_come_from_either_tool() -> None:
    assert parse.gpu_cores_of_ioreg('  | |   "gpu-core-count" = 40\n  | |   "model" = "Apple M3 Max"\n') == 40
    assert parse.gpu_cores_of_ioreg("") is None
    displays = {
        "SPDisplaysDataType": [
            {"_name": "External", "sppci_model": "eGPU"},
            {"_name": "Apple M3 Pro", "sppci_cores": "14", "sppci_bus": "spdisplays_builtin"},
        ]
    }
    assert parse.gpu_cores_of_displays(json.dumps(displays)) == 14
    assert parse.gpu_cores_of_displays(json.dumps({"SPDisplaysDataType": [{"sppci_cores": "many"}]})) is None


def test_sysctls_are_numbers_of_two_sizes_or_text() -> None:
    assert parse.integer(struct.pack("<I", 16384)) == 16384
    assert parse.integer(struct.pack("<Q", 51539607552)) == 51539607552
    assert parse.integer(b"abc") is None and parse.integer(None) is None
    assert parse.text(b"Apple M4 Pro\0") == "Apple M4 Pro"
    assert parse.text(b"\0") is None and parse.text(None) is None


def test_swap_usage_is_the_third_number() -> None:
    raw = struct.pack("<3QI?3x", 3072 << 20, 1654 << 20, 1418 << 20, 16384, True)
    assert parse.swap_used(raw) == 1418 << 20
    assert parse.swap_used(raw[:20]) is None and parse.swap_used(None) is None


@pytest.mark.parametrize(
    "level, pressure", [(1, "normal"), (2, "warn"), (4, "critical"), (3, "unknown"), (0, "unknown"), (None, "unknown")]
)
def test_pressure_has_three_levels_and_no_third_number(level: int | None, pressure: str) -> None:
    assert parse.pressure_of(level) == pressure


@pytest.mark.parametrize(
    "state, level", [(0, "nominal"), (1, "fair"), (2, "serious"), (3, "critical"), (9, "unknown"), (None, "unknown")]
)
def test_thermal_states_are_numbered(state: int | None, level: str) -> None:
    assert parse.thermal_of_state(state) == level


def test_the_usage_of_a_process_is_read_by_offset() -> None:
    raw = bytearray(512)
    for at, value in ((64, 100), (72, 200), (144, 300), (152, 999), (240, 400)):
        struct.pack_into("<Q", raw, at, value)
    assert parse.process_usage(bytes(raw)) == parse.ProcessUsage(100, 200, 300, 400)
    assert parse.process_usage(b"short") is None and parse.process_usage(None) is None
