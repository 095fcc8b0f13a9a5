from __future__ import annotations

import pytest
from tuner_fakes import hill, tuned

from autotune.board import Board
from autotune.events import NoiseMeasured, TrialFinished, TuneEvent
from autotune.testing import FakeRunner, Weather
from autotune.wording import changes_text, event_text, gain_text, seconds_text, tps_text


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[TuneEvent]:
    heard: list[TuneEvent] = []
    tuned(tmp_path_factory.mktemp("study"), FakeRunner(hill, Weather(noise=0.01)), heard, trials=14)
    return heard


def test_board_shows_phase_trial_default_best_noise_and_time_left(events: list[TuneEvent]) -> None:
    board = Board()
    seen: list[list[str]] = [board.lines(0.0)]
    for number, event in enumerate(events):
        board.hear(event)
        seen.append(board.lines(float(number)))
    assert seen[0] == []
    text = "\n".join(line for lines in seen for line in lines)
    for word in ("default", "search", "race", "best", "noise", "left", "trial 3/"):
        assert word in text
    assert max(len(lines) for lines in seen) <= 6


def test_every_event_has_words_or_none(events: list[TuneEvent]) -> None:
    assert all("\n" not in event_text(event) for event in events)


def test_a_failure_is_said_with_its_reason() -> None:
    event = TrialFinished(3, "timed_out", None, None, "silent for 60 s", 60.0)
    assert event_text(event) == "trial 3: timed out: silent for 60 s"


def test_numbers_have_as_many_digits_as_they_deserve() -> None:
    assert [tps_text(value) for value in (123.4, 12.34, 1.234)] == ["123", "12.3", "1.23"]
    assert [seconds_text(value) for value in (0.0123, 12.34, 200.0, 9000.0)] == ["12.3 ms", "12.3 s", "3 min", "2.5 h"]
    assert [gain_text(value) for value in (1.234, 0.9, 20.0)] == ["+23.4%", "-10.0%", "20 times"]
    assert changes_text({"residency.slots": 4, "reading.threads": 8}) == "slots=4 threads=8"
    assert changes_text({}) == "default"


def test_noise_of_one_measurement_is_unknown() -> None:
    once = NoiseMeasured(0.0, 0.03, 1)
    assert "noise unknown" in event_text(once)
    assert "0.0" not in event_text(once)
