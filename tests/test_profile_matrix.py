"""Twelve machines, six profiles: which each machine takes, what it says, and that nothing outgrows its memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from streaming_core.hardware import FakeMachine, Hardware, MemoryState, default_budget_bytes
from streaming_core.profile import Entry, Profile, explain_profile, load_profile
from streaming_core.settings import Settings
from streaming_core.units import GIB

NEXT = "mlx-community/Qwen3-Next-80B-A3B-Instruct-4bit"
SAME = "00ff"  # fingerprint


def server(chip: str, gib: int, gpu: str | None = None, gpu_gib: int | None = None) -> FakeMachine:
    hardware = Hardware(
        system="linux", chip=chip, cores=16, memory_bytes=gib * GIB, page_bytes=4096, backend="cuda" if gpu else "cpu",
        gpu=gpu, gpu_memory_bytes=None if gpu_gib is None else gpu_gib * GIB,
    )  # fmt: skip
    return FakeMachine(hardware_reading=hardware, memory_reading=MemoryState(int(0.8 * gib * GIB)))


def mac(chip: str, gib: int) -> FakeMachine:
    return FakeMachine.mac(f"Apple {chip}", gib * GIB)


MACHINES = {
    "m1-8": mac("M1", 8),
    "m2-16": mac("M2", 16),
    "m4-24": mac("M4", 24),
    "m2pro-32": mac("M2 Pro", 32),
    "m4pro-48": mac("M4 Pro", 48),
    "m3max-64": mac("M3 Max", 64),
    "m5max-128": mac("M5 Max", 128),
    "m3ultra-512": mac("M3 Ultra", 512),
    "m9max-96": mac("M9 Max", 96),
    "epyc-24": server("AMD EPYC", 24),
    "xeon-64": server("Intel(R) Xeon(R) Gold 6430", 64),
    "h200": server("INTEL(R) XEON(R) PLATINUM 8580", 1024, "NVIDIA H200", 139),
}


def entry(budget: str | None, slots: int | str, status: str = "measured", **values: Any) -> Entry:
    settings = Settings().with_values({"memory.budget": budget, "residency.slots": slots, **values})
    return Entry(fingerprint=SAME, settings=settings, status=status, written="2030-01-31")


PROFILES = {
    "m1-8": entry("4GiB", 10, **{"memory.context": 2048}),
    "m4pro-48": entry("20GiB", 200, "modelled"),
    "m3max-64": entry("40GiB", 400, **{"memory.mlx_cache": "2GiB", "prefill.chunk": 2048}),
    "m3ultra-512": entry("400GiB", "all", **{"residency.resident_layers": 48, "memory.context": 262144}),
    "epyc-24": entry(None, 24, **{"reading.reader": "native"}),
    "h200": entry("120GiB", "all"),
}

# What a machine does with a profile that is the only one: = its own, ~ the nearest, ! refused.
ALONE = {
    #               m1-8  m4pro m3max ultra epyc  h200
    "m1-8": "        =     ~     ~     ~     !     !",
    "m2-16": "       ~     ~     ~     ~     !     !",
    "m4-24": "       ~     ~     ~     ~     !     !",
    "m2pro-32": "    ~     ~     ~     ~     !     !",
    "m4pro-48": "    ~     =     ~     ~     !     !",
    "m3max-64": "    ~     ~     =     ~     !     !",
    "m5max-128": "   ~     ~     ~     ~     !     !",
    "m3ultra-512": " ~     ~     ~     =     !     !",
    "m9max-96": "    ~     ~     ~     ~     !     !",
    "epyc-24": "     !     !     !     !     =     !",
    "xeon-64": "     !     !     !     !     !     !",
    "h200": "        !     !     !     !     !     =",
}

# And which it takes where all six are there; a modelled one only if nothing measured is.
BEST = {
    "m1-8": "m1-8", "m2-16": "m1-8", "m4-24": "m3max-64", "m2pro-32": "m3max-64", "m4pro-48": "m4pro-48",
    "m3max-64": "m3max-64", "m5max-128": "m3max-64", "m3ultra-512": "m3ultra-512", "m9max-96": "m3max-64",
    "epyc-24": "epyc-24", "xeon-64": None, "h200": "h200",
}  # fmt: skip


@dataclass(frozen=True)
class Place:
    machine: FakeMachine

    @property
    def here(self) -> Hardware:
        return self.machine.hardware()

    @property
    def usable_bytes(self) -> int:
        """What a run may take now."""
        return default_budget_bytes(self.here, self.machine.memory())

    @property
    def installed_bytes(self) -> int:
        return self.here.gpu_memory_bytes or 0 if self.here.backend == "cuda" else self.here.memory_bytes


def write(folder: Path, *names: str) -> dict[str, Path]:
    return {
        name: Profile(hardware=(there := MACHINES[name].hardware()), entries={NEXT: PROFILES[name]}).write(
            folder / f"{there.profile_name()}.yaml"
        )
        for name in names
    }


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("profile", PROFILES)
def test_one_profile_is_this_machines_or_near_or_refused_and_says_so(
    machine: str, profile: str, tmp_path: Path
) -> None:
    place = Place(MACHINES[machine])
    path = write(tmp_path, profile)[profile]
    found = load_profile(NEXT, folders=[tmp_path], machine=place.machine)
    there, here = MACHINES[profile].hardware(), place.here
    words = f"entry {NEXT} ({PROFILES[profile].status} 2030-01-31)"
    match ALONE[machine].split()[list(PROFILES).index(profile)]:
        case "=":
            assert found.path == path and not found.borrowed
            assert found.reason == f"{path}: this machine's profile, {words}"
            assert found.for_model(NEXT) == PROFILES[profile].settings
        case "~":
            assert found.path == path and found.borrowed
            names = f"{there.profile_name()} there, {here.profile_name()} here"
            assert found.reason.startswith(f"{path}: the nearest profile ({names}), {words}")
            assert found.reason.endswith(f"; `mlx-autotune run --model {NEXT}` measures this machine")
        case refused:
            assert refused == "!" and found.path is None and found.for_model(NEXT) == Settings()
            assert found.reason.startswith(
                f"built-in default: no {here.profile_name()}.yaml in {tmp_path}; {path} is of"
            )
            kind = "intel" if there.backend == here.backend else repr(here.backend)
            assert found.reason.endswith(f"{kind} here)")


@pytest.mark.parametrize("machine", MACHINES)
def test_of_six_profiles_the_right_one_is_taken(machine: str, tmp_path: Path) -> None:
    paths = write(tmp_path, *PROFILES)
    explained = explain_profile(NEXT, folders=[tmp_path], machine=MACHINES[machine])
    best = BEST[machine]
    assert explained.profile.path == (None if best is None else paths[best])
    assert {one.path for one in explained.candidates} == set(paths.values())
    assert [one.path for one in explained.candidates if one.used] == ([] if best is None else [paths[best]])
    quick = load_profile(NEXT, folders=[tmp_path], machine=MACHINES[machine])
    assert (quick, quick.path, quick.reason) == (explained.profile, explained.profile.path, explained.profile.reason)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("available_gib", [0, 3, None])
@pytest.mark.parametrize("fingerprint", [None, SAME, "another"])
def test_settings_never_exceed_this_machines_memory(
    machine: str, profile: str, available_gib: int | None, fingerprint: str | None, tmp_path: Path
) -> None:
    scarce = MACHINES[machine].memory() if available_gib is None else MemoryState(available_gib * GIB)
    place = Place(replace(MACHINES[machine], memory_reading=scarce))
    path = write(tmp_path, profile)[profile]
    taken = PROFILES[profile].settings.memory.budget or default_budget_bytes(
        MACHINES[profile].hardware(), MemoryState(None)
    )
    for asked in (NEXT, path):
        found = load_profile(asked, folders=[tmp_path], machine=place.machine, fingerprint=fingerprint)
        settings = found.for_model(NEXT)
        budget = settings.memory.budget or 0
        assert budget <= place.installed_bytes
        if machine == profile or found.path is None:
            continue
        assert budget <= max(place.usable_bytes, 1 << 20), "the least that a budget can be read as"
        if taken > place.usable_bytes:
            residency, default = settings.residency, Settings()
            assert (residency.slots, residency.resident_layers, settings.prefill.chunk) == ("auto", "auto", "auto")
            assert settings.memory.context <= default.memory.context
            assert settings.memory.mlx_cache <= default.memory.mlx_cache
        elif fingerprint == SAME:
            assert settings.residency == PROFILES[profile].settings.residency
        if asked == NEXT and fingerprint != SAME:
            assert settings.residency == replace(
                PROFILES[profile].settings.residency, slots="auto", resident_layers="auto"
            )
        assert settings.reading.reader == "auto"


def test_a_budget_beyond_what_is_installed_is_lowered_in_this_machines_own_profile(tmp_path: Path) -> None:
    machine = MACHINES["m1-8"]
    own = Entry(fingerprint=SAME, settings=Settings().with_values({"memory.budget": "9GiB", "residency.slots": 500}))
    Profile(hardware=machine.hardware(), entries={NEXT: own}).write(tmp_path / "m1-8g.yaml")
    found = load_profile(NEXT, folders=[tmp_path], machine=machine)
    assert found.for_model(NEXT).memory.budget == default_budget_bytes(machine.hardware(), machine.memory())
    assert found.for_model(NEXT).residency.slots == "auto"
    assert "memory.budget 9GiB there, 4GiB here" in found.reason


def test_what_was_measured_counts_before_the_budget_it_had(tmp_path: Path) -> None:
    there = MACHINES["m3max-64"].hardware()
    small = replace(PROFILES["m3max-64"], evidence={"tuned": {"needed_bytes": 3 * GIB}})
    Profile(hardware=there, entries={NEXT: small}).write(tmp_path / "m3max-64g.yaml")
    found = load_profile(NEXT, folders=[tmp_path], machine=MACHINES["m2-16"], fingerprint=SAME).for_model(NEXT)
    assert found.residency.slots == 400 and found.memory.budget == 8 * GIB
