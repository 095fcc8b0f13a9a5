"""`mlx-autotune doctor`: what is said of a machine, and what to do about it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import autotune.commands.doctor as doctor
from autotune.cli import main
from autotune.device import DeviceCosts, DeviceRequest, LayerCompute, measure_device
from autotune.errors import WorkerFailed
from autotune.findings import Finding, Level, Readings, Volume, findings_of
from autotune.prepare import Place
from autotune.probe import DiskRow
from streaming_core.hardware import Conditions, FakeMachine, MemoryState, default_budget_bytes
from streaming_core.settings import Settings
from streaming_core.units import GIB, MIB


def row(gb_per_s: float, threads: int = 16, page_cache: str = "bypass", share: float | None = 1.0) -> DiskRow:
    return DiskRow(MIB, threads, page_cache, gb_per_s * 1e9, share, 99, "native")


def volume(*rows: DiskRow, **changes: Any) -> Volume:
    values = {"read_from": Path("/m"), "rows": rows, "cache_dir": Path("/c"), "free_bytes": 500 * GIB}
    return Volume(**{**values, **changes})  # type: ignore[arg-type]


def readings(machine: FakeMachine | None = None, **changes: Any) -> Readings:
    """A healthy Mac, but for the changes."""
    machine = machine or FakeMachine.mac()
    values = {
        "hardware": machine.hardware(),
        "memory": machine.memory(),
        "conditions": machine.conditions(),
        "budget_bytes": default_budget_bytes(machine.hardware(), machine.memory()),
        "large_pages": machine.large_pages(),
        "open_files": machine.open_files(),
        "versions": {"mlx": "0.32.4"},
        "reader_missing": None,
        "volume": volume(row(1.2, threads=1), row(6.0)),
        "device": DeviceCosts(sync_s=2e-4, layers=(LayerCompute(tokens=1, layer_s=1e-3, misses=0),)),
    }
    return Readings(**{**values, **changes})


def found(about: str, **changes: Any) -> Finding:
    """The worst about one thing."""
    order = list(Level)
    return max(
        (each for each in findings_of(readings(**changes)) if each.about == about), key=lambda f: order.index(f.level)
    )


def test_nothing_is_wrong_with_a_healthy_mac_and_every_area_is_spoken_of() -> None:
    findings = findings_of(readings())
    assert {each.level for each in findings} == {Level.OK}
    assert not any(each.remedy for each in findings)
    said = {each.about for each in findings}
    assert {"memory", "swap", "pressure", "room", "reads", "power", "low power", "heat", "load"} <= said
    assert {"backend", "sync", "compute", "versions", "reader", "open files"} <= said
    reads = next(each.text for each in findings if each.about == "reads")
    assert "6.00 GB/s" in reads and "proven cold" in reads and "5.0 times what one read" in reads


@pytest.mark.parametrize(
    ("about", "changes", "level", "remedy"),
    [
        ("memory", {"budget_bytes": 0}, Level.PROBLEM, "--budget"),
        ("available", {"memory": MemoryState(4 * GIB, 0, "normal")}, Level.WARNING, "close programs"),
        ("swap", {"memory": MemoryState(50 * GIB, 9 * GIB, "normal")}, Level.WARNING, "restart"),
        ("pressure", {"memory": MemoryState(50 * GIB, 0, "warn")}, Level.WARNING, "close programs"),
        ("pressure", {"memory": MemoryState(50 * GIB, 0, "critical")}, Level.PROBLEM, "close programs now"),
        ("room", {"volume": volume(row(6.0), free_bytes=9 * GIB)}, Level.WARNING, "free space"),
        ("room", {"volume": volume(row(6.0), to_pack_bytes=600 * GIB)}, Level.PROBLEM, "store.layout=checkpoint"),
        ("reads", {"volume": volume(row(0.5))}, Level.WARNING, "internal SSD"),
        ("reads", {"volume": volume(row(0.05))}, Level.PROBLEM, "too slow"),
        ("reads", {"volume": volume(row(6.0, share=0.0))}, Level.WARNING, "something below caches"),
        ("reads", {"volume": volume(row(6.0, share=None))}, Level.WARNING, "upper bounds"),
        ("reads", {"volume": volume(row(6.0), refused="no direct reads")}, Level.WARNING, "page_cache=keep"),
        ("reads", {"volume": volume(refused="not measured: no room")}, Level.WARNING, "make room"),
        ("power", {"conditions": Conditions("battery", False, "nominal")}, Level.WARNING, "plug"),
        ("low power", {"conditions": Conditions("ac", True, "nominal")}, Level.WARNING, "System Settings"),
        ("heat", {"conditions": Conditions("ac", False, "fair")}, Level.WARNING, "wait"),
        ("heat", {"conditions": Conditions("ac", False, "serious")}, Level.PROBLEM, "cool"),
        ("load", {"conditions": Conditions("ac", False, "nominal", 4.0)}, Level.WARNING, "indexing"),
        ("load", {"conditions": Conditions("ac", False, "nominal", 12.0)}, Level.PROBLEM, "end what"),
        ("sync", {"device": DeviceCosts(sync_s=5e-3)}, Level.WARNING, "GPU"),
        ("compute", {"device": "it failed"}, Level.PROBLEM, "generate"),
        ("reader", {"reader_missing": "it was not built"}, Level.WARNING, "C compiler"),
        ("open files", {"open_files": (256, 1024)}, Level.PROBLEM, "ulimit"),
        ("open files", {"volume": volume(row(6.0), files=2000)}, Level.WARNING, "packed"),
        ("large pages", {"large_pages": "never"}, Level.WARNING, "madvise"),
    ],
)
def test_what_is_wrong_has_a_level_and_a_remedy(about: str, changes: Any, level: Level, remedy: str) -> None:
    finding = found(about, **changes)
    assert finding.level is level
    assert remedy in finding.remedy


def test_a_mac_on_which_mlx_has_no_gpu_is_a_problem_and_a_server_without_one_is_not() -> None:
    mac = FakeMachine.mac()
    assert found("backend", hardware=replace(mac.hardware(), backend="cpu")).level is Level.PROBLEM
    assert found("backend", machine=FakeMachine()).level is Level.OK


def test_what_the_system_does_not_tell_is_left_out() -> None:
    silent = {"memory": MemoryState(None), "conditions": Conditions(), "large_pages": "unknown"}
    said = {each.about for each in findings_of(readings(**silent))}
    assert said.isdisjoint({"available", "swap", "pressure", "power", "low power", "heat", "large pages"})


def look(machine: FakeMachine, folder: Path, model: str | None = None, costs: Any = None) -> Readings:
    measured = costs or (lambda request: DeviceCosts(sync_s=1e-4))
    place = Place(machine, folder)
    return doctor.look_at(model, Settings(), place, 0.01, measured, lambda progress: None)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_SCRATCH_BYTES", 4 * MIB)


def test_without_a_model_a_file_in_the_cache_is_read_and_removed(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    seen = look(FakeMachine.mac(), cache)
    assert {row.read_bytes for row in seen.volume.rows} == {MIB, 4 * MIB}
    assert {row.page_cache for row in seen.volume.rows} == {"keep", "bypass"}
    assert list(cache.iterdir()) == []


def test_a_volume_that_cannot_bypass_is_read_through_the_cache_and_that_is_said(tmp_path: Path) -> None:
    machine = FakeMachine.mac()
    machine.can_bypass = False
    seen = look(machine, tmp_path).volume
    assert {row.page_cache for row in seen.rows} == {"keep"}
    assert "cannot bypass the page cache" in seen.refused


def test_a_full_volume_is_not_written_to(tmp_path: Path) -> None:
    machine = FakeMachine.mac()
    machine.free_disk = MIB
    seen = look(machine, tmp_path / "cache")
    assert not seen.volume.rows and "too little room" in seen.volume.refused
    assert not (tmp_path / "cache").exists()


def test_a_model_that_is_not_packed_is_read_where_it_is_and_stays_unpacked(tiny: Path, tmp_path: Path) -> None:
    asked: list[DeviceRequest] = []

    def costs(request: DeviceRequest) -> DeviceCosts:
        asked.append(request)
        raise WorkerFailed("measuring the device failed: no such luck")

    seen = look(FakeMachine(), tmp_path, str(tiny), costs)
    assert seen.volume.to_pack_bytes > 0 and seen.volume.read_from == tiny
    assert asked[0].settings.store.layout == "checkpoint"
    assert not (tmp_path / "stores").exists()
    assert seen.device == "measuring the device failed: no such luck"


def test_the_device_is_measured_in_a_process_of_its_own(tiny: Path, tmp_path: Path) -> None:
    settings = Settings().with_values({"store.layout": "checkpoint", "residency.slots": "all"})
    request = DeviceRequest(model=str(tiny), cache_dir=tmp_path, settings=settings, tokens=(1, 4))
    costs = measure_device(request, {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)})
    assert costs.sync_s > 0
    assert [(each.tokens, each.misses) for each in costs.layers] == [(1, 0), (4, 0)]
    assert all(each.layer_s > 0 for each in costs.layers)


def test_what_a_process_said_last_is_told_when_it_fails(tmp_path: Path) -> None:
    failing = (sys.executable, "-c", "import sys; sys.exit('the device is on fire')")
    with pytest.raises(WorkerFailed, match="the device is on fire"):
        measure_device(DeviceRequest(model=None, cache_dir=tmp_path), {}, command=failing)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(("load", "status"), [(0.1, 0), (64.0, 1)])
def test_the_exit_status_says_whether_there_is_a_problem(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, load: float, status: int
) -> None:
    machine = FakeMachine.mac()
    machine.conditions_reading = Conditions("battery", False, "nominal", load)
    monkeypatch.setattr(doctor, "detect", lambda: machine)
    monkeypatch.setattr(doctor, "measure_device", lambda request, environment: DeviceCosts(sync_s=1e-4))
    assert main(["doctor", "--seconds", "0.01"]) == status
    out = capsys.readouterr().out
    assert "warning  power: on battery" in out and "-> plug the machine in" in out
    assert "no read came from the device" in out, "the fake machine counts none"
    assert "2 warnings" in out
    assert main(["doctor", "--seconds", "0.01", "--json"]) == status
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    levels = {each["about"]: each["level"] for each in said["findings"]}
    assert levels["power"] == "warning" and levels["load"] == ("problem" if status else "ok")
    assert said["device"]["sync_s"] == 1e-4 and said["disk"]
    assert main(["doctor", "--seconds", "0.01", "--quiet"]) == status
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.endswith("2 warnings") and len(rest) == 2 + status, "what is wrong is named, and nothing else"
    assert any(line.startswith("warning power: on battery") for line in rest)
