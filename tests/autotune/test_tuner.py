from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from tuner_fakes import hill, tuned, workload

from autotune.errors import RequestInvalid, WorkerFailed
from autotune.events import Notice, PhaseStarted, ResultReady, TuneEvent, event_to_json
from autotune.probe import DiskRow, ceiling_of
from autotune.result import Status
from autotune.testing import FakeRunner, Weather, hang, killed, out_of_memory
from autotune.trial import Measured, Outcome, TrialSpec
from streaming_core.layer_set import LayerSet
from streaming_core.profile import Entry
from streaming_core.settings import Settings

QUIET = Weather(noise=0.01)


def test_a_better_setting_is_found_proven_and_carries_its_evidence(tmp_path: Path) -> None:
    result = tuned(tmp_path, FakeRunner(hill, QUIET))
    assert result.status is Status.PROVEN
    assert hill(result.settings) > 1.3 * hill(Settings())
    true_gain = hill(result.settings) / hill(Settings().with_values({"residency.slots": 21}))
    assert result.interval is not None
    assert 0.97 * true_gain < result.interval.low < result.interval.high < 1.03 * true_gain
    assert result.tuned is not None and result.tuned.decode_tps > result.default.decode_tps
    assert len(result.tuned.samples) == len(result.default.samples) == 8
    assert result.search["trials"] == len(result.trials)
    assert result.workload["hash"]


def test_the_budget_of_the_day_is_not_written_into_the_settings(tmp_path: Path) -> None:
    result = tuned(tmp_path, FakeRunner(hill, QUIET), trials=6)
    assert result.settings.memory.budget is None
    named = tuned(tmp_path, FakeRunner(hill, QUIET), trials=6, base=Settings().with_values({"memory.budget": "2GiB"}))
    assert named.settings.memory.budget == 2 << 30


@pytest.mark.parametrize("seed", [3])
def test_where_nothing_matters_the_default_is_kept(tmp_path: Path, seed: int) -> None:
    runner = FakeRunner(lambda settings: 10.0, Weather(noise=0.05, outliers=0.04, drift=0.1), seed=seed)
    result = tuned(tmp_path, runner, seed=seed)
    assert result.status is Status.DEFAULT_KEPT
    assert result.settings == Settings()
    assert result.reason.startswith("the default is kept: ")


def test_a_winner_that_delays_its_slowest_tokens_is_refused(tmp_path: Path) -> None:
    class Jerky(FakeRunner):
        def run(self, spec, on_stage=lambda stage: None):  # type: ignore[no-untyped-def]
            outcome = FakeRunner.run(self, spec, on_stage)
            factor = 4.0 if spec.settings["reading"]["threads"] > 4 else 1.0
            return type(outcome)(
                **{name: getattr(outcome, name) for name in outcome.__slots__ if name != "token_p99_s"},
                token_p99_s=outcome.token_p99_s * factor,
            )

    result = tuned(tmp_path, Jerky(hill, QUIET))
    assert result.status is Status.DEFAULT_KEPT
    assert "slowest tokens" in result.reason


def test_a_winner_over_the_budget_is_refused(tmp_path: Path) -> None:
    greedy = FakeRunner(
        hill, QUIET, needed_bytes=lambda settings: (1 << 29) + (settings.reading.threads > 4) * (1 << 30)
    )
    result = tuned(tmp_path, greedy)
    assert result.settings.reading.threads <= 4


def test_interrupted_in_the_search_gives_the_best_so_far_and_says_so(tmp_path: Path) -> None:
    result = tuned(tmp_path, FakeRunner(hill, QUIET, interrupt_at=15))
    assert result.status is Status.INTERRUPTED
    assert hill(result.settings) > hill(Settings())
    assert "not proven" in result.reason
    assert result.interval is None


def test_interrupted_before_anything_was_better_gives_the_default(tmp_path: Path) -> None:
    result = tuned(tmp_path, FakeRunner(hill, QUIET, interrupt_at=2))
    assert result.status is Status.INTERRUPTED
    assert result.settings == Settings()


def test_interrupted_before_the_default_was_measured_gives_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        tuned(tmp_path, FakeRunner(hill, QUIET, interrupt_at=0))


def test_an_interrupted_run_is_carried_on(tmp_path: Path) -> None:
    tuned(tmp_path, FakeRunner(hill, QUIET, interrupt_at=12))
    events: list[TuneEvent] = []
    again = FakeRunner(hill, QUIET, seed=9)
    result = tuned(tmp_path, again, events)
    assert result.status is Status.PROVEN
    assert any(isinstance(event, Notice) and "12 trials of an earlier run" in event.text for event in events)
    assert len(again.specs) < len(result.trials)


def test_fresh_sets_the_earlier_trials_aside(tmp_path: Path) -> None:
    tuned(tmp_path, FakeRunner(hill, QUIET, interrupt_at=5))
    result = tuned(tmp_path, FakeRunner(hill, QUIET, interrupt_at=5), fresh=True)
    assert len(result.trials) == 5
    assert len(list((tmp_path / "studies").glob("*.old-1"))) == 1


def test_time_is_kept_race_included(tmp_path: Path) -> None:
    runner = FakeRunner(hill, QUIET, trial_s=10.0)
    result = tuned(tmp_path, runner, trials=None, time_s=600.0)
    assert runner.now <= 600.0
    assert result.status is Status.PROVEN


def test_one_trial_measures_the_default_and_keeps_it(tmp_path: Path) -> None:
    runner = FakeRunner(hill, QUIET)
    result = tuned(tmp_path, runner, trials=1)
    assert len(runner.specs) == 1
    assert result.status is Status.DEFAULT_KEPT


@pytest.mark.parametrize("wrong", [{"trials": 0}, {"trials": None}, {"time_s": -1.0}, {"time_s": math.nan}])
def test_a_request_without_sense_is_refused_before_anything_runs(tmp_path: Path, wrong: dict[str, object]) -> None:
    runner = FakeRunner(hill)
    with pytest.raises(RequestInvalid):
        tuned(tmp_path, runner, **wrong)
    assert not runner.specs


def test_a_default_that_crashes_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(WorkerFailed, match="SIGKILL"):
        tuned(tmp_path, FakeRunner(lambda settings: killed()))


def test_whatever_goes_wrong_in_a_trial_is_written_down_and_the_search_goes_on(tmp_path: Path) -> None:
    def speed(settings: Settings) -> float | Outcome:
        if settings.residency.policy != "lru":
            return out_of_memory()
        match settings.reading.threads:
            case 1 | 2:
                return hang()
            case 8:
                return killed()
        return hill(settings)

    def needed(settings: Settings) -> int:  # the budget is a GiB
        return (2 << 30) if settings.reading.page_cache == "bypass" else (1 << 29)

    result = tuned(tmp_path, FakeRunner(speed, QUIET, needed_bytes=needed), trials=40)
    kinds = {row.kind for row in result.trials}
    assert kinds == {"measured", "crashed", "timed_out", "infeasible"}
    assert any(row.changes.get("reading.page_cache") == "bypass" for row in result.trials)
    assert result.status is Status.PROVEN
    assert result.settings.reading.threads not in (2, 8) and result.settings.reading.page_cache != "bypass"


def test_fixed_settings_are_left_alone(tmp_path: Path) -> None:
    base = Settings().with_values({"reading.threads": 2})
    runner = FakeRunner(hill, QUIET)
    tuned(tmp_path, runner, base=base, fixed=frozenset({"reading.threads"}), trials=10)
    assert {spec.settings["reading"]["threads"] for spec in runner.specs} == {2}


def test_layers_that_were_waited_for_longest_become_resident_first(tmp_path: Path) -> None:
    runner = FakeRunner(lambda settings: 30.0 if settings.residency.resident_layers not in ("none", "auto") else 10.0)
    result = tuned(tmp_path, runner)
    chosen = result.settings.residency.resident_layers
    assert isinstance(chosen, str)
    named = LayerSet.parse(chosen)
    ranking = [3, 2, 1, *range(4, 13)]  # the fake waits for layers 0 to 3, the longer the higher
    resident = [layer for layer in ranking if layer in named]
    assert resident == ranking[: len(resident)]


def test_evidence_fits_into_a_profile_and_events_into_json(tmp_path: Path) -> None:
    events: list[TuneEvent] = []
    result = tuned(tmp_path, FakeRunner(hill, QUIET), events, trials=14)
    Entry(fingerprint="abc", settings=result.settings, evidence=result.evidence())
    for event in events:
        json.dumps(event_to_json(event))
    phases = [event.phase for event in events if isinstance(event, PhaseStarted)]
    assert phases == ["probe", "default", "search", "race", "verdict"]
    assert isinstance(events[-1], ResultReady)


def test_ceiling_adds_the_time_of_the_missed_bytes_to_that_of_the_computation() -> None:
    runner = FakeRunner(lambda settings: 10.0, Weather(noise=0.0))
    measured = runner.run(
        TrialSpec(model="m", settings=Settings().to_mapping(), workload=workload(), cache_dir=Path("unused"))
    )
    assert isinstance(measured, Measured)
    compute_s = 0.1 - measured.counters.wait_s / measured.counters.tokens
    rows = [DiskRow(4096, 1, "bypass", 1 << 20, 1.0, 10), DiskRow(4096, 4, "bypass", 2 << 20, 1.0, 10)]
    ceiling = ceiling_of([measured], rows)
    assert ceiling is not None
    assert ceiling.tps == pytest.approx(1 / (compute_s + 1024 / (2 << 20)))
    assert ceiling_of([measured], []) is None


def test_a_short_time_still_tries_a_candidate_and_races_it(tmp_path: Path) -> None:
    runner = FakeRunner(lambda settings: 10.0 if settings == first else 20.0, QUIET, trial_s=10.0)
    first = Settings().with_values({"memory.budget": 1 << 30})
    result = tuned(tmp_path, runner, trials=None, time_s=115.0)
    assert result.status is Status.PROVEN
    assert runner.now <= 115.0


def test_a_time_too_short_to_try_anything_says_how_much_is_needed(tmp_path: Path) -> None:
    runner = FakeRunner(hill, QUIET, trial_s=10.0)
    result = tuned(tmp_path, runner, trials=None, time_s=25.0)
    assert len(runner.specs) == 2
    assert result.status is Status.DEFAULT_KEPT
    assert "the time was too short to try anything: about 10 s a trial, at least 132 s needed" in result.reason


def test_a_rerun_of_a_short_run_goes_on_and_measures_the_default_once_more(tmp_path: Path) -> None:
    tuned(tmp_path, FakeRunner(hill, QUIET, trial_s=10.0), trials=None, time_s=25.0)
    again = FakeRunner(hill, QUIET, trial_s=10.0)
    result = tuned(tmp_path, again, trials=None, time_s=25.0)
    assert [row.purpose for row in result.trials] == ["default", "default", "default", "search"]
    assert again.specs[0].settings == Settings().with_values({"memory.budget": 1 << 30}).to_mapping()


def test_a_ceiling_is_never_below_what_was_measured_and_takes_its_computation_from_the_resident_model() -> None:
    spec = TrialSpec(model="m", settings=Settings().to_mapping(), workload=workload(), cache_dir=Path("unused"))
    fast = FakeRunner(lambda settings: 10.0, Weather(noise=0.0)).run(spec)
    slow = FakeRunner(lambda settings: 5.0, Weather(noise=0.0)).run(spec)
    assert isinstance(fast, Measured) and isinstance(slow, Measured)
    rows = [DiskRow(4096, 1, "bypass", 1 << 20, 1.0, 10)]
    raised = ceiling_of([fast], rows, [slow])
    assert raised is not None and raised.raised and raised.tps == pytest.approx(fast.decode_tps)
    assert raised.compute == "measured" and raised.compute_s == pytest.approx(0.2, rel=0.1)
