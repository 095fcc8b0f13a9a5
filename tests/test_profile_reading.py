"""What a profile somebody edited by hand may get wrong, and what it is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from streaming_core.errors import ProfileInvalid
from streaming_core.profile import Profile
from streaming_core.settings import Settings

GOOD = """\
schema_version: "1"
program: {name: mlx-autotune, version: "0.1.0"}
hardware:
  system: darwin
  chip: Apple M3 Max
  cores: 16
  memory: 64GiB
  page: 16KiB
  backend: metal
models:
  demo:
    fingerprint: "00ff"
    status: measured
    settings:
      reading: {threads: 8}
"""


def refuse(tmp_path: Path, text: str | bytes) -> str:
    path = tmp_path / "m3max-64g.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ProfileInvalid) as caught:
        Profile.read(path)
    assert "\n" not in str(caught.value) and str(caught.value).startswith(str(path))
    return str(caught.value).removeprefix(str(path))


def test_a_short_profile_is_enough(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(GOOD)
    profile = Profile.read(path)
    assert profile.for_model("demo") == Settings().with_values({"reading.threads": 8})
    assert profile.hardware.profile_name() == "m3max-64g" and profile.probe is None
    assert profile.entry("demo").evidence == {} and profile.entry("demo").written == ""


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("models:", "model:", ": unknown key 'model'; did you mean 'models'? Known: schema_version, program, hardware"),
        ("    status:", "    sttus:", ": models.demo: unknown key 'sttus'; did you mean 'status'? Known: fingerprint,"),
        ("reading:", "reeding:", ": models.demo.settings: unknown key 'reeding'; did you mean 'reading'? Known: memor"),
        ("threads: 8", "thread: 8", ": models.demo.settings: unknown key 'reading.thread'; did you mean 'reading.thre"),
        ("threads: 8", "threads: off", ": models.demo.settings: reading.threads must be a whole number from 1 to 64, "),
        ("threads: 8", "threads: 8.0", ": models.demo.settings: reading.threads must be a whole number from 1 to 64, "),
        ("threads: 8", "threads: 1e1", ": models.demo.settings: reading.threads must be a whole number from 1 to 64, "),
        ("{threads: 8}", "8", ": models.demo.settings.reading must be a mapping of names to values, got int"),
        ('"00ff"', "123", ": models.demo: fingerprint must be text in quotes, got 123 (int)"),
        ('    fingerprint: "00ff"\n', "", ": models.demo: fingerprint is missing; needed: fingerprint, status, settin"),
        ("measured", "off", ": models.demo: status must be text in quotes, got False (bool)"),
        ("measured", "finished", ": models.demo: status must be one of measured, interrupted, modelled, got 'finished"),
        ("measured\n", "measured\n    written: 2030-01-31\n", ": models.demo: written must be text in quotes, got dat"),
        ("measured\n", "measured\n    written: soon\n", """: models.demo: written must be a date such as "2030-01-3"""),
        ("measured\n", "measured\n    evidence: 3\n", ": models.demo.evidence: must be a mapping of names to values, "),
        ("measured\n", "measured\n    evidence: {at: 2030-01-31}\n", ": models.demo.evidence.at: must be numbers, tex"),
        ("measured\n", "measured\n    evidence: {1: 2}\n", ": models.demo.evidence: key 1 must be text in quotes"),
        ("  demo:", "  7:", ": models: key 7 must be a model's name in quotes"),
        ('version: "0.1.0"', "version: 1.10", ": program: version must be text in quotes, got 1.1 (float)"),
        ("{name: mlx-autotune", "{nmae: mlx-autotune", ": program: unknown key 'nmae'; did you mean 'name'?"),
        ('"1"', "1", ": schema_version must be text in quotes, got 1 (int)"),
        ('"1"', '"2"', ": schema_version 2 is newer than this program knows; update mlx-autotune"),
        ('"1"', '"one"', """: schema_version must be "1", got 'one'"""),
        ('schema_version: "1"\n', "", ": schema_version is missing; a profile starts with schema_version: "),
        ("memory: 64GiB", "memory: 64GB", ": hardware.memory needs a binary unit, got '64GB'"),
        ("  chip: Apple M3 Max\n", "", ": hardware: chip is missing"),
        ("  cores: 16", "  cors: 16", ": hardware: unknown key 'cors'; did you mean 'cores'?"),
        ("models:", "probe: 3\nmodels:", ": probe: must be a mapping of names to values, got int"),
    ],
)  # fmt: skip
def test_a_fault_is_named_with_file_section_and_remedy(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    assert refuse(tmp_path, GOOD.replace(old, new, 1)).startswith(message)


@pytest.mark.parametrize(
    "text, message",
    [
        ("", ": is empty; `mlx-autotune run` writes a profile"),
        ("# nothing\n", ": is empty"),
        ("- 1\n", ": must be a mapping of names to values, got list"),
        ("just words", ": must be a mapping of names to values, got str"),
        (GOOD.replace("  cores: 16", "  cores: [16"), r":\d+: not YAML: .*; correct that line"),
        (GOOD.replace("  cores: 16", "\tcores: 16"), r":6: not YAML: found .*tab|:6: not YAML: found character"),
        (GOOD.replace("cores: 16", "cores: !!python/name:os.system x"), r":6: not YAML: could not determine a constru"),
        (GOOD.replace("cores: 16", "cores: 2030-13-45"), ": not YAML: .*month.*; correct the file"),
        (GOOD.replace("cores: 16", "cores: \x07"), r".*: not YAML: .*"),
        (GOOD + "---\nmore: 1\n", r":\d+: not YAML: .*another document"),
        (GOOD + 'schema_version: "1"\n', ":16: key 'schema_version' appears twice; remove one"),
        (GOOD.replace("  cores: 16", "  cores: 16\n  cores: 8"), ":7: key 'cores' appears twice"),
        (GOOD.replace("{threads: 8}", "{threads: 8, threads: 9}"), ":15: key 'threads' appears twice"),
        (GOOD.replace("cores: 16", "cores: &c 16"), r":6: references \(& and \*\) are not allowed; write the value ou"),
        (GOOD.replace("cores: 16", "cores: *c"), r":6: references"),
        ("[" * 100 + "]" * 100, ":1: nested more than 64 deep"),
        ("{a: " * 5000, ":1: nested more than 64 deep"),
        ("? [a, b]\n: 1\n", r":1: not YAML: found unhashable key|: unknown key"),
        (b"a: \xff\xfe\n", ":1: not UTF-8 at byte 3; save the file as UTF-8"),
        (b"a: 1\nb: \xe9\n", ":2: not UTF-8 at byte 8"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_profile_is_one_line(tmp_path: Path, text: str | bytes, message: str) -> None:
    found = refuse(tmp_path, text)
    assert re.match(message, found), found


def test_references_that_would_grow_without_end_are_refused_at_the_first(tmp_path: Path) -> None:
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(9)
    )
    assert refuse(tmp_path, bomb).startswith(":1: references")


def test_a_huge_file_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    assert "larger than 4 MiB" in refuse(tmp_path, b"#" * ((4 << 20) + 1))


def test_a_missing_file_and_a_folder_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ProfileInvalid, match=r"none\.yaml: no such file; `mlx-autotune run` writes one"):
        Profile.read(tmp_path / "none.yaml")
    with pytest.raises(ProfileInvalid, match="is no regular file"):
        Profile.read(tmp_path)
