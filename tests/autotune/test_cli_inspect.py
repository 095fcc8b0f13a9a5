"""`mlx-autotune pack`, `probe` and `show`: what is on the disk and what this machine is."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.cli import main
from streaming_core.hardware import FakeMachine
from streaming_core.profile import Entry, Profile
from streaming_core.settings import Settings

pytestmark = pytest.mark.usefixtures("elsewhere")


def test_pack_verifies_and_finds_damage(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["pack", "--model", "tiny", "--verify", "--json", "--cache-dir", str(tmp_path / "cache")]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["faults"] == [] and found["files"] == 4
    path = Path(found["folder"]) / "layer-0002.records"
    content = bytearray(path.read_bytes())
    content[-16384 * 3] ^= 1
    path.write_bytes(content)
    assert main(words) == 1
    assert "of layer 2" in json.loads(capsys.readouterr().out.splitlines()[-1])["faults"][0]


def test_show_without_a_profile_says_what_is_used_instead(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "--model", "tiny", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["path"] is None
    assert "built-in default" in shown["reason"]


def test_show_explains_what_was_passed_over(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    mac = FakeMachine.mac().hardware()
    entry = Entry(fingerprint="00ff", settings=Settings())
    path = Profile(hardware=mac, entries={"tiny": entry}).write(tmp_path / "profiles" / "m3max-64g.yaml")
    assert main(["show", "--model", "tiny", "--explain", "--json"]) == 0
    (candidate,) = json.loads(capsys.readouterr().out)["candidates"]
    assert candidate["path"] == str(path) and not candidate["used"]
    assert "backend 'metal' there" in candidate["reason"]
    assert main(["show", "--model", "tiny", "--explain"]) == 0
    assert f"passed over: {path}: is of another machine" in capsys.readouterr().out
    assert main(["show", "--model", "tiny", "--explain", "--profile", "none", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["candidates"] == []


def test_probe_without_a_model_tells_the_facts_of_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe"]) == 0
    out = capsys.readouterr().out
    assert "default budget" in out and "disk: not measured" in out


def cut(path: Path) -> str:
    os.truncate(path, path.stat().st_size - 5000)
    return "bytes where its header promises"


def overwritten(path: Path) -> str:
    path.write_bytes(b"not a store" * 1000)
    return "not a record file"


def a_folder(path: Path) -> str:
    path.unlink()
    path.mkdir()
    return "not a regular file; delete it and run `mlx-autotune pack` again"


@pytest.mark.parametrize("damage", [cut, overwritten, a_folder])
def test_verify_names_every_damaged_file_and_its_status_says_that_something_was_found(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, damage: Callable[[Path], str]
) -> None:
    words = ["pack", "--model", "tiny", "--json", "--cache-dir", str(tmp_path / "cache")]
    assert main(words) == 0
    folder = Path(json.loads(capsys.readouterr().out.splitlines()[-1])["folder"])
    damaged = [folder / f"layer-{layer:04d}.records" for layer in (1, 3)]
    for path in damaged:
        reason = damage(path)
    assert main([*words, "--verify"]) == 1
    faults = json.loads(capsys.readouterr().out.splitlines()[-1])["faults"]
    assert len(faults) == 2
    for path, fault in zip(damaged, faults, strict=True):
        assert fault.startswith(f"{path}: the file of layer ") and reason in fault
    assert main(words) == 2, "without --verify a damaged store is in the way"
    assert str(damaged[0]) in capsys.readouterr().err
    for path in damaged:
        path.rmdir() if path.is_dir() else path.unlink()
    assert main([*words, "--verify"]) == 0, "what is missing is packed, then verified"


def test_a_folder_in_the_place_of_a_file_is_told_before_anything_is_packed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["pack", "--model", "tiny", "--json", "--cache-dir", str(tmp_path / "cache")]
    assert main(words) == 0
    folder = Path(json.loads(capsys.readouterr().out.splitlines()[-1])["folder"])
    (folder / "layer-0000.records").unlink()
    a_folder(folder / "layer-0002.records")
    for verify in ([], ["--verify"]):
        assert main([*words, *verify]) == 2
        err = capsys.readouterr().err
        assert "layer-0002.records: not a regular file; delete it" in err and len(err.splitlines()) == 1
    assert not (folder / "layer-0000.records").exists()
