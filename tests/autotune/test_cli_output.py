"""`--json` prints nothing but JSON lines, `--quiet` nothing but the result, whatever the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.cli import main

IN_MEMORY = "--set residency.slots=all --set residency.resident_layers=none"
COMMANDS = {
    "pack": "pack --model tiny --verify",
    "generate": "generate --model tiny --profile none --prompt x --max-tokens 2",
    "show": "show --model tiny --profile none",
    "probe": "probe",
    "probe-model": "probe --model tiny --seconds 0.01",
    "run": "run --model tiny --dry-run",
    "trace": f"trace --model tiny --profile none --prompts 1 --tokens 2 {IN_MEMORY} --save new.gz",
    "predict": "predict --model tiny --profile none --trace routes.gz --counts-only",
}


@pytest.fixture
def routes(elsewhere: None, capfd: pytest.CaptureFixture[str]) -> None:
    words = f"trace --model tiny --profile none --prompts 1 --tokens 2 {IN_MEMORY} --save routes.gz --quiet"
    assert main(words.split()) == 0
    capfd.readouterr()


@pytest.mark.usefixtures("routes")
@pytest.mark.parametrize("name", COMMANDS)
def test_output_is_even_over_the_commands(capfd: pytest.CaptureFixture[str], name: str) -> None:
    words = COMMANDS[name].split()
    assert main([*words, "--json"]) == 0
    out, err = capfd.readouterr()
    events = [json.loads(line) for line in out.splitlines()]
    assert [event["event"] for event in events].count("result") == 1 and events[-1]["event"] == "result"
    assert err == ""
    Path("new.gz").unlink(missing_ok=True)
    assert main([*words, "--quiet"]) == 0
    out, err = capfd.readouterr()
    assert err == "" and out.strip()
    assert len(out.splitlines()) == 1
