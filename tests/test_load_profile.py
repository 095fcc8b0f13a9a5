"""Which profile is used, and why."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from streaming_core.errors import ProfileInvalid
from streaming_core.hardware import FakeMachine
from streaming_core.profile import Entry, Profile, default_folders, load_profile
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


def test_a_file_of_the_same_name_from_another_machine_is_passed_over_by_name(tmp_path: Path) -> None:
    server = FakeMachine()
    path = write(tmp_path, "demo", machine=server)
    other = FakeMachine(hardware_reading=dataclasses.replace(server.hardware(), chip="AMD EPYC 9654 96-Core Processor"))
    profile = load_profile("demo", folders=[tmp_path], machine=other)
    assert profile.path is None and profile.for_model("demo") == Settings()
    assert profile.reason == (
        f"built-in default: {path} is of another machine "
        f"(chip 'AMD EPYC' there, 'AMD EPYC 9654 96-Core Processor' here)"
    )


def test_a_broken_file_is_an_error_and_not_a_default(tmp_path: Path) -> None:
    (tmp_path / "m3max-64g.yaml").write_text("a: [\n")
    with pytest.raises(ProfileInvalid, match="not YAML"):
        load_profile("demo", folders=[tmp_path], machine=MAC)


def test_the_current_folder_goes_before_the_users_and_the_checkouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    folders = default_folders()
    assert folders[0] == tmp_path / "profiles" and folders[1].is_relative_to(tmp_path / "home")
    checkout = Path(__file__).resolve().parents[1]
    assert folders[2:] == [checkout / "profiles"]


def test_this_machine_is_detected_when_none_is_given(tmp_path: Path) -> None:
    assert load_profile(folders=[tmp_path]).reason.startswith("built-in default: no ")
