"""Readings of Linux, from folders that look like /proc and /sys."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from streaming_core.errors import AutotuneError, ReadError, StoreInvalid
from streaming_core.hardware import _linux_parse as parse
from streaming_core.hardware import detect
from streaming_core.hardware._linux import LinuxMachine
from streaming_core.hardware._linux_parse import Zone
from streaming_core.units import GIB, MIB

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="asks Linux for its cores")

MEMINFO = "MemTotal:       24684084 kB\nMemFree: 100 kB\nMemAvailable:   20971520 kB\nHugePages_Total:       0\n"


def put(root: Path, files: dict[str, str]) -> LinuxMachine:
    for place, text in files.items():
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_text(text)
    return LinuxMachine(root)


def test_hardware_comes_from_proc_and_sys(tmp_path: Path) -> None:
    machine = put(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/cpuinfo": "processor\t: 0\nmodel name\t: AMD  EPYC 7B13\n\nprocessor\t: 1\nmodel name\t: other\n",
            "sys/class/dmi/id/product_name": "Standard PC\n",
            "etc/os-release": 'NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n',
        },
    )
    hardware = machine.hardware()
    assert (hardware.system, hardware.chip, hardware.model_id) == ("linux", "AMD EPYC 7B13", "Standard PC")
    assert hardware.memory_bytes == 24684084 * 1024
    assert hardware.cores == len(os.sched_getaffinity(0))
    assert hardware.os_version.startswith("Debian GNU/Linux 12 (bookworm), kernel ")
    assert machine.hardware() is hardware, "read once"


def test_a_machine_that_tells_next_to_nothing_still_has_a_name(tmp_path: Path) -> None:
    files = {"proc/meminfo": MEMINFO, "proc/cpuinfo": "processor: 0\nCPU implementer: 0x41\n"}
    hardware = put(tmp_path, files).hardware()
    assert hardware.chip == os.uname().machine and hardware.model_id is None
    assert hardware.os_version == f"kernel {os.uname().release}"


def test_a_machine_without_proc_says_so(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="does not tell MemTotal; mount /proc"):
        LinuxMachine(tmp_path).hardware()


def test_unknown_readings_are_none_and_never_zero(tmp_path: Path) -> None:
    machine = LinuxMachine(tmp_path)
    memory = machine.memory()
    assert (memory.available_bytes, memory.swap_used_bytes, memory.pressure) == (None, None, "unknown")
    assert machine.physical_read_bytes() is None and machine.swap_in_bytes() is None
    conditions = machine.conditions()
    assert (conditions.power, conditions.low_power, conditions.thermal) == ("unknown", None, "unknown")
    assert machine.process_memory().rss_bytes > 0


def test_the_limit_of_a_version_2_group_and_of_its_parents_binds(tmp_path: Path) -> None:
    machine = put(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/user/job\n",
            "sys/fs/cgroup/user/job/memory.max": "max\n",
            "sys/fs/cgroup/user/memory.max": f"{8 * GIB}\n",
            "sys/fs/cgroup/user/memory.current": f"{3 * GIB}\n",
            "sys/fs/cgroup/user/memory.stat": f"anon 5\ninactive_file {GIB}\nactive_file {GIB // 2}\n",
        },
    )
    assert machine.hardware().memory_bytes == 8 * GIB
    assert machine.memory().available_bytes == 6.5 * GIB, "5 unused, and 1.5 of file pages that are given up on demand"


def test_the_limit_of_a_version_1_group_binds_even_when_the_path_is_the_hosts(tmp_path: Path) -> None:
    machine = put(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "4:cpu,memory:/docker/abc\n1:name=systemd:/\n0::/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 * GIB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{1 * GIB}\n",
            "sys/fs/cgroup/memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB // 4}\n",
        },
    )
    assert machine.hardware().memory_bytes == 4 * GIB
    assert machine.memory().available_bytes == 3.25 * GIB


def test_no_limit_is_no_limit(tmp_path: Path) -> None:
    machine = put(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "4:memory:/a\n",
            "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert machine.hardware().memory_bytes == 24684084 * 1024
    assert machine.memory().available_bytes == 20 * GIB


def test_a_group_outside_of_the_namespace_falls_back_to_the_root() -> None:
    assert [str(folder) for folder in parse.cgroup_folders("0::/../other\n")] == [
        "/sys/fs/cgroup",
        "/sys/fs/cgroup/unified",
    ]


def test_process_and_swap_counters_are_read(tmp_path: Path) -> None:
    machine = put(
        tmp_path,
        {
            "proc/self/status": "Name:\tpython\nVmHWM:\t  2048 kB\nVmRSS:\t  1024 kB\n",
            "proc/self/io": "rchar: 7\nread_bytes: 4096\nwrite_bytes: 1\n",
            "proc/vmstat": "pswpin 3\npswpout 9\n",
            "proc/meminfo": MEMINFO + "SwapTotal: 2048 kB\nSwapFree: 1024 kB\n",
        },
    )
    memory = machine.process_memory()
    assert (memory.rss_bytes, memory.peak_rss_bytes, memory.footprint_bytes) == (1 * MIB, 2 * MIB, None)
    assert machine.physical_read_bytes() == 4096
    assert machine.swap_in_bytes() == 3 * os.sysconf("SC_PAGESIZE")
    assert machine.memory().swap_used_bytes == 1 * MIB


def test_conditions_are_read(tmp_path: Path) -> None:
    zone = "sys/class/thermal/thermal_zone0"
    machine = put(
        tmp_path,
        {
            "sys/class/power_supply/AC/type": "Mains\n",
            "sys/class/power_supply/AC/online": "0\n",
            "sys/class/power_supply/BAT0/type": "Battery\n",
            "sys/class/power_supply/BAT0/status": "Discharging\n",
            "sys/firmware/acpi/platform_profile": "low-power\n",
            f"{zone}/temp": "91000\n",
            f"{zone}/trip_point_0_type": "passive\n",
            f"{zone}/trip_point_0_temp": "95000\n",
            f"{zone}/trip_point_1_type": "critical\n",
            f"{zone}/trip_point_1_temp": "110000\n",
        },
    )
    conditions = machine.conditions()
    assert (conditions.power, conditions.low_power, conditions.thermal) == ("battery", True, "fair")
    assert conditions.load_1m >= 0


@pytest.mark.parametrize(
    "supplies, power",
    [
        ([], "unknown"),
        ([{"type": "Mains", "online": "1"}, {"type": "Battery", "status": "Discharging"}], "ac"),
        ([{"type": "USB", "online": "0"}, {"type": "Battery", "status": "Discharging"}], "battery"),
        ([{"type": "Battery", "status": "Full"}], "ac"),
        ([{"type": "Battery", "status": "Unknown"}], "unknown"),
        ([{"type": "Battery", "status": "Discharging", "scope": "Device"}], "unknown"),
    ],
)
def test_power_is_what_feeds_the_machine_not_its_mouse(supplies: list[dict[str, str]], power: str) -> None:
    assert parse.power_of(supplies) == power


@pytest.mark.parametrize(
    "zones, level",
    [
        ([], "unknown"),
        ([Zone(90_000)], "unknown"),
        ([Zone(50_000, (("passive", 0), ("critical", -1)))], "unknown"),
        ([Zone(50_000, (("passive", 95_000),))], "nominal"),
        ([Zone(86_000, (("passive", 95_000),))], "fair"),
        ([Zone(50_000, (("passive", 95_000),)), Zone(96_000, (("passive", 95_000),))], "serious"),
        ([Zone(106_000, (("critical", 110_000), ("active", 50_000)))], "critical"),
    ],
)
def test_heat_is_the_distance_to_the_kernels_own_limits(zones: list[Zone], level: str) -> None:
    assert parse.thermal_of(zones) == level


@pytest.mark.parametrize(
    "text, pressure",
    [
        (None, "unknown"),
        ("garbage", "unknown"),
        ("some avg10=x", "unknown"),
        ("some avg10=0.50 avg60=0 total=1\nfull avg10=0.00 avg60=0 total=1\n", "normal"),
        ("some avg10=25.00 avg60=0\nfull avg10=1.00\n", "warn"),
        ("some avg10=60.00 avg60=0\nfull avg10=40.00\n", "critical"),
    ],
)
def test_pressure_is_the_share_of_time_lost_to_memory(text: str | None, pressure: str) -> None:
    assert parse.pressure_of(text) == pressure


def test_this_machine_answers_everything_that_plans_need() -> None:
    machine = detect()
    hardware = machine.hardware()
    assert hardware.cores >= 1 and hardware.memory_bytes > 256 * MIB and hardware.profile_name()
    available = machine.memory().available_bytes
    assert available is not None and 0 < available <= hardware.memory_bytes
    memory = machine.process_memory()
    assert 0 < memory.rss_bytes <= memory.peak_rss_bytes


def test_a_read_after_dropping_the_cache_is_counted_as_physical(tmp_path: Path) -> None:
    machine = LinuxMachine()
    path = tmp_path / "blob"
    path.write_bytes(os.urandom(4 * MIB))
    before = machine.physical_read_bytes()
    if not machine.drop_cached(path) or before is None:
        pytest.skip("this kernel does not count reads")
    path.read_bytes()
    after = machine.physical_read_bytes()
    if after == before:
        pytest.skip("this file system keeps its files in memory")
    assert after is not None and after - before >= 4 * MIB


def test_free_room_is_that_of_the_nearest_folder_that_exists(tmp_path: Path) -> None:
    assert LinuxMachine().free_disk_bytes(tmp_path / "not" / "yet" / "there") > 0


@pytest.mark.parametrize("bypass", [False, True])
def test_a_file_opens_either_way(tmp_path: Path, bypass: bool) -> None:
    path = tmp_path / "store"
    path.write_bytes(b"x" * 4096)
    try:
        fd = LinuxMachine().open_for_read(path, bypass)
    except ReadError as err:
        pytest.skip(str(err))
    try:
        assert bool(os.O_DIRECT & _flags(fd)) is bypass
    finally:
        os.close(fd)


def _flags(fd: int) -> int:
    import fcntl

    return fcntl.fcntl(fd, fcntl.F_GETFL)


def test_a_missing_file_and_a_folder_are_faults_of_the_store(tmp_path: Path) -> None:
    machine = LinuxMachine()
    with pytest.raises(StoreInvalid, match="none does not exist; load the model again"):
        machine.open_for_read(tmp_path / "none", False)
    with pytest.raises(StoreInvalid, match="is not a regular file"):
        machine.open_for_read(tmp_path, False)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StoreInvalid, match="is not a regular file"):
        machine.open_for_read(tmp_path / "pipe", False)
    with pytest.raises(StoreInvalid, match="does not exist"):
        machine.drop_cached(tmp_path / "none")


@pytest.mark.parametrize(
    "number, message",
    [
        (errno.EINVAL, "cannot bypass the page cache .*; set reading.page_cache=keep"),
        (errno.EACCES, "cannot be opened: Permission denied; check that this user may read it"),
        (errno.EMFILE, "too many open files in this process; raise `ulimit -n`"),
    ],
)
def test_a_refused_open_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, message: str
) -> None:
    def refuse(*args: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("streaming_core.hardware._linux.open_regular", refuse)
    with pytest.raises(ReadError, match=message) as caught:
        LinuxMachine().open_for_read(tmp_path / "store", True)
    assert str(tmp_path / "store") in str(caught.value) and "\n" not in str(caught.value)


def test_another_system_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "win32")
    with pytest.raises(AutotuneError, match="win32 is not supported"):
        detect()
