"""The committed schema says what the reader says, and every committed profile is as it says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from schema_check import faults

from streaming_core.errors import ProfileInvalid, SettingsError
from streaming_core.hardware import FakeMachine, Hardware
from streaming_core.profile import Entry, Profile, json_schema
from streaming_core.profile._document import parse
from streaming_core.settings import Settings

FOLDER = Path(__file__).resolve().parents[1] / "profiles"
SCHEMA = json_schema()
ODD: list[Any] = [
    None, True, False, -1, 0, 1, 3, 8, 64, 65, 1 << 20, 1 << 60, 0.05, 0.5, 1.5, "", "auto", "all", "none", "off", "on",
    "1-3", "1-3,7", "1 to 3", "2GiB", "2GB", "1.5mib", "lru", "stage", "cascade", "bogus", [], {},
]  # fmt: skip


def document() -> dict[str, Any]:
    entry = Entry(fingerprint="00ff", settings=Settings(), written="2030-01-31", evidence={"tps": [1.5]})
    machine = FakeMachine.mac(gpu_cores=40).hardware()
    return Profile(hardware=machine, entries={"demo": entry}, probe={"disk": []}).to_mapping()


def test_the_committed_schema_is_up_to_date() -> None:
    assert json.loads((FOLDER / "schema.json").read_text()) == SCHEMA, "`make schema` writes it"


def test_every_committed_profile_is_as_the_schema_says() -> None:
    for path in FOLDER.glob("*.y*ml"):
        assert faults(SCHEMA, parse(path.read_text(), path)) == [], path
        Profile.read(path)


def test_what_is_written_is_as_the_schema_says() -> None:
    assert faults(SCHEMA, document()) == []


@pytest.mark.parametrize("key", Settings.keys())
def test_schema_and_reader_take_the_same_values_of_a_setting(key: str) -> None:
    section, _, name = key.partition(".")
    schema = SCHEMA["properties"]["models"]["additionalProperties"]["properties"]["settings"]
    for value in ODD:
        taken = True
        try:
            Settings.from_mapping({section: {name: value}})
        except SettingsError:
            taken = False
        assert (faults(schema, {section: {name: value}}) == []) == taken, (key, value)


@pytest.mark.parametrize("key", [*FakeMachine.mac(gpu_cores=40).hardware().to_mapping(), "gpu_kores"])
def test_schema_and_reader_take_the_same_values_of_a_machine(key: str) -> None:
    whole = FakeMachine.mac(gpu_cores=40).hardware().to_mapping()
    for value in [*ODD, "linux", "metal", "64GiB"]:
        hardware, taken = {**whole, key: value}, True
        try:
            Hardware.from_mapping(hardware)
        except ProfileInvalid:
            taken = False
        assert (faults(SCHEMA["properties"]["hardware"], hardware) == []) == taken, (key, value)


def drop(*path: str) -> Callable[[dict[str, Any]], None]:
    def change(found: Any) -> None:
        for key in path[:-1]:
            found = found[key]
        del found[path[-1]]

    return change


def put(value: Any, *path: str) -> Callable[[dict[str, Any]], None]:
    def change(found: Any) -> None:
        for key in path[:-1]:
            found = found[key]
        found[path[-1]] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        drop("schema_version"),
        drop("hardware"),
        drop("models"),
        drop("hardware", "page"),
        drop("models", "demo", "fingerprint"),
        drop("models", "demo", "status"),
        drop("models", "demo", "settings"),
        put("2", "schema_version"),
        put(1, "more"),
        put(1.1, "program", "version"),
        put([], "probe"),
        put({}, "models", ""),
        put("", "models", "demo", "fingerprint"),
        put("done", "models", "demo", "status"),
        put("soon", "models", "demo", "written"),
        put([], "models", "demo", "evidence"),
        put({}, "models", "demo", "settings", "reeding"),
    ],
)
def test_faults_are_found_by_schema_and_reader(change: Callable[[dict[str, Any]], None], tmp_path: Path) -> None:
    wrong = document()
    change(wrong)
    assert faults(SCHEMA, wrong)
    path = tmp_path / "p.yaml"
    path.write_text(json.dumps(wrong))
    with pytest.raises(ProfileInvalid):
        Profile.read(path)
