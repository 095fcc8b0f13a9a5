"""The command line itself: arguments, help, exit statuses, and what the system may refuse."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_cases import COMMANDS

from autotune.cli import main
from autotune.errors import RequestInvalid
from autotune.options import duration_s

pytestmark = pytest.mark.usefixtures("elsewhere")


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
        ("run --model tiny --context 5000", "memory.context makes room for 4096"),
        ("bench --model tiny --context 17", "--context must be more than the 17 tokens decoded untimed, got 17"),
        ("run --model tiny --context 99 --prompt-tokens 9", "--context and --prompt-tokens both say"),
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
        ("run --model tiny --set predict.kind=oracle", "only `trace --oracle FILE` and `predict --trace FILE` do"),
        ("generate --model tiny --prompt x --set predict.kind=oracle", "only `trace --oracle FILE` and `predict"),
        ("bench --model tiny --set predict.kind=oracle", "only `trace --oracle FILE` and `predict --trace FILE` do"),
        ("trace --model tiny --set predict.kind=oracle", "only `trace --oracle FILE` and `predict --trace FILE` do"),
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


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_only_the_exit_statuses_that_a_command_has_in_narrow_lines(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0
    _, _, block = capsys.readouterr().out.partition("exit status:")
    assert all(len(line) <= 78 for line in block.splitlines())
    assert ("  1 " in block) == (command in ("bench", "pack", "verify", "doctor"))


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90.0), ("90s", 90.0), ("5m", 300.0), ("1h30m", 5400.0), ("0.5h", 1800.0)]
)
def test_times_are_read_as_people_write_them(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "5 m", "-5m", "5m!", "1e3", "nan"])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(RequestInvalid):
        duration_s(text)


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
