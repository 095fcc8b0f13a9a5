"""`mlx-autotune bench`: both sides, and whether they said the same."""

from __future__ import annotations

import json

import pytest
from cli_cases import fake_runner
from tuner_fakes import hill

import autotune.commands.bench
import autotune.commands.tuning
from autotune.cli import main
from autotune.testing import FakeRunner, Weather
from autotune.trial import Engine

pytestmark = pytest.mark.usefixtures("elsewhere")


def test_bench_shows_resident_default_and_streamed_with_spread_and_ceiling(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = FakeRunner(lambda settings: 10.0 + settings.reading.threads)
    fake_runner(monkeypatch, runner, autotune.commands.bench)
    assert main(["bench", "--model", "tiny", "--rounds", "2"]) == 0
    out = capsys.readouterr().out
    for word in ("resident", "streamed", "spread", "prefill", "ceiling", "the same tokens everywhere"):
        assert word in out
    assert [spec.engine for spec in runner.specs].count(Engine.RESIDENT) == 2


def test_bench_fails_when_the_tokens_differ(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hashes = iter("abcd")
    fake_runner(monkeypatch, FakeRunner(hill, tokens_hash=lambda settings: next(hashes)), autotune.commands.bench)
    assert main(["bench", "--model", "tiny", "--rounds", "1", "--json"]) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["same_tokens"] is False


def test_bench_gives_the_default_the_memory_of_the_streamed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_runner(monkeypatch, FakeRunner(lambda settings: 10.0 + settings.reading.threads, Weather(noise=0.01)))
    words = ["run", "--model", "tiny", "--budget", "128MiB", "--trials", "20", "--output", "p.yaml"]
    assert main([*words, "--set", "residency.resident_layers=0"]) == 0
    runner = FakeRunner(lambda settings: 10.0)
    fake_runner(monkeypatch, runner, autotune.commands.bench)
    capsys.readouterr()
    assert main(["bench", "--model", "tiny", "--rounds", "1", "--profile", "p.yaml"]) == 0
    assert len(runner.specs) == 3
    assert {spec.settings["memory"]["budget"] for spec in runner.specs} == {"128MiB"}
    out, err = capsys.readouterr()
    assert "memory" in out and "ceiling of streamed (estimated)" in out
    assert sum(line.startswith("trial ") and line.endswith("tok/s") for line in err.splitlines()) == 3


def test_bench_as_json_has_a_default_also_when_that_is_what_is_streamed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_runner(monkeypatch, FakeRunner(lambda settings: 10.0), autotune.commands.bench)
    assert main(["bench", "--model", "tiny", "--rounds", "1", "--json", "--profile", "none"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["default"] == result["streamed"]


def test_bench_and_run_say_that_kernels_are_not_offered_here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--model", "tiny", "--set", "kernels.indexed=on"]
    for command in (autotune.commands.bench, autotune.commands.tuning):
        fake_runner(monkeypatch, FakeRunner(lambda settings: 10.0), command)
    assert main(["bench", *words, "--rounds", "1", "--profile", "none"]) == 0
    assert capsys.readouterr().err.count("kernels.indexed: kernels need Metal or CUDA") == 1
    assert main(["run", *words, "--trials", "1", "--output", "p.yaml"]) == 0
    assert capsys.readouterr().err.count("kernels.indexed: kernels need Metal or CUDA") == 1
