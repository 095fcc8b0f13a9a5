"""Knobs that do nothing here are named, and searched no further."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from tuner_fakes import space, tuned

from autotune.dead import dead_knobs
from autotune.events import Notice, TuneEvent
from autotune.journal import Purpose, Record
from autotune.testing import FakeRunner, Weather
from autotune.trial import Counters, Measured
from streaming_core.settings import Settings

THREADS = "reading.threads"
POLICY = "residency.policy"


def trial(asked: dict[str, object], in_force: dict[str, object] | None = None, unread: tuple[str, ...] = ()) -> Record:
    settings = Settings().with_values(asked)
    outcome = Measured(
        samples=(1.0,), prefill_s=(1.0,), prompt_tokens=1, token_p50_s=1.0, token_p99_s=1.0, load_s=1.0,
        base_rss_bytes=1, peak_rss_bytes=1, mlx_peak_bytes=1, needed_bytes=1, tokens_hash="x",
        effective=settings.with_values(in_force or {}).to_mapping(), unread=unread, counters=Counters(),
    )  # fmt: skip
    return Record(
        purpose=Purpose.SEARCH,
        params={},
        settings=settings.to_mapping(),
        outcome=outcome,
        started_at="",
        duration_s=1.0,
    )


def test_a_knob_that_is_clamped_to_one_value_is_dead_and_the_reason_names_the_value() -> None:
    records = [trial({}), trial({THREADS: 8}, {THREADS: 4}), trial({THREADS: 16}, {THREADS: 4})]
    assert dead_knobs(space(), records) == {THREADS: "it is 4 here, whatever is asked for"}


def test_a_knob_that_nobody_reads_is_dead_until_a_trial_reads_it() -> None:
    records = [trial({}, unread=(POLICY,)), trial({POLICY: "lfu"}, unread=(POLICY,))]
    assert dead_knobs(space(), records) == {POLICY: "nothing reads it here"}
    read = [trial({"residency.slots": 4}), trial({"residency.slots": 4, POLICY: "lfu"})]
    assert dead_knobs(space(), [*records, *read]) == {}


@pytest.mark.parametrize(
    "records",
    [
        [trial({}), trial({})],  # never moved
        [trial({}), trial({THREADS: 8})],  # does something
        [trial({}, unread=(THREADS,)), trial({THREADS: 8})],  # read where it was moved
        [trial({}, unread=(THREADS,)), trial({THREADS: 8}, {THREADS: 2})],  # clamped, but tried once only
    ],
)
def test_a_knob_of_which_too_little_is_known_or_that_does_something_stays(records: list[Record]) -> None:
    assert dead_knobs(space(), records) == {}


def test_a_kernel_that_is_refused_whatever_its_largest_call_is_dead() -> None:
    kernels = space(backend="metal", kernels=("fused",))
    on = {"kernels.fused": "on"}
    off = {"kernels.fused": "off"}
    key = "kernels.fused_max_seq"
    assert dead_knobs(kernels, [trial({}, unread=(key,)), trial(on, off, unread=(key,))]).keys() == {key}
    assert dead_knobs(kernels, [trial({}, unread=(key,)), trial(on)]) == {}


def test_old_trials_without_effective_settings_say_nothing() -> None:
    record = trial({THREADS: 8})
    assert isinstance(record.outcome, Measured)
    silent = replace(record, outcome=replace(record.outcome, effective={}))
    assert dead_knobs(space(), [silent, silent]) == {}


def slots_only(settings: Settings) -> float:
    """What a machine does on which neither threads nor policy matter."""
    slots = settings.residency.slots if isinstance(settings.residency.slots, int) else 21
    return 20.0 * math.exp(-0.004 * (slots - 10) ** 2)


def planted(seed: int = 0) -> FakeRunner:
    return FakeRunner(
        slots_only,
        Weather(noise=0.05),
        seed=seed,
        in_force=lambda settings: settings.with_values({THREADS: 4}),
        unread=lambda settings: (POLICY,),
    )


@pytest.mark.parametrize("seed", range(3))
def test_a_planted_dead_knob_is_named_tried_little_and_never_credited(tmp_path: Path, seed: int) -> None:
    events: list[TuneEvent] = []
    runner = planted(seed)
    result = tuned(tmp_path, runner, events, trials=40, seed=seed)
    dead = result.search["dead"]
    assert dead == {THREADS: "it is 4 here, whatever is asked for", POLICY: "nothing reads it here"}
    said = [event.text for event in events if isinstance(event, Notice)]
    assert {f"{name} is searched no further: {reason}" for name, reason in dead.items()} <= set(said)
    assert result.settings.changes_from(Settings()).keys().isdisjoint(dead)
    moved = [spec.settings for spec in runner.specs if spec.settings["reading"]["threads"] != 4]
    assert len(moved) == 1, "one trial shows it"


def test_a_study_that_is_carried_on_knows_its_dead_knobs(tmp_path: Path) -> None:
    tuned(tmp_path, planted(), trials=30)
    runner, events = planted(), list[TuneEvent]()
    result = tuned(tmp_path, runner, events, trials=34)
    assert result.search["dead"].keys() == {THREADS, POLICY}
    assert all(spec.settings["reading"]["threads"] == 4 for spec in runner.specs)
    assert all(spec.settings["residency"]["policy"] == "lru" for spec in runner.specs)
