"""What macOS's tools and system calls answer, as values.  Pure functions: text or bytes in, values out."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streaming_core.hardware._types import Power, Pressure, Thermal

__all__ = [
    "ProcessUsage",
    "VmStat",
    "gpu_cores_of_displays",
    "gpu_cores_of_ioreg",
    "integer",
    "low_power_of_pmset",
    "overview",
    "power_of_pmset",
    "pressure_of",
    "process_usage",
    "processors",
    "swap_used",
    "text",
    "thermal_of_pmset",
    "thermal_of_state",
    "vm_stat",
]


def integer(raw: bytes | None) -> int | None:
    """A numeric sysctl: 4 or 8 bytes, little-endian on every Mac that runs MLX."""
    return int.from_bytes(raw, "little") if raw is not None and len(raw) in (4, 8) else None


def text(raw: bytes | None) -> str | None:
    """A textual sysctl, which ends in a zero byte."""
    return (raw or b"").split(b"\0")[0].decode("utf-8", "replace").strip() or None


def swap_used(raw: bytes | None) -> int | None:
    """vm.swapusage: `xsw_usage { u64 total, avail, used; u32 pagesize; bool encrypted }`."""
    return struct.unpack_from("<3Q", raw)[2] if raw is not None and len(raw) >= 24 else None


def pressure_of(level: int | None) -> Pressure:
    """kern.memorystatus_vm_pressure_level, which knows no 3."""
    levels: Mapping[int | None, Pressure] = {1: "normal", 2: "warn", 4: "critical"}
    return levels.get(level, "unknown")


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """The fields of `rusage_info_v4` that are used."""

    resident_bytes: int
    footprint_bytes: int
    read_bytes: int
    peak_footprint_bytes: int


def process_usage(raw: bytes | None) -> ProcessUsage | None:
    """`proc_pid_rusage` flavour 4: a 16-byte uuid, then 64-bit numbers in the order of sys/resource.h."""
    if raw is None or len(raw) < 248:
        return None
    resident, footprint, read, peak = (struct.unpack_from("<Q", raw, at)[0] for at in (64, 72, 144, 240))
    return ProcessUsage(resident, footprint, read, peak)


@dataclass(frozen=True, slots=True)
class VmStat:
    available_bytes: int | None
    swap_in_bytes: int | None


_VM_LINE = re.compile(r'^"?([^":\n]+)"?:[ \t]+(\d+)\.?\s*$', re.MULTILINE)
_PAGE_SIZE = re.compile(r"page size of (\d+) bytes")


def vm_stat(output: str) -> VmStat:
    """`vm_stat`: counts of pages, whose size stands in the header (it differs under Rosetta).

    Free pages alone are near zero by design, so what is cheap to reclaim counts too.  An estimate: the system's
    pressure level is the signal to stop on.
    """
    size = _PAGE_SIZE.search(output)
    if size is None:
        return VmStat(None, None)
    pages = {name.strip(): int(count) for name, count in _VM_LINE.findall(output)}
    spare = [pages.get(f"Pages {name}") for name in ("free", "inactive", "speculative", "purgeable")]
    known = [count for count in spare if count is not None]
    swapped = pages.get("Swapins")
    page = int(size[1])
    return VmStat(
        available_bytes=sum(known) * page if spare[0] is not None else None,
        swap_in_bytes=None if swapped is None else swapped * page,
    )


def thermal_of_state(state: int | None) -> Thermal:
    """NSProcessInfo.thermalState."""
    names: tuple[Thermal, ...] = ("nominal", "fair", "serious", "critical")
    return names[state] if state is not None and 0 <= state < len(names) else "unknown"


_LIMIT = re.compile(r"^\s*CPU_(?:Scheduler|Speed)_Limit\s*=\s*(\d+)", re.MULTILINE)


def thermal_of_pmset(output: str) -> Thermal:
    """`pmset -g therm`: limits in percent; on healthy Apple silicon only notes that nothing has been recorded."""
    limits = [int(percent) for percent in _LIMIT.findall(output)]
    if limits:
        worst = min(limits)
        return "nominal" if worst >= 100 else "fair" if worst >= 80 else "serious" if worst >= 50 else "critical"
    return "nominal" if "No thermal warning level has been recorded" in output else "unknown"


def power_of_pmset(output: str) -> Power:
    """`pmset -g batt`: its first line names the source; a UPS is a battery too."""
    match = re.search(r"Now drawing from '([^']+)'", output)
    if match is None:
        return "unknown"
    if match[1] == "AC Power":
        return "ac"
    return "battery" if match[1] in ("Battery Power", "UPS Power") else "unknown"


def low_power_of_pmset(output: str) -> bool | None:
    """`pmset -g`: `lowpowermode 0|1`, or `powermode 0|1|2` on Macs that also have High Power (2)."""
    match = re.search(r"^\s*(?:low)?powermode\s+(\d)", output, re.MULTILINE)
    return None if match is None else match[1] == "1"


def gpu_cores_of_ioreg(output: str) -> int | None:
    """`ioreg -rc AGXAccelerator`: `"gpu-core-count" = 40`."""
    match = re.search(r'"gpu-core-count"\s*=\s*(\d+)', output)
    return int(match[1]) if match else None


def gpu_cores_of_displays(output: str) -> int | None:
    """`system_profiler -json SPDisplaysDataType`: the count is text."""
    for item in _items(output, "SPDisplaysDataType"):
        cores = item.get("sppci_cores")
        if isinstance(cores, (str, int)) and str(cores).isdigit():
            return int(cores)
    return None


def overview(output: str) -> dict[str, str]:
    """`system_profiler -json SPHardwareDataType`: chip, model and processors; never serial numbers or UUIDs."""
    names = {"chip_type": "chip", "cpu_type": "chip", "machine_model": "model", "number_processors": "processors"}
    found: dict[str, str] = {}
    for item in _items(output, "SPHardwareDataType"):
        for key, name in names.items():
            value = item.get(key)
            if isinstance(value, (str, int)) and str(value).strip():
                found.setdefault(name, str(value).strip())
    return found


def processors(count: str | None) -> int | None:
    """`proc 8:4:4`, `proc 18:6:0:12`, `2` in a virtual machine: the total is first; the rest changes its meaning."""
    match = re.fullmatch(r"(?:proc\s+)?(\d+)(?::\d+)*", (count or "").strip())
    return int(match[1]) if match and int(match[1]) > 0 else None


def _items(output: str, section: str) -> list[dict[str, Any]]:
    try:
        parsed = json.loads(output)
    except ValueError:
        return []
    items = parsed.get(section) if isinstance(parsed, dict) else None
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
