from __future__ import annotations

from pathlib import Path

import pytest
from tuner_fakes import Workbench, hill, space, workbench

from autotune.errors import StudyInvalid, WorkerFailed
from autotune.events import BestChanged, NoiseMeasured
from autotune.journal import Purpose
from autotune.knobs import Params
from autotune.proposals import Proposals
from autotune.search import Search, SearchPlan
from autotune.testing import FakeRunner, Weather, hang, killed, out_of_memory
from autotune.trial import Crashed, Infeasible, Outcome, TimedOut
from streaming_core.settings import Settings

QUIET = Weather(noise=0.01)


def search(bench: Workbench, plan: SearchPlan, priors: list[Params] | None = None) -> tuple[Search, str]:
    found = Search(bench.space, bench.history, bench.measurer, bench.judge, plan, bench.events.append)
    found.measure_default()
    proposals = Proposals.open(bench.journal.folder, bench.space, bench.journal.records, bench.judge, seed=plan.seed)
    return found, found.run(proposals, priors or [])


def best(bench: Workbench) -> Settings:
    return bench.history.ranked(bench.judge)[0].settings


def test_search_finds_an_optimum_inside_the_space(tmp_path: Path) -> None:
    bench = workbench(tmp_path, FakeRunner(hill, QUIET))
    search(bench, SearchPlan(trials=32))
    assert hill(best(bench)) > 0.9 * 20.0 > 1.3 * hill(Settings())


def test_default_comes_first_and_twice_and_gives_the_noise(tmp_path: Path) -> None:
    bench = workbench(tmp_path, FakeRunner(hill, QUIET))
    search(bench, SearchPlan(trials=6))
    assert [record.purpose for record in bench.journal.records[:3]] == [
        Purpose.DEFAULT,
        Purpose.DEFAULT,
        Purpose.SEARCH,
    ]
    assert bench.runner.specs[0].settings == Settings().to_mapping()
    noise = next(event for event in bench.events if isinstance(event, NoiseMeasured))
    assert 0.0 < noise.sigma < 0.05
    assert noise.credible_gain >= 0.03


@pytest.mark.parametrize("failure", [out_of_memory(), killed(), hang()])
def test_a_region_that_fails_costs_trials_and_nothing_else(
    tmp_path: Path, failure: Infeasible | Crashed | TimedOut
) -> None:
    def speed(settings: Settings) -> float | Outcome:
        return failure if settings.reading.threads > 8 else hill(settings)

    bench = workbench(tmp_path, FakeRunner(speed, QUIET))
    search(bench, SearchPlan(trials=20, seed=1))
    failed = [config for config in bench.history if config.outcomes and not config.measured]
    assert failed
    assert best(bench).reading.threads == 8
    assert len(failed) < 9


def test_settings_that_change_the_tokens_never_win(tmp_path: Path) -> None:
    runner = FakeRunner(hill, QUIET, tokens_hash=lambda settings: str(settings.reading.threads > 4))
    bench = workbench(tmp_path, runner)
    search(bench, SearchPlan(trials=16))
    assert best(bench).reading.threads <= 4


def test_settings_that_delay_the_first_token_too_much_never_win(tmp_path: Path) -> None:
    runner = FakeRunner(hill, QUIET, first_token_s=lambda settings: 0.1 * settings.reading.threads)
    bench = workbench(tmp_path, runner)
    search(bench, SearchPlan(trials=16))
    assert best(bench).reading.threads <= 5


def test_a_default_that_does_not_run_is_one_clear_error(tmp_path: Path) -> None:
    bench = workbench(tmp_path, FakeRunner(lambda settings: killed()))
    with pytest.raises(WorkerFailed, match="the default settings do not run: the worker ended with SIGKILL"):
        search(bench, SearchPlan(trials=5))


def test_search_ends_with_the_trials_or_the_time(tmp_path: Path) -> None:
    bench = workbench(tmp_path / "a", FakeRunner(hill))
    assert search(bench, SearchPlan(trials=9))[1] == "all 9 trials were run"
    assert len(bench.journal.records) == 9
    bench = workbench(tmp_path / "b", FakeRunner(hill, trial_s=10.0))
    assert "time" in search(bench, SearchPlan(deadline=105.0))[1]
    assert bench.runner.now <= 105.0


def test_a_space_of_few_points_is_left_when_all_are_known(tmp_path: Path) -> None:
    tiny = space(fits=lambda settings: True)  # all resident: only the number of resident layers is left
    few = type(tiny)(tiny.base, tiny.facts, tuple(knob for knob in tiny.knobs if knob.name == "reading.page_cache"))
    bench = workbench(tmp_path, FakeRunner(lambda settings: 10.0), few)
    reason = search(bench, SearchPlan(trials=200, patience=100))[1]
    assert reason == "every setting near the best one is known"
    assert len(bench.journal.records) < 12


@pytest.mark.parametrize("seed", range(3))
def test_search_where_nothing_matters_ends_long_before_its_trials(tmp_path: Path, seed: int) -> None:
    bench = workbench(tmp_path, FakeRunner(lambda settings: 10.0, Weather(noise=0.03), seed=seed))
    reason = search(bench, SearchPlan(trials=80, patience=20, seed=seed))[1]
    assert reason == "nothing better in 20 proposals of the model"
    assert len(bench.journal.records) < 60


def test_nothing_to_search_is_said(tmp_path: Path) -> None:
    none = space()
    bench = workbench(tmp_path, FakeRunner(hill), type(none)(none.base, none.facts, ()))
    assert search(bench, SearchPlan(trials=20))[1] == "no setting is left to search"


def test_priors_are_measured_right_after_the_default(tmp_path: Path) -> None:
    bench = workbench(tmp_path, FakeRunner(hill, QUIET))
    prior = bench.space.to_params(Settings().with_values({"reading.threads": 16}))
    search(bench, SearchPlan(trials=4), [prior])
    assert bench.runner.specs[2].settings["reading"]["threads"] == 16


def test_improvements_are_announced_in_rising_order(tmp_path: Path) -> None:
    bench = workbench(tmp_path, FakeRunner(hill, QUIET))
    search(bench, SearchPlan(trials=16))
    ratios = [event.ratio for event in bench.events if isinstance(event, BestChanged)]
    assert ratios == sorted(ratios)
    assert len(ratios) >= 2


def test_interrupted_search_keeps_what_it_found_and_is_carried_on(tmp_path: Path) -> None:
    bench = workbench(tmp_path, FakeRunner(hill, QUIET, interrupt_at=12))
    with pytest.raises(KeyboardInterrupt):
        search(bench, SearchPlan(trials=20))
    assert sum(len(config.outcomes) for config in bench.history) == 12
    bench.journal.close()

    again = workbench(tmp_path, FakeRunner(hill, QUIET, seed=5))
    assert len(again.journal.records) == 12
    for record in again.journal.records:
        config = again.history.config(again.space.canonical(record.params))
        again.history.add(config, record.outcome)
        if record.purpose is Purpose.DEFAULT:
            again.measurer.learn_default(record.outcome, record.duration_s)  # type: ignore[arg-type]
    search(again, SearchPlan(trials=20))
    assert len(again.journal.records) == 20
    assert len(again.runner.specs) == 8
    assert hill(best(again)) > 0.85 * 20.0


def test_database_is_rebuilt_from_the_journal_when_it_is_damaged(tmp_path: Path) -> None:
    bench = workbench(tmp_path, FakeRunner(hill, QUIET))
    search(bench, SearchPlan(trials=8))
    (tmp_path / "study.sqlite").write_bytes(b"not a database, but long enough to be read as one" * 40)
    proposals = Proposals.open(tmp_path, bench.space, bench.journal.records, bench.judge, seed=0)
    assert len(proposals._study.trials) == 8


def test_a_trial_that_was_running_when_the_process_died_is_closed(tmp_path: Path) -> None:
    bench = workbench(tmp_path, FakeRunner(hill, QUIET))
    search(bench, SearchPlan(trials=8))
    proposals = Proposals.open(tmp_path, bench.space, bench.journal.records, bench.judge, seed=0)
    proposals.ask()
    again = Proposals.open(tmp_path, bench.space, bench.journal.records, bench.judge, seed=0)
    states = [trial.state.name for trial in again._study.trials]
    assert states.count("FAIL") == 1
    assert "RUNNING" not in states


def test_a_database_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    bench = workbench(tmp_path, FakeRunner(hill, QUIET))
    (bench.journal.folder / "study.sqlite").mkdir()
    with pytest.raises(StudyInvalid, match=r"study\.sqlite: .*the trials so far are kept") as caught:
        search(bench, SearchPlan(trials=6))
    assert "\n" not in str(caught.value)
