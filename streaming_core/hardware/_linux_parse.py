"""Linux's text files as values.  Pure functions: text in, numbers out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from streaming_core.hardware._types import LargePages, Power, Pressure, Thermal

__all__ = [
    "Zone",
    "cgroup_folders",
    "colon_numbers",
    "cpu_name",
    "kib_values",
    "large_pages_of",
    "power_of",
    "pressure_of",
    "space_numbers",
    "thermal_of",
]

# A tenth of the last ten seconds lost to waiting for memory is felt; lost by every task at once, it is an emergency.
_STALLED_PERCENT = 10.0


def kib_values(text: str) -> dict[str, int]:
    """/proc/meminfo and /proc/self/status: `MemTotal:  24684084 kB -> {"MemTotal": bytes}`, other lines left out."""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB" and words[0].isdigit():
            found[name.strip()] = int(words[0]) * 1024
    return found


def colon_numbers(text: str) -> dict[str, int]:
    """/proc/self/io: `read_bytes: 4096 -> {"read_bytes": 4096}`."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): int(value) for name, _, value in pairs if value.strip().isdigit()}


def space_numbers(text: str) -> dict[str, int]:
    """/proc/vmstat and memory.stat: `pswpin 12 -> {"pswpin": 12}`."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def cpu_name(cpuinfo: str) -> str | None:
    """The processor's name; ARM kernels give none on most machines."""
    found: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if value.strip():
            found.setdefault(name.strip().lower(), " ".join(value.split()))
    for key in ("model name", "cpu model", "uarch", "hardware"):
        if key in found:
            return found[key]
    return None


def cgroup_folders(text: str) -> list[PurePosixPath]:
    """/proc/self/cgroup -> folders whose memory limits bind this process, nearest first.

    Every ancestor binds too.  Inside a container the path may be the host's and not exist here, while the mount's
    root is then the container's own group, so the root is always in the list.
    """
    mount = PurePosixPath("/sys/fs/cgroup")
    folders: list[PurePosixPath] = []
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            roots = [mount / "memory"]
        elif number == "0" and controllers == "":
            roots = [mount, mount / "unified"]  # the second where both versions are mounted side by side
        else:
            continue
        inside = PurePosixPath(path.lstrip("/"))
        if ".." in inside.parts:  # a group outside of the namespace of this process
            inside = PurePosixPath()
        folders += [root / step for root in roots for step in (inside, *inside.parents)]
    return list(dict.fromkeys(folders))


def pressure_of(text: str | None) -> Pressure:
    """/proc/pressure/memory: `some avg10=0.00 avg60=...` and `full avg10=...`."""
    shares: dict[str, float] = {}
    for line in (text or "").splitlines():
        words = line.split()
        for word in words[1:]:
            if word.startswith("avg10="):
                try:
                    shares[words[0]] = float(word.removeprefix("avg10="))
                except ValueError:
                    return "unknown"
    if not shares:
        return "unknown"
    if shares.get("full", 0.0) >= _STALLED_PERCENT:
        return "critical"
    return "warn" if shares.get("some", 0.0) >= _STALLED_PERCENT else "normal"


def large_pages_of(text: str | None) -> LargePages:
    """/sys/kernel/mm/transparent_hugepage/enabled: `always [madvise] never`."""
    choices: dict[str, LargePages] = {"[always]": "always", "[madvise]": "madvise", "[never]": "never"}
    return next((choices[word] for word in (text or "").split() if word in choices), "unknown")


def power_of(supplies: Sequence[Mapping[str, str]]) -> Power:
    """/sys/class/power_supply, one mapping a supply; batteries of mice and headsets (scope Device) do not count."""
    own = [supply for supply in supplies if supply.get("scope") != "Device"]
    mains = [supply for supply in own if supply.get("type") in ("Mains", "USB", "Wireless") and "online" in supply]
    if any(supply["online"] not in ("", "0") for supply in mains):
        return "ac"
    batteries = [supply.get("status", "").lower() for supply in own if supply.get("type") == "Battery"]
    if "discharging" in batteries:
        return "battery"
    if batteries and all(state in ("charging", "full", "not charging") for state in batteries):
        return "ac"
    return "unknown"


@dataclass(frozen=True, slots=True)
class Zone:
    """A thermal zone: its temperature and trip points (kind, temperature), all in thousandths of a degree."""

    temperature: int
    trips: tuple[tuple[str, int], ...] = ()


def thermal_of(zones: Sequence[Zone]) -> Thermal:
    """How near the hottest zone is to the point where the kernel slows the processor (passive) or stops (critical)."""
    near = 10_000  # 10 degrees
    levels: list[Thermal] = []
    for zone in zones:
        for kind, limit in zone.trips:
            if limit <= 0:  # firmware writes 0 or less for "no such trip"
                continue
            if kind in ("critical", "hot"):
                levels.append("critical" if zone.temperature >= limit - near // 2 else "nominal")
            elif kind == "passive":
                over, close = zone.temperature >= limit, zone.temperature >= limit - near
                levels.append("serious" if over else "fair" if close else "nominal")
    order: tuple[Thermal, ...] = ("unknown", "nominal", "fair", "serious", "critical")
    return max(levels, key=order.index, default="unknown")
