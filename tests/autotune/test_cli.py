from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tuner_fakes import hill

import autotune.commands.bench
import autotune.commands.run
from autotune.cli import main
from autotune.errors import RequestInvalid
from autotune.events import PhaseStarted, TrialProgressed
from autotune.options import duration_s
from autotune.screen import LiveScreen, make_screen
from autotune.testing import FakeRunner, Weather
from autotune.trial import Engine, Stage
from streaming_core.profile import Profile
from streaming_core.progress import Progress

COMMANDS = ("run", "bench", "generate", "show", "pack", "probe")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shared = tmp_path_factory.getbasetemp() / "cli-cache"  # one checkpoint for all tests
    monkeypatch.setenv("MLX_AUTOTUNE_CACHE_DIR", str(shared))
    monkeypatch.setattr("streaming_core.profile._find.default_folders", lambda: [tmp_path / "profiles"])


def fake_runner(monkeypatch: pytest.MonkeyPatch, runner: FakeRunner, command: Any = autotune.commands.run) -> None:
    class Runner:
        def __init__(self, environment: object) -> None: ...

        def __enter__(self) -> FakeRunner:
            return runner

        def __exit__(self, *_: object) -> None:
            runner.close()

    monkeypatch.setattr(command, "WorkerRunner", Runner)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "COMMAND"),
        ("fly", "invalid choice"),
        ("run", "--model is missing"),
        ("run --model tiny --trials 0", "trials must be at least 1, got 0"),
        ("run --model tiny --trials x", "invalid int value"),
        ("run --model tiny --time 5x", '"5m"'),
        ("run --model tiny --time 0s", "time must be positive"),
        ("run --model tiny --repeats 0", "--repeats must be at least 1"),
        ("run --model tiny --decode-tokens 0", "decode_tokens must be at least 2"),
        ("run --model tiny --set residency.slot=3", "did you mean 'residency.slots'"),
        ("run --model tiny --set slots", "expected KEY=VALUE"),
        ("run --model tiny --set reading.threads=many", "reading.threads must be a whole number"),
        ("run --model tiny --budget 8GB", 'write "8GiB"'),
        ("run --model tiny --budget 1MiB", "memory.budget 1MiB is too small"),
        ("run --model tiny --set reading.threads=²", "reading.threads must be a whole number"),
        ("run --model tiny --set residency.slots=-1", "residency.slots must be from 1"),
        ("run --model tiny --seed -1", "seed must be from 0"),
        ("run --model tiny --prompt-tokens 5000", "memory.context makes room for 4096"),
        ("bench --model tiny --prompt-tokens 5000", "memory.context makes room for 4096"),
        ("run --model tiny --output notes", "a .yaml file is expected"),
        ("run --model no-such-model", "no-such-model"),
        ("run --model ~nobody-of-this-name/x", "there is no folder ~nobody-of-this-name/x"),
        ("run --model /" + "x" * 300, "there is no folder"),
        ("run --model ./nowhere", "there is no folder ./nowhere"),
        ("run --model tiny --json --quiet", "not allowed with"),
        ("bench --model tiny --rounds 0", "--rounds must be at least 1"),
        ("generate --model tiny", "--prompt"),
        ("generate --model tiny --prompt x --max-tokens 0", "--max-tokens must be at least 1"),
        ("generate --model tiny --prompt ''", "--prompt is empty"),
        ("probe --model tiny --seconds nan", "--seconds must be positive"),
        ("trace --model tiny --tokens 0", "--tokens and --prompts must be at least 1"),
        ("trace --model tiny --guess-only", "predict.kind none computes no guess"),
        ("trace --model tiny --guess-only --tokens 1", "--tokens must be at least 2"),
        ("trace --model tiny --guess-only --set predict.kind=gate --profile none", "every layer is resident"),
        ("show --profile missing.yaml", "missing.yaml: no such file"),
        ("show --profile notes.txt", "a .yaml file"),
    ],
)
def test_wrong_input_is_one_line_and_exit_status_2(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [word.strip("'") for word in words.split()]
    assert main(argv) == 2
    out, err = capsys.readouterr()
    line = err.strip().splitlines()[-1]
    assert line.startswith("mlx-autotune: error: ")
    assert message in line
    assert "Traceback" not in err
    assert out == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_and_the_exit_statuses(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"example:\n  mlx-autotune {command}" in out
    assert "exit status:" in out and "130" in out


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90.0), ("90s", 90.0), ("5m", 300.0), ("1h30m", 5400.0), ("0.5h", 1800.0)]
)
def test_times_are_read_as_people_write_them(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "5 m", "-5m", "5m!", "1e3", "nan"])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(RequestInvalid):
        duration_s(text)


def test_dry_run_tells_the_plan_as_json_and_runs_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = FakeRunner(hill)
    fake_runner(monkeypatch, runner)
    assert main(["run", "--model", "tiny", "--dry-run", "--json", "--trials", "9"]) == 0
    plan = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert plan["search_trials"] == 9
    assert "reading.threads" in plan["knobs"]
    assert plan["total_s"] > 0
    assert not runner.specs
    assert not Path("profiles").exists()


def test_a_proven_run_writes_a_profile_that_show_explains(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_runner(monkeypatch, FakeRunner(lambda settings: 10.0 + settings.reading.threads, Weather(noise=0.01)))
    words = ["run", "--model", "tiny", "--set", "residency.resident_layers=0", "--trials", "20", "--output", "p.yaml"]
    monkeypatch.setenv("COLUMNS", "40")
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "tuned" in out and "default" in out and "p.yaml" in out
    entry = Profile.read("p.yaml").entry("tiny")
    assert entry.status == "measured"
    assert entry.settings.reading.threads > 4
    assert entry.evidence["status"] == "proven"
    assert entry.command.startswith("mlx-autotune run --model tiny")
    assert main(["show", "--model", "tiny", "--profile", "p.yaml"]) == 0
    out = capsys.readouterr().out
    assert f"reading.threads = {entry.settings.reading.threads}" in out
    assert "verdict:" in out


def test_a_run_without_a_winner_keeps_the_default_and_says_so_in_its_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_runner(monkeypatch, FakeRunner(lambda settings: 10.0, Weather(noise=0.02)))
    assert main(["run", "--model", "tiny", "--trials", "6", "--output", "p.yaml", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("default_kept: the default is kept") and len(out.splitlines()) == 1
    assert err == ""
    assert (
        not Profile.read("p.yaml")
        .entry("tiny")
        .settings.changes_from(Profile.read("p.yaml").entry("tiny").settings.__class__())
    )


def test_an_interrupted_run_leaves_a_marked_profile(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_runner(monkeypatch, FakeRunner(lambda settings: 10.0, interrupt_at=4))
    assert main(["run", "--model", "tiny", "--seed", "77", "--output", "p.yaml", "--json"]) == 130
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[-1]["event"] == "result" and lines[-1]["status"] == "interrupted"
    assert Profile.read("p.yaml").entry("tiny").status == "interrupted"


def test_an_interrupt_before_any_result_leaves_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_runner(monkeypatch, FakeRunner(hill, interrupt_at=0))
    assert main(["run", "--model", "tiny", "--seed", "78", "--output", "p.yaml"]) == 130
    assert "mlx-autotune: interrupted" in capsys.readouterr().err
    assert not Path("p.yaml").exists()


def test_show_without_a_profile_says_what_is_used_instead(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "--model", "tiny", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["path"] is None
    assert "built-in default" in shown["reason"]


def test_pack_verifies_and_finds_damage(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["pack", "--model", "tiny", "--verify", "--json", "--cache-dir", str(tmp_path / "cache")]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["faults"] == [] and found["files"] == 4
    path = Path(found["folder"]) / "layer-0002.records"
    content = bytearray(path.read_bytes())
    content[-16384 * 3] ^= 1
    path.write_bytes(content)
    assert main(words) == 1
    assert "of layer 2" in json.loads(capsys.readouterr().out.splitlines()[-1])["faults"][0]


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


def test_generate_streams_its_text_and_counts(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", "--model", "tiny", "--prompt", "one two three", "--max-tokens", "5", "--profile", "none"]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert out.strip()
    assert "tok/s" in err and "of experts were in memory" in err
    assert main([*words, "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    text = "".join(line["text"] for line in lines if line["event"] == "text")
    assert text == out
    assert lines[-1]["generation_tokens"] == 5


def test_generate_starts_again_when_its_process_lacks_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, str]] = []

    def execve(path: str, argv: list[str], environment: dict[str, str]) -> None:
        started.append(environment)
        assert argv[1:4] == ["-m", "autotune", "generate"]
        raise SystemExit(0)

    monkeypatch.setattr("os.execve", execve)
    monkeypatch.delenv("MLX_MAX_OPS_PER_BUFFER", raising=False)
    words = ["generate", "--model", "tiny", "--prompt", "x", "--set", "process.max_ops_per_buffer=5"]
    assert main(words) == 0
    assert started[0]["MLX_MAX_OPS_PER_BUFFER"] == "5"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_live_view_and_is_left_clean() -> None:
    terminal = Terminal()
    screen = make_screen(json_lines=False, quiet=False, out=io.StringIO(), err=terminal)
    assert isinstance(screen, LiveScreen)
    screen.progress(Progress("packing experts", 1 << 20, 1 << 21))
    screen.notice("a word")
    screen.close()
    screen.close()
    assert "a word" in terminal.getvalue()


def test_an_output_that_cannot_be_written_is_said_before_anything_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = FakeRunner(hill)
    fake_runner(monkeypatch, runner)
    Path("file.yaml").touch()
    assert main(["run", "--model", "tiny", "--output", "file.yaml/x.yaml"]) == 2
    assert "is no folder that can be written to" in capsys.readouterr().err
    assert not runner.specs


def test_an_answer_ends_where_memory_context_does(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["generate", "--model", "tiny", "--raw", "--prompt", "a", "--json", "--set", "memory.context=9"]
    assert main([*argv, "--max-tokens", str(10**20)]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["prompt_tokens"] + result["generation_tokens"] == 9
    assert main([*argv, "--prompt", "a garden " * 50]) == 2
    assert "memory.context makes room for 9" in capsys.readouterr().err


def test_output_that_a_full_disk_refuses_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    command = [sys.executable, "-m", "autotune", "show", "--quiet"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1 and "No space left on device" in done.stderr


def test_sigterm_ends_a_command_as_ctrl_c_does() -> None:
    command = [sys.executable, "-m", "autotune", "generate", "--model", "tiny", "--prompt", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        time.sleep(2.0)  # it waits for its prompt
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, b"mlx-autotune: interrupted\n")


def test_bytes_that_are_no_text_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--model", "tiny", "--prompt", "a\udcff"]) == 2
    assert "--prompt is not UTF-8" in capsys.readouterr().err


def test_an_interrupted_run_keeps_the_finished_result_and_says_where_its_trials_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["run", "--model", "tiny", "--seed", "79", "--trials", "4", "--output", "p.yaml"]
    fake_runner(monkeypatch, FakeRunner(lambda settings: 10.0))
    assert main(words) == 0
    before = Path("p.yaml").read_bytes()
    fake_runner(monkeypatch, FakeRunner(lambda settings: 10.0, interrupt_at=3))
    assert main([*words, "--fresh"]) == 130
    err = capsys.readouterr().err
    assert Path("p.yaml").read_bytes() == before
    assert "studies/tiny-" in err and "the same command carries on" in err
    assert "p.yaml keeps its finished result for tiny" in err


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


def test_json_events_have_names_of_one_style_and_progress_is_throttled() -> None:
    out = io.StringIO()
    screen = make_screen(json_lines=True, quiet=False, out=out, err=io.StringIO())
    for done in range(50):
        screen.event(TrialProgressed(Stage("loading experts", done, 50)))
        screen.progress(Progress("packing experts", done, 50))
    screen.notice("a word")
    screen.event(PhaseStarted("search"))
    names = [json.loads(line)["event"] for line in out.getvalue().splitlines()]
    assert names == ["trial_progressed", "progress", "notice", "phase_started"]


def test_a_short_dry_run_is_told_in_seconds_and_a_longer_one_as_a_range(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["run", "--model", "tiny", "--dry-run", "--quiet", "--cache-dir", str(tmp_path)]  # with no earlier run
    assert main([*words, "--time", "1s"]) == 0
    assert "about 1 s" in capsys.readouterr().out
    assert main(words) == 0
    assert re.search(r"\d+ (min )?to \d+ ?", capsys.readouterr().out)


def test_a_setting_of_no_section_lists_the_sections_and_suggests_nothing_far_fetched(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["run", "--model", "tiny", "--set", "foo.bar=1"]) == 2
    err = capsys.readouterr().err
    assert "Sections: " in err and "residency" in err and "did you mean" not in err
    assert main(["run", "--model", "tiny", "--set", "residncy.slots=1"]) == 2
    assert "did you mean 'residency.slots'" in capsys.readouterr().err


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("mlx-autotune ")


def test_probe_without_a_model_tells_the_facts_of_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe"]) == 0
    out = capsys.readouterr().out
    assert "default budget" in out and "disk: not measured" in out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_only_the_exit_statuses_that_a_command_has_in_narrow_lines(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0
    _, _, block = capsys.readouterr().out.partition("exit status:")
    assert all(len(line) <= 78 for line in block.splitlines())
    assert ("  1 " in block) == (command in ("bench", "pack"))
