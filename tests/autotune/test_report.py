"""`mlx-autotune report`: the page says what the journal and the profile say, and nothing in them can break it."""

from __future__ import annotations

import errno
import json
import os
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from report_cases import Reader, edited, pictures, study, threads_matter
from tuner_fakes import hill

from autotune.cli import main
from autotune.journal import Journal
from autotune.report import facts_of, page, read_study
from autotune.result import Status
from autotune.testing import out_of_memory
from streaming_core.profile import Entry
from streaming_core.settings import Settings

pytestmark = pytest.mark.usefixtures("elsewhere")
HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>\u202e\x00]]>"


def entry(**evidence: Any) -> Entry:
    return Entry(fingerprint="abc", settings=Settings(), evidence=evidence)


def reported(*words: str) -> str:
    assert main(["report", *words, "--output", "page.html", "--quiet"]) == 0
    return Path("page.html").read_text(encoding="utf-8")


def test_a_proven_study_is_told_from_its_journal_as_the_tuner_told_it(tmp_path: Path) -> None:
    folder, result = study(tmp_path, trials=24)
    assert result.status is Status.PROVEN and result.tuned is not None and result.interval is not None
    facts = facts_of(read_study(folder), None, None)
    assert facts["verdict"]["status"] == "proven"
    assert facts["verdict"]["reason"] == result.reason
    expected = [result.interval.low, result.interval.middle, result.interval.high]
    assert facts["verdict"]["interval"] == pytest.approx(expected, rel=1e-3)
    assert facts["changes"] == {key: str(value) for key, value in result.tuned.changes.items()}
    pairs = [each["samples"] for each in facts["sides"]["winner"]["rounds"] if each["round"].startswith("pair")]
    assert pairs == [pytest.approx(each, rel=1e-4) for each in result.tuned.samples]
    text = page(facts)
    assert "Faster, and proven" in text and result.reason in text


def test_without_anything_faster_the_default_is_kept_and_a_rival_is_shown(tmp_path: Path) -> None:
    folder, result = study(tmp_path, lambda settings: 10.0, noise=0.03)
    assert result.status is Status.DEFAULT_KEPT
    facts = facts_of(read_study(folder), entry(**result.evidence()), Path("p.yaml"))
    assert facts["verdict"]["reason"] == result.reason
    words = Reader(page(facts)).words
    assert "The default is kept" in words and "Default against rival" in words and "winner" not in words


@pytest.mark.parametrize("seed", range(3))
def test_the_knobs_that_matter_come_first_with_what_they_are_worth(tmp_path: Path, seed: int) -> None:
    folder, _ = study(tmp_path, hill, trials=40, seed=seed)
    facts = facts_of(read_study(folder), None, None)
    rows = facts["importance"]["knobs"]
    ratios = {each["knob"]: each["ratio"] for each in rows}
    assert list(ratios)[:2] == ["reading.threads", "residency.slots"]
    assert ratios["reading.page_cache"] == pytest.approx(1 / 0.9, rel=0.05)
    options = facts["slices"][0]["options"]
    assert facts["slices"][0]["knob"] == "reading.threads"
    assert [each["value"] for each in options] == sorted((each["value"] for each in options), key=int)


def test_with_few_trials_importance_is_not_told(tmp_path: Path) -> None:
    folder, _ = study(tmp_path, trials=6)
    facts = facts_of(read_study(folder), None, None)
    assert facts["importance"]["knobs"] == []
    assert "Not told: 6 of the 20 trials" in page(facts)


def test_every_failed_trial_is_a_cross(tmp_path: Path) -> None:
    def speed(settings: Settings) -> Any:
        return out_of_memory() if settings.reading.threads > 4 else threads_matter(settings)

    folder, result = study(tmp_path, speed, trials=24)
    failed = [each for each in result.trials if each.kind == "infeasible"]
    text = page(facts_of(read_study(folder), None, None))
    wide = next(each for each in pictures(text) if 'id="history980-t"' in each)
    assert len(failed) > 0
    assert wide.count("failed cross") == len(failed)


def test_the_best_so_far_never_falls_and_counts_only_what_is_allowed(tmp_path: Path) -> None:
    folder, _ = study(tmp_path, trials=24, noise=0.05)
    rows = facts_of(read_study(folder), None, None)["trials"]
    best = [each["best_tps"] for each in rows]
    assert best == sorted(best)
    allowed = [each["tps"] for each in rows if each["purpose"] in ("default", "rank", "search") and not each["broken"]]
    assert best[-1] == max(allowed)


def test_a_token_s_time_adds_up(tmp_path: Path) -> None:
    folder, _ = study(tmp_path, trials=24)
    facts = facts_of(read_study(folder), None, None)
    for side in facts["sides"].values():
        assert 0 < side["wait_s"] < side["token_s"] == pytest.approx(1 / side["decode_tps"], rel=0.05)
    assert facts["compute_s"] > 0


def test_what_only_the_profile_knows_is_shown(tmp_path: Path) -> None:
    folder, result = study(tmp_path, trials=8)
    curve = [
        {"budget_bytes": n << 28, "decode_tps": 10.0 * n, "default_tps": 9.0, "status": "proven"} for n in (1, 2, 4)
    ]
    evidence = {**result.evidence(), "curve": curve, "versions": {"mlx": "9.9"}}
    evidence["search"] = {**evidence["search"], "dead": {"reading.reader": "nothing reads it here"}}
    words = " ".join(Reader(page(facts_of(read_study(folder), entry(**evidence), Path("p.yaml")))).words)
    for expected in ("Budgets against speed", "512MiB", "nothing reads it here", "9.9"):
        assert expected in words


def test_a_profile_whose_evidence_was_written_by_hand_does_no_harm(tmp_path: Path) -> None:
    folder, _ = study(tmp_path, trials=6)
    odd = entry(
        reason="x", interval={"low": "?"}, needed_gain=None, curve=[1, {"budget_bytes": -1}], search=7, versions=[1]
    )
    assert Reader(page(facts_of(read_study(folder), odd, Path("p.yaml")))).balanced


def test_every_picture_is_well_formed_and_described_and_all_names_are_unique(tmp_path: Path) -> None:
    folder, _ = study(tmp_path, trials=30, crashes=0.1)
    text = page(facts_of(read_study(folder), None, None))
    for each in pictures(text):
        root = ET.fromstring(each)
        if root.get("aria-hidden") is None:
            assert root.findtext("title") and root.findtext("desc")
    reader = Reader(text)
    names = [value for key, value in reader.attributes if key == "id"]
    pointed = [name for key, value in reader.attributes if key == "aria-labelledby" for name in value.split()]
    assert len(names) == len(set(names)) and set(pointed) == set(names)
    assert reader.balanced and "nan" not in text.lower().split() and len(text) < 1_000_000


def test_nothing_on_the_page_is_fetched_or_run(tmp_path: Path) -> None:
    folder, _ = study(tmp_path)
    reader = Reader(page(facts_of(read_study(folder), None, None)))
    assert not {"script", "iframe", "img", "object", "embed", "base", "form"} & set(reader.tags)
    assert {value for key, value in reader.attributes if key in ("src", "href")} == {"data:,"}


def test_hostile_text_in_a_journal_stays_text(tmp_path: Path) -> None:
    folder, _ = study(tmp_path, trials=24, crashes=0.2, noise=0.03)

    def poison(number: int, line: dict[str, Any]) -> None:
        if number == 0:
            line["identity"].update(model=HOSTILE, hardware=HOSTILE, version=HOSTILE, workload=HOSTILE, fixed=[HOSTILE])
            line["identity"]["procedure"] = {HOSTILE: HOSTILE}
            return
        line["started_at"] = HOSTILE
        if "reason" in line["outcome"]:
            line["outcome"]["reason"] = HOSTILE
        if "effective" in line["outcome"]:
            line["outcome"]["effective"]["reading"]["reader"] = HOSTILE + str(number % 2)
            line["outcome"]["effective"]["residency"]["slots"] = HOSTILE + str(number % 3)

    edited(folder, poison)
    evidence = {"reason": HOSTILE, "status": HOSTILE, "versions": {HOSTILE: HOSTILE}, "conditions": {HOSTILE: HOSTILE}}
    evidence["search"] = {"dead": {HOSTILE: HOSTILE}}
    text = page(facts_of(read_study(folder), entry(**evidence), Path(HOSTILE)))
    reader = Reader(text)
    assert reader.balanced
    assert not {"script", "img"} & set(reader.tags)
    assert not [key for key, _ in reader.attributes if key.startswith("on")]
    assert "<script>alert(1)</script>" in " ".join(reader.words), "it is there to be read"
    assert "\u202e" not in text and "\x00" not in text
    for each in pictures(text):
        ET.fromstring(each)


def test_the_newest_study_of_a_model_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    older, _ = study(tmp_path, trials=5)
    newer, _ = study(tmp_path, trials=5, seed=1, repeats=2)
    os.utime(older / "trials.jsonl", (1, 1))
    assert main(["report", "--model", "owner/demo", "--cache-dir", str(tmp_path), "--quiet"]) == 0
    assert capsys.readouterr().out == f"report-{newer.name}.html\n"
    assert "owner/demo" in Path(f"report-{newer.name}.html").read_text()
    assert older.name in reported(older.name, "--cache-dir", str(tmp_path))
    assert older.name in reported(str(older))


def test_json_gives_what_the_page_is_made_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, result = study(tmp_path)
    assert main(["report", str(folder), "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[-1]["event"] == "result"
    assert len(lines[-1]["trials"]) == len(result.trials)
    assert Path(lines[-1]["path"]).exists()


def test_a_profile_of_another_study_is_not_taken_for_this_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], machine: Any
) -> None:
    from streaming_core.profile import Profile

    folder, result = study(tmp_path)
    evidence = {**result.evidence(), "reason": "told by the profile"}
    Profile(hardware=machine.hardware(), entries={"owner/demo": entry(**evidence)}).write("p.yaml")
    assert "Told by the profile" in reported(str(folder), "--profile", "p.yaml")
    evidence["search"] = {**evidence["search"], "study": "another"}
    Profile(hardware=machine.hardware(), entries={"owner/demo": entry(**evidence)}).write("p.yaml")
    capsys.readouterr()
    assert "Told by the profile" not in reported(str(folder), "--profile", "p.yaml")


def test_a_run_at_work_is_not_disturbed(tmp_path: Path) -> None:
    folder, _ = study(tmp_path)
    with Journal(folder):
        with open(folder / "trials.jsonl", "ab") as file:
            file.write(b'{"half a tri')
        before = (folder / "trials.jsonl").read_bytes()
        assert "Search history" in reported(str(folder))
        assert (folder / "trials.jsonl").read_bytes() == before


REFUSED = {
    "nothing named": ([], "name a study"),
    "both named": (["x", "--model", "demo"], "not both"),
    "no such study": (["nowhere"], "no such study"),
    "no study of the model": (["--model", "qwen3-next"], "no study of qwen3-next"),
    "not a page": (["STUDY", "--output", "x.pdf"], "a .html file is expected"),
    "no profile": (["STUDY", "--profile", "gone.yaml"], "gone.yaml"),
    "a folder in the way": (["STUDY", "--output", "taken.html"], "cannot be written"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_requests_are_one_line_and_write_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    folder, _ = study(tmp_path, trials=3)
    Path("taken.html").mkdir()
    words, expected = REFUSED[name]
    before = sorted(os.listdir())
    given = [str(folder) if word == "STUDY" else word for word in words]
    assert main(["report", *given, "--cache-dir", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert expected in said and said.count("\n") == 1
    assert sorted(os.listdir()) == before


DAMAGE = {
    "not json": lambda path: path.write_text("hello\n"),
    "empty": lambda path: path.write_text(""),
    "a number that is none": lambda path: path.write_text(path.read_text().replace('"hits": 0', '"hits": "many"')),
    "a setting that is none": lambda path: path.write_text(path.read_text().replace('"policy": "lru"', '"policy": 3')),
    "no objective": lambda path: path.write_text(path.read_text().replace('"decode"', '"speed"', 1)),
    "nothing measured": lambda path: path.write_text(path.read_text().splitlines()[0] + "\n"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_or_empty_journal_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    folder, _ = study(tmp_path, trials=3)
    DAMAGE[name](folder / "trials.jsonl")
    assert main(["report", str(folder), "--output", "page.html"]) == 2
    said = capsys.readouterr().err
    assert folder.name in said and said.count("\n") == 1
    assert not Path("page.html").exists()


def test_a_full_disk_leaves_the_earlier_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = study(tmp_path, trials=3)
    Path("page.html").write_text("earlier")

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert main(["report", str(folder), "--output", "page.html"]) == 2
    assert "no room" in capsys.readouterr().err
    assert Path("page.html").read_text() == "earlier" and not [each for each in os.listdir() if "tmp" in each]
