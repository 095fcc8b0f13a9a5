"""`mlx-autotune generate`: an answer, its length, its process."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from autotune.cli import main

pytestmark = pytest.mark.usefixtures("elsewhere")


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


def test_an_answer_ends_where_memory_context_does(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["generate", "--model", "tiny", "--raw", "--prompt", "a", "--json", "--set", "memory.context=9"]
    assert main([*argv, "--max-tokens", str(10**20)]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["prompt_tokens"] + result["generation_tokens"] == 9
    assert main([*argv, "--prompt", "a garden " * 50]) == 2
    assert "memory.context makes room for 9" in capsys.readouterr().err


def test_bytes_that_are_no_text_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--model", "tiny", "--prompt", "a\udcff"]) == 2
    assert "--prompt is not UTF-8" in capsys.readouterr().err


def test_kernels_that_are_not_offered_here_are_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", "--model", "tiny", "--prompt", "one two three", "--max-tokens", "2", "--profile", "none"]
    assert main(words) == 0
    plain, err = capsys.readouterr()
    assert "kernels" not in err
    assert main([*words, "--set", "kernels.fused=on"]) == 0
    out, err = capsys.readouterr()
    said = [line for line in err.splitlines() if "kernels need Metal or CUDA" in line]
    assert len(said) == 1 and said[0].startswith("kernels.fused: ")
    assert out == plain


@pytest.mark.parametrize("words", [["--budget", "900TiB"], ["--set", "memory.budget=900TiB"]], ids=["flag", "setting"])
@pytest.mark.parametrize(
    "command", [["generate", "--prompt", "one two", "--max-tokens", "2"], ["run", "--dry-run"]], ids=["generate", "run"]
)
def test_a_budget_beyond_the_memory_is_noticed_and_used(
    capsys: pytest.CaptureFixture[str], command: list[str], words: list[str]
) -> None:
    assert main([*command, "--model", "tiny", "--profile", "none", *words]) == 0
    out, err = capsys.readouterr()
    (line,) = [line for line in err.splitlines() if "a budget of 900TiB is more than the" in line]
    assert line.endswith("or ends the process") and "budget of" not in out
    assert main([*command, "--model", "tiny", "--profile", "none", "--budget", "512MiB"]) == 0
    assert "is more than the" not in capsys.readouterr().err


@pytest.mark.parametrize("template", ["{% zebra", "{{ 1 / 0 }}", "{{ raise_exception('no') }}"])
def test_a_chat_template_that_fails_is_one_line(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], template: str
) -> None:
    folder = Path(shutil.copytree(tiny, tmp_path / "model"))
    (folder / "chat_template.jinja").write_text(template)
    words = ["generate", "--model", str(folder), "--prompt", "a garden", "--max-tokens", "2", "--profile", "none"]
    assert main([*words, "--quiet"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "the model's chat template fails: " in line and line.endswith("mend it, or pass --raw")
    assert main([*words, "--quiet", "--raw"]) == 0
