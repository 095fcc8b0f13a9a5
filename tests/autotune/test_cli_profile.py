"""`mlx-autotune profile`: what can be used, what differs, and what others may see."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import main
from autotune.sharing import shareable
from streaming_core.hardware import FakeMachine, detect
from streaming_core.profile import Entry, Profile
from streaming_core.settings import Settings

pytestmark = pytest.mark.usefixtures("elsewhere")
NEXT = "mlx-community/Qwen3-Next-80B-A3B-Instruct-4bit"


def entry(values: dict[str, Any] | None = None, **changes: Any) -> Entry:
    settings = Settings().with_values(values or {})
    return Entry(**{"fingerprint": "00ff", "settings": settings, "written": "2030-01-31", **changes})


def write(path: Path, **entries: Entry) -> Path:
    return Profile(hardware=FakeMachine.mac().hardware(), entries=entries).write(path)


def said(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_validate_tells_every_file_and_its_status_tells_whether_all_are_fine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = str(write(tmp_path / "good.yaml", demo=entry())), str(tmp_path / "bad.yaml")
    Path(bad).write_text("schema_version: '9'\n")
    assert main(["profile", "validate", good]) == 0
    assert capsys.readouterr().out.replace("\n", "") == f"{good}: fine"
    assert main(["profile", "validate", good, bad, str(tmp_path / "none.yaml"), "--json"]) == 1
    found = said(capsys)["files"]
    assert [each["fault"] is None for each in found] == [True, False, False]
    assert "schema_version 9 is newer than this program knows" in found[1]["fault"]
    assert main(["profile", "validate", bad, good, "--quiet"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{bad}: schema_version 9") and lines[1] == "1 of 2 can be used"


def test_diff_puts_settings_and_evidence_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = {"tuned": {"decode_tps": 12.5}, "interval": {"low": 1.1, "high": 1.3}, "versions": {"mlx": "0.32.4"}}
    old = write(tmp_path / "old.yaml", demo=entry({"reading.threads": 8}), only=entry())
    new = write(
        tmp_path / "new.yaml",
        demo=entry({"reading.threads": 16, "memory.budget": "2GiB"}, evidence=facts),
        tiny=entry(),
    )
    assert main(["profile", "diff", str(old), str(new), "--json"]) == 0
    models = said(capsys)["models"]
    assert models["demo"]["settings"] == {"memory.budget": [None, "2GiB"], "reading.threads": [8, 16]}
    assert models["demo"]["evidence"]["tuned tok/s"][0] == "-" and models["demo"]["same_checkpoint"]
    assert models["demo"]["evidence"]["mlx"] == ["-", "0.32.4"]
    assert (models["only"], models["tiny"]) == ({"only_in": "first"}, {"only_in": "second"})
    assert main(["profile", "diff", str(old), str(new), "--model", "demo"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["reading.threads", "8", "16"] in rows and ["memory.budget", "none", "2GiB"] in rows
    assert ["tuned", "tok/s", "-", "12.5"] in rows
    assert main(["profile", "diff", str(old), str(old), "--quiet"]) == 0
    assert capsys.readouterr().out == "demo: no settings differ\nonly: no settings differ\n"


def test_diff_finds_a_model_by_its_other_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write(tmp_path / "one.yaml", **{"qwen3-next": entry({"residency.slots": 20})})
    two = write(tmp_path / "two.yaml", **{NEXT: entry({"residency.slots": 30}, fingerprint="11")})
    assert main(["profile", "diff", str(one), str(two), "--quiet"]) == 0
    assert capsys.readouterr().out == "qwen3-next: 1 setting differs, of different checkpoints\n"
    assert main(["profile", "diff", str(one), str(two), "--model", "tiny"]) == 2
    assert "no entry for tiny" in capsys.readouterr().err


def own(tmp_path: Path, **entries: Entry) -> Path:
    hardware = detect().hardware()
    return Profile(hardware=hardware, entries=entries).write(tmp_path / "profiles" / f"{hardware.profile_name()}.yaml")


def test_export_writes_one_entry_of_this_machine_without_paths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = str(Path.home())
    mine = entry(
        {"reading.threads": 8}, command=f"mlx-autotune run --model {home}/tiny", evidence={"study": f"{home}/x/y.log"}
    )
    own(tmp_path, tiny=mine, demo=entry())
    assert main(["profile", "export", "--model", "tiny", "--output", "out.yaml"]) == 0
    read = Profile.read("out.yaml")
    assert list(read.entries) == ["tiny"] and read.entry("tiny").settings == mine.settings
    assert read.entry("tiny").command == "mlx-autotune run --model tiny"
    assert home not in Path("out.yaml").read_text()
    capsys.readouterr()
    assert main(["profile", "export", "--model", "tiny"]) == 0
    assert capsys.readouterr().out.strip() == Path("out.yaml").read_text().strip()
    assert main(["profile", "export", "--model", "tiny", "--json"]) == 0
    assert said(capsys)["profile"] == read.to_mapping()


def test_export_of_what_is_not_this_machines_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "mac.yaml", tiny=entry())
    taken = own(tmp_path, demo=entry())
    shutil.copy(taken, tmp_path / "there.yaml")
    for words, message in [
        ([], "--model is missing"),
        (["--model", "tiny"], "there is no entry for tiny"),
        (["--model", "tiny", "--profile", "mac.yaml"], "is of another machine"),
        (["--model", "tiny", "--profile", "none"], "no profile was wanted"),
        (["--model", "demo", "--output", "there.yaml"], "is there already"),
        (["--model", "demo", "--output", "there.txt"], "a .yaml file is expected"),
    ]:
        assert main(["profile", "export", *words]) == 2
        out, err = capsys.readouterr()
        assert message in err and len(err.splitlines()) == 1 and out == ""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("/Users/ann/models/x", "x"),
        ("read /Users/ann/a.bin, then ~/b.bin", "read a.bin, then b.bin"),
        ("~ann/deep/c", "c"),
        ("./models/d", "d"),
        (r"C:\Users\ann\e", "e"),
        ("file:///Users/ann/f", "f"),
        ("(/Users/ann)", "(user)"),
        ("ann's run", "user's run"),
        ("channel annex ann-e", "channel annex ann-e"),
        ("ann/Qwen3", "ann/Qwen3"),
        (f"{NEXT} at 3 GB/s, 1/2 of it", f"{NEXT} at 3 GB/s, 1/2 of it"),
    ],
)
def test_of_paths_the_last_part_is_left_and_no_user_is_named(before: str, after: str) -> None:
    profile = Profile(
        hardware=FakeMachine.mac().hardware(),
        entries={"demo": entry(evidence={"deep": [{"text": before, "n": 1}]}), "other": entry()},
        probe={"disk": before},
    )
    shared = shareable(profile, "demo", {"ann", ""})
    assert shared.entries["demo"].evidence == {"deep": [{"text": after, "n": 1}]} and list(shared.entries) == ["demo"]
    assert shared.probe == {"disk": after}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"mlx-autotune run --model {NEXT} --trials 40", f"mlx-autotune run --model {NEXT} --trials 40"),
        ("mlx-autotune run --model '/Volumes/my disk/Qwen 3' --seed 1", "mlx-autotune run --model 'Qwen 3' --seed 1"),
        ("mlx-autotune run --model=/a/b --cache-dir=/c --output p.yaml --quiet", "mlx-autotune run --model=b --quiet"),
        ("mlx-autotune run --model 'never ends /a/b", """mlx-autotune run --model ''"'"'never' ends b"""),
        ("", ""),
    ],
)
def test_the_command_keeps_what_another_machine_can_repeat(before: str, after: str) -> None:
    profile = Profile(hardware=FakeMachine.mac().hardware(), entries={"demo": entry(command=before)})
    assert shareable(profile, "demo", ()).entries["demo"].command == after


@pytest.mark.parametrize("action", ["validate", "diff", "export"])
def test_help_of_an_action_has_an_example_and_its_statuses(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", action, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"example:\n  mlx-autotune profile {action} " in out and "--json" in out and "--quiet" in out
    _, _, block = out.partition("exit status:")
    assert ("  1 " in block) == (action == "validate")
