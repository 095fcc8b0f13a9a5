from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import main
from autotune.traced import GuessCost, TokenTime
from streaming_core.testing.published import NEXT_LAYER, interpolated, recall_curve
from streaming_core.trace import LayerStats, Stats, added


def traced(tiny: Path, cache: Path, capsys: pytest.CaptureFixture[str], *more: str, tokens: int = 12) -> dict[str, Any]:
    words = ["trace", "--model", str(tiny), "--cache-dir", str(cache), "--profile", "none", "--json", "--prompts", "2"]
    assert main([*words, "--tokens", str(tokens), "--set", "residency.slots=6", *more]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


@pytest.mark.parametrize("backend", ["stage", "slots"])
def test_a_tokens_time_is_the_sum_of_its_parts_and_the_layers_are_within_it(
    tiny: Path, shared_cache: Path, capsys: pytest.CaptureFixture[str], backend: str
) -> None:
    guesses = ("--set", "predict.kind=gate_input", "--set", f"prefetch.backend={backend}")
    found = traced(tiny, shared_cache, capsys, *guesses)
    token = found["token"]
    assert found["tokens"] == found["passes"] == 2 * 12
    assert token["token_s"] == pytest.approx(token["compute_s"] + token["host_s"] + token["wait_s"])
    layers = sum(row["sync_s"] + row["host_s"] + row["wait_s"] for row in found["layers"]) / 24
    assert 0 < layers < token["token_s"]
    assert all(row["sync_s"] > 0 and row["host_s"] > 0 for row in found["layers"])
    assert sum(row["sync_s"] for row in found["layers"]) == pytest.approx(found["sync_s"])
    row = found["layers"][2]
    assert 0 < row["window_min_s"] <= row["window_s"]
    for reads in (row["demand_reads"], row["guess_reads"]):
        assert reads["tickets"] > 0 and reads["queue_mean_s"] <= reads["queue_max_s"]
        assert 0 < reads["read_mean_s"] <= reads["read_max_s"]
    read, rest = divmod(row["prefetch_bytes"], 36_864)
    assert rest == 0 and row["guesses_used"] <= read <= row["guessed"]
    assert row["wasted_bytes"] == (read - row["guesses_used"]) * 36_864
    assert found["wasted_bytes"] == sum(each["wasted_bytes"] for each in found["layers"])


def test_recall_is_not_known_beyond_the_width_of_the_guess(
    tiny: Path, shared_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    guesses = ("--set", "predict.kind=gate_input", "--set", "prefetch.backend=stage", "--set", "predict.mult=2")
    overall = traced(tiny, shared_cache, capsys, *guesses)["recall"]
    assert [at["width"] for at in overall] == [1.0, 1.5, 2.0, 3.0, 4.0]
    rates = [at["recall"] for at in overall]
    assert 0 < rates[0] <= rates[1] <= rates[2] < 1
    assert rates[3:] == [None, None]
    assert [at["published"] for at in overall][2] == 0.790


def test_guesses_alone_read_nothing_and_their_cost_is_measured_token_by_token(
    tiny: Path, shared_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--guess-only", "--set", "predict.kind=gate", "--set", "prefetch.backend=slots")
    found = traced(tiny, shared_cache, capsys, *words)
    assert (found["guessed"], found["prefetch_bytes"]) == (0, 0)
    assert found["guess_cost"]["tokens"] == 12
    assert found["guess_cost"]["added_s"] == found["guess_cost"]["with_s"] - found["guess_cost"]["without_s"]
    assert found["recall"][0]["recall"] > 0
    assert found["guess_cost"]["without_s"] > 0


def test_the_tables_say_what_their_columns_mean_and_in_what_unit(
    tiny: Path, shared_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["trace", "--model", str(tiny), "--cache-dir", str(shared_cache), "--profile", "none", "--prompts", "1"]
    guesses = ["--set", "predict.kind=gate", "--set", "prefetch.backend=stage", "--set", "residency.slots=6"]
    assert main([*words, "--tokens", "3", *guesses]) == 0
    lines = capsys.readouterr().out.splitlines()
    before = {line.split()[1]: lines[n - 1] for n, line in enumerate(lines) if line.startswith("layer ")}
    assert before["missed"].startswith("compute (") and "over 3 tokens; ms of a token:" in lines[0]
    assert "window: ms from guess to need" in before["guessed"]
    assert "reads in ms: in the queue" in before["demands"]


def test_what_guessing_adds_is_told_from_waiting_for_reads() -> None:
    silent = [TokenTime(0.010, 0.004, 0.005, 0.001), TokenTime(0.029, 0.004, 0.005, 0.020)]
    guessing = [TokenTime(0.022, 0.005, 0.007, 0.010), TokenTime(0.013, 0.005, 0.007, 0.001)]
    cost = GuessCost.of(guessing, silent)
    assert cost.added_s == pytest.approx(0.003)
    assert (cost.added_compute_s, cost.added_host_s) == (pytest.approx(0.001), pytest.approx(0.002))


def test_stretches_are_added_layer_by_layer() -> None:
    def stretch(misses: int, peak: int) -> Stats:
        row = LayerStats(layer=3, hits=1, misses=misses, demand_bytes=misses * 10, wait_s=0.5, sync_s=0.25)
        return Stats(1, 1, 1, misses, misses * 10, 0, 0, 0, 0.5, 1, peak, (row,), 0.25)

    whole = added([stretch(2, 7), stretch(3, 5)])
    assert (whole.tokens, whole.misses, whole.peak_bytes, whole.wait_s) == (2, 5, 7, 1.0)
    assert whole.layers == (LayerStats(3, 2, 5, 50, 1.0, sync_s=0.5),)


def test_published_curves_are_read_between_their_points_only() -> None:
    assert interpolated(NEXT_LAYER, 2.0) == 0.790
    assert interpolated(NEXT_LAYER, 1.0) == pytest.approx((0.403 + 0.571) / 2)
    assert interpolated(NEXT_LAYER, 0.5) is None
    assert recall_curve("frequency", 1) == ()
