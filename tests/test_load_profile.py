"""Which profile is used, and why."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streaming_core.errors import ProfileInvalid
from streaming_core.hardware import Conditions, FakeMachine
from streaming_core.profile import Entry, Profile, default_folders, explain_profile, load_profile
from streaming_core.settings import Settings
from streaming_core.units import GIB

NEXT = "mlx-community/Qwen3-Next-80B-A3B-Instruct-4bit"
MAC = FakeMachine.mac()
FAST = Settings().with_values({"reading.threads": 8})


def write(folder: Path, *models: str, machine: FakeMachine = MAC, settings: Settings = FAST) -> Path:
    hardware = machine.hardware()
    entry = Entry(fingerprint="00ff", settings=settings, written="2030-01-31")
    profile = Profile(hardware=hardware, entries=dict.fromkeys(models, entry))
    return profile.write(folder / f"{hardware.profile_name()}.yaml")


@pytest.mark.parametrize(
    "asked",
    [
        NEXT,
        "qwen3-next",
        "/models/Qwen3-Next-80B-A3B-Instruct-4bit",
        Path("/models/Qwen3-Next-80B-A3B-Instruct-4bit"),
        f"/hub/models--{NEXT.replace('/', '--')}/snapshots/0123",
    ],
)
def test_a_model_is_found_by_name_alias_and_folder(tmp_path: Path, asked: str | Path) -> None:
    profile = load_profile(asked, folders=[write(tmp_path, NEXT, "demo").parent], machine=MAC)
    assert profile.for_model(asked) == FAST
    path = tmp_path / "m3max-64g.yaml"
    assert profile.reason == f"{path}: this machine's profile, entry {NEXT} (measured 2030-01-31)"


def test_a_model_measured_as_a_folder_or_alias_is_found_by_its_id(tmp_path: Path) -> None:
    profile = Profile.read(write(tmp_path, "Qwen3-Next-80B-A3B-Instruct-4bit"))
    assert profile.entry_name(NEXT) == "Qwen3-Next-80B-A3B-Instruct-4bit"
    assert Profile.read(write(tmp_path, "qwen3-next")).entry_name(NEXT) == "qwen3-next"
    assert Profile.read(write(tmp_path, "layers:2")).entry_name(Path("/cache/models/layers-2")) == "layers:2"


def test_the_model_of_one_owner_never_matches_anothers(tmp_path: Path) -> None:
    profile = Profile.read(write(tmp_path, "somebody/Qwen3", "other/Qwen3"))
    assert profile.entry_name("third/Qwen3") is None
    with pytest.raises(ProfileInvalid, match="/x/Qwen3 fits other/Qwen3 and somebody/Qwen3; use the full name"):
        profile.entry_name("/x/Qwen3")


def test_a_file_asked_for_raises_for_a_model_it_does_not_have(tmp_path: Path) -> None:
    path = write(tmp_path, NEXT, "demo")
    for profile in (Profile.read(path), load_profile(path, machine=MAC), load_profile(str(path), machine=MAC)):
        assert profile.path == path and profile.reason == f"{path}: the file asked for"
        with pytest.raises(ProfileInvalid) as caught:
            profile.for_model("tiny")
        assert str(caught.value) == (
            f"{path}: no entry for tiny; `mlx-autotune run --model tiny` measures it. Entries: demo, {NEXT}"
        )


def test_a_file_asked_for_is_used_on_another_machine_and_says_so(tmp_path: Path) -> None:
    path = write(tmp_path, "demo")
    profile = load_profile(path, machine=FakeMachine.mac("Apple M1", 8 * GIB))
    assert profile.for_model("demo") == FAST
    assert profile.reason.endswith("though of another machine (chip 'Apple M3 Max' there, 'Apple M1' here)")


def test_a_file_that_was_searched_for_gives_the_default_for_a_model_it_does_not_have(tmp_path: Path) -> None:
    path = write(tmp_path, NEXT)
    profile = load_profile("tiny", folders=[tmp_path], machine=MAC)
    assert profile.for_model("tiny") == Settings() and profile.for_model(NEXT) == FAST
    assert profile.reason == f"built-in default: {path} has no entry for tiny (entries: {NEXT})"


def test_without_a_model_this_machines_profile_is_found_and_never_raises(tmp_path: Path) -> None:
    path = write(tmp_path, NEXT)
    profile = load_profile(folders=[tmp_path / "none", tmp_path], machine=MAC)
    assert profile.path == path and profile.reason == f"{path}: this machine's profile"
    assert profile.for_model(NEXT) == FAST and profile.for_model("tiny") == Settings()
    with pytest.raises(ProfileInvalid, match="no entry for tiny"):
        profile.entry("tiny")


def test_the_first_folder_wins_unless_only_a_later_one_has_the_model(tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in "abc")
    write(first, "demo")
    write(second, "demo", NEXT, settings=Settings())
    write(third, NEXT)
    folders = [first, second, third]
    assert load_profile("demo", folders=folders, machine=MAC).path == first / "m3max-64g.yaml"
    assert load_profile(NEXT, folders=folders, machine=MAC).path == second / "m3max-64g.yaml"
    assert load_profile(folders=folders, machine=MAC).path == first / "m3max-64g.yaml"


def test_nothing_found_is_the_built_in_default(tmp_path: Path) -> None:
    profile = load_profile("anything/at-all", folders=[tmp_path], machine=MAC)
    assert profile.path is None and profile.for_model("anything/at-all") == Settings()
    assert profile.reason == f"built-in default: no m3max-64g.yaml in {tmp_path}"
    assert load_profile(folders=[], machine=MAC).reason == "built-in default: no m3max-64g.yaml in no folder"


def test_a_file_of_the_same_name_from_another_machine_is_only_near(tmp_path: Path) -> None:
    server = FakeMachine()
    path = write(tmp_path, "demo", machine=server)
    other = FakeMachine(hardware_reading=dataclasses.replace(server.hardware(), chip="AMD EPYC 9654 96-Core Processor"))
    profile = load_profile("demo", folders=[tmp_path], machine=other)
    assert profile.path == path and profile.for_model("demo") == FAST and profile.borrowed
    assert profile.reason == (
        f"{path}: the nearest profile (chip 'AMD EPYC' there, 'AMD EPYC 9654 96-Core Processor' here), "
        "entry demo (measured 2030-01-31); `mlx-autotune run --model demo` measures this machine"
    )


def test_another_backend_is_refused_even_under_this_machines_name(tmp_path: Path) -> None:
    path = write(tmp_path, "demo", machine=MAC).rename(tmp_path / "linux-epyc-2c-24g.yaml")
    profile = load_profile("demo", folders=[tmp_path], machine=FakeMachine())
    assert profile.path is None and profile.for_model("demo") == Settings()
    assert profile.reason == (
        f"built-in default: no linux-epyc-2c-24g.yaml in {tmp_path}; "
        f"{path} is of another machine (backend 'metal' there, 'cpu' here)"
    )


def test_a_renamed_file_of_this_machine_is_its_profile(tmp_path: Path) -> None:
    path = write(tmp_path, "demo").rename(tmp_path / "mine.yml")
    profile = load_profile("demo", folders=[tmp_path], machine=MAC)
    assert profile.path == path and not profile.borrowed
    assert profile.reason == f"{path}: this machine's profile, entry demo (measured 2030-01-31)"


def test_a_broken_file_is_an_error_and_not_a_default(tmp_path: Path) -> None:
    (tmp_path / "m3max-64g.yaml").write_text("a: [\n")
    with pytest.raises(ProfileInvalid, match="not YAML"):
        load_profile("demo", folders=[tmp_path], machine=MAC)


def test_a_broken_file_of_another_machine_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("a: [\n")
    newer = write(tmp_path, "demo", machine=FakeMachine.mac("Apple M2", 16 * GIB))
    newer.write_text(newer.read_text().replace('schema_version: "1"', "schema_version: '2'").replace("'1'", "'2'"))
    profile = load_profile("demo", folders=[tmp_path], machine=MAC)
    assert profile.path is None
    assert profile.reason.endswith("; 2 profiles passed over, `mlx-autotune show --explain` says why")
    why = {one.path.name: one.reason for one in explain_profile("demo", folders=[tmp_path], machine=MAC).candidates}
    assert "not YAML" in why["broken.yaml"]
    assert why["m2-16g.yaml"] == "schema_version 2 is newer than this program knows; update mlx-autotune"


def test_folders_go_from_the_current_one_over_the_users_to_the_checkouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    checkout = Path(__file__).resolve().parents[1]
    monkeypatch.chdir(tmp_path)
    folders = default_folders()
    assert folders[0] == tmp_path / "profiles" and folders[1].is_relative_to(tmp_path / "home")
    assert folders[2:] == [checkout / "profiles"]
    monkeypatch.chdir(checkout)
    assert default_folders() == [folders[2], folders[1]], "where we stand is where `run` writes"


def test_this_machines_profile_of_another_folder_goes_before_a_nearer_folders_nearest(tmp_path: Path) -> None:
    write(tmp_path / "a", "demo", machine=FakeMachine.mac("Apple M3 Max", 48 * GIB))
    exact = write(tmp_path / "b", "demo")
    explained = explain_profile("demo", folders=[tmp_path / "a", tmp_path / "b"], machine=MAC)
    assert explained.profile.path == exact
    assert [(one.path.name, one.used) for one in explained.candidates] == [
        ("m3max-64g.yaml", True),
        ("m3max-48g.yaml", False),
    ]
    assert explained.candidates[1].reason == (
        "is of another machine (memory 48GiB there, 64GiB here); there is a better one"
    )


def test_the_nearest_is_asked_for_a_model_that_this_machines_profile_does_not_have(tmp_path: Path) -> None:
    own = write(tmp_path, NEXT)
    near = write(tmp_path, "demo", machine=FakeMachine.mac("Apple M3 Max", 48 * GIB))
    explained = explain_profile("demo", folders=[tmp_path], machine=MAC)
    assert explained.profile.path == near and explained.profile.for_model("demo") == FAST
    assert explained.profile.for_model(NEXT) == Settings(), "of the file that is in use"
    assert {one.path: one.reason for one in explained.candidates} == {
        own: "has no entry for demo",
        near: "the nearest profile",
    }


def test_of_two_as_far_in_memory_the_one_with_a_disk_as_fast_is_nearer(tmp_path: Path) -> None:
    def probed(machine: FakeMachine, bytes_per_s: float, *models: str) -> Path:
        row = {"read_bytes": 1 << 20, "bytes_per_s": bytes_per_s, "state": "cold"}
        profile = Profile.read(write(tmp_path, *models, machine=machine))
        return dataclasses.replace(
            profile, probe={"disk": [row, {**row, "state": "cached", "bytes_per_s": 9e10}]}
        ).write(profile.path or "")

    slow = probed(FakeMachine.mac("Apple M1 Max", 64 * GIB), 3.0e9, "demo")
    fast = probed(FakeMachine.mac("Apple M5 Max", 64 * GIB), 12.0e9, "demo")
    assert load_profile("demo", folders=[tmp_path], machine=MAC).path == slow, "alike as far as is known: the first"
    probed(MAC, 10e9, NEXT)
    assert load_profile("demo", folders=[tmp_path], machine=MAC).path == fast


def test_this_machine_is_detected_when_none_is_given(tmp_path: Path) -> None:
    assert load_profile(folders=[tmp_path]).reason.startswith("built-in default: no ")


def test_the_next_nearest_is_taken_where_the_nearest_is_broken_behind_its_head(tmp_path: Path) -> None:
    near, next_near = (write(tmp_path, "demo", machine=FakeMachine.mac("Apple M3 Max", gib * GIB)) for gib in (96, 128))
    near.write_text(near.read_text().replace("threads: 8", "threads: 0"))
    found = explain_profile("demo", folders=[tmp_path], machine=MAC)
    assert found.profile.path == next_near and found.profile.borrowed
    assert "reading.threads must be from 1 to 64" in found.candidates[1].reason
    assert load_profile("demo", folders=[tmp_path], machine=MAC).reason == found.profile.reason


def test_models_may_come_first_in_a_file_written_by_hand(tmp_path: Path) -> None:
    path = write(tmp_path, "demo", machine=FakeMachine.mac("Apple M3 Max", 96 * GIB))
    head, _, models = path.read_text().partition("models:")
    path.write_text(
        f"# ours\nmodels:{models}{head.partition('schema_version')[1]}{head.partition('schema_version')[2]}"
    )
    assert load_profile("demo", folders=[tmp_path], machine=MAC).path == path


def test_of_two_files_of_this_machine_with_other_names_the_one_with_its_memory_goes_first(tmp_path: Path) -> None:
    write(tmp_path, "demo", machine=FakeMachine.mac("Apple M3 Max", 60 * GIB)).rename(tmp_path / "a.yaml")
    exact = write(tmp_path, "demo").rename(tmp_path / "b.yaml")
    assert load_profile("demo", folders=[tmp_path], machine=MAC).path == exact


def stale(tmp_path: Path, **evidence: object) -> Path:
    entry = Entry(fingerprint="00ff", settings=FAST, evidence=evidence)
    hardware = dataclasses.replace(MAC.hardware(), os_version="26.0 (25A1)")
    return Profile(hardware=hardware, entries={"demo": entry}).write(tmp_path / "m3max-64g.yaml")


def test_what_has_changed_since_is_named_and_the_profile_is_used(tmp_path: Path) -> None:
    path = stale(
        tmp_path,
        versions={"mlx-autotune": "0.1", "mlx": "0.32.4", "mlx-lm": "0.32.2", "optuna": "4"},
        conditions={"power": "ac", "low_power": False},
    )
    machine = FakeMachine.mac()
    machine.hardware_reading = dataclasses.replace(MAC.hardware(), os_version="26.0 (25A9)")
    machine.conditions_reading = Conditions("battery", True)
    now = {"mlx-autotune": "0.2", "mlx": "0.33.0", "mlx-lm": "0.32.2"}
    profile = load_profile("demo", folders=[tmp_path], machine=machine, versions=now, fingerprint="0aaa")
    assert profile.for_model("demo") == FAST
    assert profile.reason == (
        f"{path}: this machine's profile, entry demo (measured); since then: the checkpoint is another one (00ff then, "
        "0aaa now), macOS was 26.0 (25A1), now it is 26.0 (25A9), mlx-autotune was 0.1, now it is 0.2, "
        "mlx was 0.32.4, now it is 0.33.0, power was ac, now it is battery, low power mode was off, now it is on"
    )


def test_what_a_profile_does_not_tell_has_not_changed(tmp_path: Path) -> None:
    stale(tmp_path, versions="none", conditions={"power": "unknown", "low_power": None})
    machine = FakeMachine.mac()
    machine.hardware_reading = dataclasses.replace(MAC.hardware(), os_version="")
    assert "since then" not in load_profile("demo", folders=[tmp_path], machine=machine).reason


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["needed_bytes", "power", "mlx"]), inner)
    ),
    max_leaves=4,
)
FACTS = ("versions", "conditions", "tuned", "forecast", "default", "budget_bytes")


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    evidence=st.dictionaries(st.sampled_from(FACTS), anything),
    disk=st.lists(st.fixed_dictionaries({"bytes_per_s": anything}) | anything, max_size=2) | anything,
    chip=st.sampled_from(["AMD EPYC", "(R)", "", "AMD"]),
    memory_bytes=st.sampled_from([0, 1, GIB, 1 << 60]),
)
def test_whatever_others_wrote_into_their_profiles_nothing_breaks_here(
    tmp_path: Path, evidence: dict[str, object], disk: object, chip: str, memory_bytes: int
) -> None:
    hardware = dataclasses.replace(FakeMachine().hardware(), chip=chip, memory_bytes=memory_bytes)
    entry = Entry(fingerprint="00ff", settings=FAST.with_values({"residency.slots": 9}), evidence=evidence)
    path = Profile(hardware=hardware, entries={"demo": entry}, probe={"disk": disk}).write(tmp_path / "other.yaml")
    own = Entry(fingerprint="00ff", settings=FAST)
    row = {"disk": [{"bytes_per_s": 2e9}]}
    Profile(hardware=FakeMachine().hardware(), entries={"tiny": own}, probe=row).write(tmp_path / "own.yaml")
    found = load_profile("demo", folders=[tmp_path], machine=FakeMachine())
    assert (found.path == path) == chip.startswith("AMD")
    assert "\n" not in found.reason


def test_what_others_wrote_cannot_break_the_line(tmp_path: Path) -> None:
    stale(tmp_path, versions={"mlx": "1\n\x1b[2J", "mlx-lm": "9" * 500})
    reason = load_profile("demo", folders=[tmp_path], machine=MAC).reason
    assert r"mlx was '1\n\x1b[2J', now it is " in reason and reason.isprintable() and len(reason) < 500


def test_the_installed_versions_are_looked_up(tmp_path: Path) -> None:
    stale(tmp_path, versions={"mlx": "0.0.1"})
    assert "mlx was 0.0.1, now it is " in load_profile("demo", folders=[tmp_path], machine=MAC).reason


def test_a_borrowed_profile_never_stops_a_model_that_is_another_checkpoint(tmp_path: Path) -> None:
    write(tmp_path, "demo", settings=FAST.with_values({"residency.slots": 24}))
    near = load_profile("demo", folders=[tmp_path], machine=FakeMachine.mac("Apple M9", 128 * GIB))
    near.check_checkpoint("demo", "another", tmp_path)
    assert near.for_model("demo") == FAST, "24 slots may be more than that one has experts"
    assert "residency.slots as by default: the checkpoint is not known to be the same" in near.reason
    own = load_profile("demo", folders=[tmp_path], machine=MAC)
    with pytest.raises(ProfileInvalid, match="was measured on another checkpoint"):
        own.check_checkpoint("demo", "another", tmp_path)
