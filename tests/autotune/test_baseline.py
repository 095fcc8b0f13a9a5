from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tuner_fakes import hill, tuned

from autotune.baseline import Baseline, pair_of
from autotune.testing import FakeRunner
from streaming_core.errors import ProfileInvalid
from streaming_core.profile import Entry
from streaming_core.settings import Settings

FIXED = {"reading.page_cache": "bypass", "memory.mlx_cache": "32MiB", "predict.mult": 1.2345678}


def entry(**evidence: Any) -> Entry:
    return Entry(fingerprint="abc", settings=Settings(), evidence=evidence)


def no_budget(settings: Settings) -> int | None:
    raise AssertionError("today's budget was asked for")


def test_what_the_tuner_measured_as_default_is_what_its_evidence_reads_back_as(tmp_path: Path) -> None:
    runner = FakeRunner(hill)
    base = Settings().with_values(FIXED)
    result = tuned(tmp_path, runner, base=base, fixed=frozenset(FIXED))
    assert result.evidence()["fixed"] == FIXED
    written = Entry(fingerprint="abc", settings=result.settings, evidence=result.evidence())
    baseline = Baseline.read(Entry.from_mapping(written.to_mapping(), "x"), "x")
    pair = pair_of(result.settings, baseline, {}, no_budget)
    assert baseline.known
    assert pair.default.to_mapping() == runner.specs[0].settings
    assert pair.streamed.memory.budget == 1 << 30
    assert not pair.same


def test_an_entry_that_says_nothing_has_the_built_in_default_and_says_that() -> None:
    assert Baseline.read(entry(), "x") == Baseline(known=False)


@pytest.mark.parametrize(
    ("evidence", "message"),
    [
        ({"fixed": ["reading.threads"]}, "p.yaml: models.demo.evidence.fixed: must be a mapping"),
        ({"fixed": {"reading.thread": 4}}, "evidence.fixed: unknown key 'reading.thread'; did you mean"),
        ({"fixed": {"reading.threads": "four"}}, "evidence.fixed: reading.threads must be a whole number"),
        ({"fixed": {}, "budget_bytes": "1GiB"}, "evidence.budget_bytes: must be a whole number from 1"),
        ({"fixed": {}, "budget_bytes": True}, "evidence.budget_bytes: must be a whole number from 1"),
    ],
)
def test_evidence_that_is_wrong_is_refused_with_its_place(evidence: dict[str, Any], message: str) -> None:
    with pytest.raises(ProfileInvalid, match=r"^p\.yaml: models\.demo\.evidence") as caught:
        Baseline.read(entry(**evidence), "p.yaml: models.demo")
    assert message in str(caught.value)


def test_both_sides_have_the_budget_named_today_else_the_measured_one_else_that_of_now() -> None:
    baseline = Baseline(budget_bytes=3 << 30)
    named = {"memory.budget": "2GiB"}
    today = pair_of(Settings().with_values(named), baseline, named, no_budget)
    measured = pair_of(Settings(), baseline, {}, no_budget)
    now = pair_of(Settings(), Baseline(), {}, lambda settings: 1 << 30)
    reset = pair_of(Settings(), baseline, {"memory.budget": None}, lambda settings: 1 << 30)
    for pair, gib in ((today, 2), (measured, 3), (now, 1), (reset, 1)):
        assert pair.default.memory.budget == pair.streamed.memory.budget == gib << 30
        assert pair.same


def test_values_of_today_go_before_those_fixed_then() -> None:
    baseline = Baseline(default=Settings().with_values({"reading.threads": 8, "reading.page_cache": "bypass"}))
    values = {"reading.threads": 2}
    pair = pair_of(Settings().with_values(values), baseline, values, lambda settings: 1 << 30)
    assert pair.default.reading.threads == 2
    assert pair.default.reading.page_cache == "bypass"
