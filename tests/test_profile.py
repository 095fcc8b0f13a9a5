"""Profiles as files: written whole, read strictly, nothing lost on the way."""

from __future__ import annotations

import errno
import math
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_core.errors import AutotuneError, DiskFull, ProfileInvalid
from streaming_core.hardware import FakeMachine
from streaming_core.profile import STATUSES, Entry, Profile, Program
from streaming_core.profile._document import dump, parse
from streaming_core.settings import Settings

NEXT = "mlx-community/Qwen3-Next-80B-A3B-Instruct-4bit"
HARDWARE = FakeMachine.mac().hardware()


def entry(**changes: Any) -> Entry:
    return Entry(**{"fingerprint": "00ff", "settings": Settings(), "written": "2030-01-31", **changes})


def profile(**entries: Entry) -> Profile:
    return Profile(hardware=HARDWARE, entries=entries, program=Program(version="1.10"))


plain_data = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
mappings = st.dictionaries(st.text(), plain_data, max_size=4)


@settings(deadline=None)
@given(
    st.dictionaries(st.text(min_size=1).filter(str.strip), mappings, max_size=3),
    st.sampled_from(STATUSES),
    st.text(),
    st.none() | mappings,
)
def test_any_profile_reads_back_equal_and_is_written_the_same_again(
    evidence: dict[str, Any], status: str, command: str, probe: dict[str, Any] | None
) -> None:
    made = Profile(hardware=HARDWARE, probe=probe)
    for name, facts in evidence.items():
        made = made.with_entry(name, entry(evidence=facts, status=status, command=command))
    path = Path("p.yaml")
    text = dump(made.to_mapping(), path)
    again = parse(text, path)
    assert again == made.to_mapping()
    assert dump(again, path) == text


def test_a_written_profile_is_read_back_by_its_name(tmp_path: Path) -> None:
    settings = Settings().with_values({"memory.budget": "20GiB", "residency.resident_layers": "0-11"})
    made = profile(**{NEXT: entry(settings=settings, evidence={"tps": [1e-5, 2.5], "off": "off", "time": "12:30"})})
    path = made.write(tmp_path / "deep" / "m3max-64g.yaml")
    read = Profile.read(path)
    assert read == made and read.path == path and read.reason == f"{path}: the file asked for"
    assert read.for_model(NEXT) == settings and read.program.version == "1.10"
    assert read.entry(NEXT).evidence["tps"] == [1e-5, 2.5]


def test_every_setting_is_written_and_only_some_need_be_read(tmp_path: Path) -> None:
    path = profile(demo=entry()).write(tmp_path / "p.yaml")
    written = parse(path.read_text(), path)["models"]["demo"]["settings"]
    assert written == Settings().to_mapping()
    head = path.read_text().partition("    settings:")[0]
    path.write_text(f"{head}    settings: {{reading: {{threads: 8}}}}\n")
    assert Profile.read(path).for_model("demo") == Settings().with_values({"reading.threads": 8})


def test_adding_an_entry_leaves_the_others_as_they_were(tmp_path: Path) -> None:
    odd = {
        "numbers": [1, -0.0, 1e300, 5e-324, 2**70, 1.0, math.inf],
        "text": ["1e-5", "off", "~", "", " ", "12:30", "2030-01-31", "é\u0085\u2028🚀", "a: b # c", "x\ny\n", "\t\x00"],
        "nested": {"": {"deep": [{"a": [[]]}, {}]}, "none": None, "yes": True},
        "long": "word " * 100,
    }  # fmt: skip
    path = profile(first=entry(evidence=odd, command="run --x 'a  b'")).write(tmp_path / "p.yaml")
    before = path.read_text()
    grown = Profile.read(path).with_entry("second", entry(fingerprint="11"))
    grown.write(path)
    read = Profile.read(path)
    assert list(read.entries) == ["first", "second"]
    assert read.entries["first"] == Profile.read(path).entries["first"] and read.entries["first"].evidence == odd
    assert path.read_text().startswith(before), "the bytes of what was there did not change either"


def test_an_entry_can_be_replaced_and_the_original_profile_stays() -> None:
    first = profile(demo=entry(status="interrupted"))
    second = first.with_entry("demo", entry(status="measured"))
    assert first.entry("demo").status == "interrupted" and second.entry("demo").status == "measured"


def test_entries_are_in_the_order_of_their_names_whatever_came_first() -> None:
    one = Profile(hardware=HARDWARE).with_entry("b", entry()).with_entry("a", entry())
    two = Profile(hardware=HARDWARE).with_entry("a", entry()).with_entry("b", entry())
    assert dump(one.to_mapping(), Path("p")) == dump(two.to_mapping(), Path("p"))


def test_evidence_is_a_copy() -> None:
    numbers = [1, 2]
    made = entry(evidence={"n": numbers, "again": numbers, "pair": (3, 4)})
    numbers.append(3)
    assert made.evidence == {"n": [1, 2], "again": [1, 2], "pair": [3, 4]}
    assert "&" not in dump(profile(demo=made).to_mapping(), Path("p")), "nothing is written by reference"


def test_numbers_that_are_none_are_kept(tmp_path: Path) -> None:
    path = profile(demo=entry(evidence={"x": math.nan})).write(tmp_path / "p.yaml")
    assert math.isnan(Profile.read(path).entry("demo").evidence["x"])


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"status": "done"}, "entry: status must be one of measured, interrupted, modelled, got 'done'"),
        ({"fingerprint": ""}, "entry: fingerprint is empty"),
        ({"written": "yesterday"}, """entry: written must be a date such as "2030-01-31", got 'yesterday'"""),
        ({"command": None}, "entry: command must be text, got None"),
        ({"evidence": {"at": Path("x")}}, "evidence.at: must be numbers, text, lists or mappings, got "),
        ({"evidence": {"x": {1: 2}}}, "evidence.x: key 1 must be text in quotes"),
        ({"evidence": {"x": ["\ud800"]}}, "evidence.x[0]: text that is not Unicode cannot be written"),
        ({"evidence": [1]}, "evidence: must be a mapping of names to values, got list"),
    ],
)
def test_an_entry_cannot_be_wrong(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ProfileInvalid) as caught:
        entry(**changes)
    assert str(caught.value).startswith(message)


def test_evidence_without_end_is_refused() -> None:
    endless: dict[str, Any] = {}
    endless["again"] = endless
    with pytest.raises(ProfileInvalid, match="nested more than 32 deep"):
        entry(evidence=endless)


def test_a_model_without_a_name_is_refused() -> None:
    with pytest.raises(ProfileInvalid, match="the name of a model is empty"):
        profile().with_entry(" ", entry())


@pytest.mark.parametrize(
    "number, kind, words",
    [
        (errno.ENOSPC, DiskFull, "no room to write the profile"),
        (errno.EACCES, ProfileInvalid, "cannot be written: Permission denied; write to another folder"),
    ],
)
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[AutotuneError], words: str
) -> None:
    path = profile(demo=entry()).write(tmp_path / "p.yaml")
    before = path.read_bytes()

    def fail(fd: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(kind, match=words) as caught:
        profile(other=entry()).write(path)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["p.yaml"]


def test_an_interrupt_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = profile(demo=entry()).write(tmp_path / "p.yaml")
    before = path.read_bytes()

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        profile(other=entry()).write(path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["p.yaml"]


def test_a_profile_can_be_committed_and_shared(tmp_path: Path) -> None:
    real = tmp_path / "real.yaml"
    real.write_text("old")
    (tmp_path / "link.yaml").symlink_to(real)
    profile(demo=entry()).write(tmp_path / "link.yaml")
    assert (tmp_path / "link.yaml").is_symlink() and Profile.read(real).entry("demo")
    fresh = profile(demo=entry()).write(tmp_path / "fresh.yaml")
    probe = tmp_path / "probe"
    probe.touch()
    assert stat.S_IMODE(fresh.stat().st_mode) == stat.S_IMODE(probe.stat().st_mode), "as any new file of this user"


def test_a_folder_in_the_place_of_the_file_is_an_error_and_not_a_loss(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").mkdir()
    with pytest.raises(ProfileInvalid, match=r"p\.yaml: cannot be written: Is a directory"):
        profile().write(tmp_path / "p.yaml")
    assert os.listdir(tmp_path) == ["p.yaml"]
