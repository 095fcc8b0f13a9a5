"""`predict` at the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import main
from autotune.errors import RequestInvalid
from autotune.prepare import Place, outline_of
from autotune.simulate.described import read_described
from autotune.simulate.forecast import sweep_slots
from autotune.simulate.measure import measure_reads
from streaming_core import Settings, load_profile
from streaming_core.hardware import Machine

HARDWARE = """
hardware: {system: darwin, chip: Apple M3 Max, cores: 14, memory: "64GiB", page: "16KiB", backend: metal}
compute: 0.5
host: 0.5
disk:
  - {read: "16KiB", in_flight: 1, gb_per_s: 0.001}
"""
NOTHING_RESIDENT = ("--set", "residency.resident_layers=none")


@pytest.fixture(scope="module")
def common(tiny: Path, shared_cache: Path) -> list[str]:
    return ["--model", str(tiny), "--cache-dir", str(shared_cache), "--profile", "none"]


@pytest.fixture(scope="module")
def trace(common: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "run.gz"
    words = ["trace", *common, "--quiet", "--prompts", "2", "--tokens", "10", "--save", str(path)]
    assert main([*words, *NOTHING_RESIDENT, "--set", "residency.slots=all"]) == 0
    return path


def predicted(common: list[str], trace: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["predict", *common, "--json", "--trace", str(trace), *NOTHING_RESIDENT, *more]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


@pytest.mark.parametrize("slots", ["5", "9"])
def test_what_trace_counts_is_what_predict_says(
    common: list[str], trace: Path, capsys: pytest.CaptureFixture[str], slots: str
) -> None:
    found = predicted(common, trace, capsys, "--counts-only", "--set", f"residency.slots={slots}")
    words = ["trace", *common, "--json", "--prompts", "2", "--tokens", "10", *NOTHING_RESIDENT]
    assert main([*words, "--set", f"residency.slots={slots}"]) == 0
    real = json.loads(capsys.readouterr().out.splitlines()[-1])
    for name in ("tokens", "hit_rate", "demand_bytes", "guessed"):
        assert found[name] == real[name], name
    assert found["hits"] == sum(row["hits"] for row in real["layers"])
    assert (found["tps"], found["wait_s"]) == (None, None)
    rates = [point["hit_rate"] for point in found["sweep"]]
    assert rates == sorted(rates) and found["sweep"][-1]["slots"] == 16
    assert dict(map(tuple, found["curve"]))[16] == rates[-1]


def test_speed_is_predicted_for_this_machine(
    common: list[str], trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = predicted(common, trace, capsys, "--set", "residency.slots=6")
    assert found["tps"] > 0 and found["wait_s"] >= 0
    assert all(point["tps"] > 0 for point in found["sweep"])


def test_a_machine_that_is_not_here_gets_a_profile_that_says_it_is_modelled(
    common: list[str], trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    described, output = tmp_path / "machine.yaml", tmp_path / "m3max-64g.yaml"
    described.write_text(HARDWARE)
    words = ("--hardware", str(described), "--output", str(output), "--set", "residency.slots=6")
    found = predicted(common, trace, capsys, *words)
    assert found["modelled_hardware"] == "m3max-64g"
    read_s = found["demand_bytes"] / 1e6  # at 1 MB/s nothing else matters
    assert found["tokens"] / found["tps"] == pytest.approx(read_s, rel=0.1)
    profile = load_profile(output)
    (entry,) = profile.entries.values()
    assert (entry.status, entry.settings.residency.slots) == ("modelled", 6)
    assert profile.hardware.chip == "Apple M3 Max"
    assert "modelled, never run" in profile.reason
    assert predicted(common, trace, capsys, *words)["slots"] == 6  # its own entry may be replaced
    output.write_text(output.read_text().replace("status: modelled", "status: measured"))
    assert main(["predict", *common, "--trace", str(trace), *NOTHING_RESIDENT, *words]) == 2
    assert "a measured entry" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("compute: 0.5", "compute: 0", "compute must be a positive number"),
        ("compute: 0.5", "computing: 0.5", "unknown key 'computing'"),
        ("host: 0.5", "host: .nan", "host must be a positive number"),
        ('read: "16KiB"', "read: 16", "a size in quotes"),
        ('read: "16KiB"', 'read: "much"', "disk row 1: read"),
        ("in_flight: 1,", "in_flight: 1.5,", "in_flight must be a whole number"),
        ("in_flight: 1,", "", "in_flight is missing"),
        ("gb_per_s: 0.001", "gb_per_s: true", "gb_per_s must be"),
        ("cores: 14,", "", "cores is missing"),
        ("backend: metal", "backend: abacus", "backend must be one of"),
        (HARDWARE, "[1, 2]", "a mapping with hardware"),
        (HARDWARE, "a: [", "not YAML"),
    ],
)
def test_a_wrong_description_is_refused_in_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "machine.yaml"
    path.write_text(HARDWARE.replace(old, new))
    with pytest.raises(RequestInvalid, match=message) as caught:
        read_described(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_requests_that_make_no_sense_are_refused(
    common: list[str], trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def complaint(*words: str) -> str:
        capsys.readouterr()
        assert main(["predict", *common, *words]) == 2
        return capsys.readouterr().err

    path = str(trace)
    assert "--trace" in complaint()
    assert "is for --hardware" in complaint("--trace", path, "--output", str(tmp_path / "p.yaml"))
    assert "no such file" in complaint("--trace", str(tmp_path / "no.gz"), "--counts-only").lower()
    assert "no such file" in complaint("--trace", path, "--hardware", str(tmp_path / "no.yaml")).lower()
    guesses = ("--set", "predict.kind=gate", "--set", "prefetch.backend=slots")
    assert "has no guesses" in complaint("--trace", path, "--counts-only", *NOTHING_RESIDENT, *guesses)


def test_a_sweep_goes_from_as_few_as_can_be_to_all() -> None:
    for top_k, experts in ((4, 16), (10, 512), (8, 8), (1, 2)):
        found = sweep_slots(top_k, experts)
        assert (found[0], found[-1]) == (top_k, experts)
        assert len(set(found)) == len(found) <= 12


def test_reads_are_timed_for_every_number_of_misses_up_to_top_k(
    tiny: Path, shared_cache: Path, machine: Machine
) -> None:
    place = Place(machine, shared_cache)
    outline = outline_of(str(tiny), place)
    found = measure_reads(outline, Settings(), place)
    assert found.miss_s > 0
    assert [sorted(row) for row in found.disk.points.values()] == [[1, 2, 4]]
