"""What the command line says about lengths, and what a trial then replays."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from autotune.commands.run import request_of
from autotune.context import say_busy
from autotune.errors import RequestInvalid
from autotune.options import build_parser
from autotune.request import TuneRequest
from autotune.screen import make_screen
from streaming_core.hardware import Conditions, FakeMachine


def request(*words: str) -> TuneRequest:
    parser = build_parser(Path("cache"), lambda: "0")
    return request_of(parser.parse_args(["run", "--model", "tiny", *words]), priors=())


@pytest.mark.parametrize("words", [(), ("--warmup-tokens", "5"), ("--time", "5m")])
def test_timed_tokens_have_so_many_before_them_as_the_context_says(words: tuple[str, ...]) -> None:
    workload = request("--context", "300", *words).workload
    assert workload.context_tokens - workload.decode_tokens == 300
    assert workload.decode_tokens == request(*words).workload.decode_tokens


def test_another_context_is_another_workload() -> None:
    hashes = {request(*words).workload.content_hash for words in ((), ("--context", "300"), ("--context", "301"))}
    assert len(hashes) == 3


@pytest.mark.parametrize(("load", "said"), [(0.1, False), (7.0, True)])
def test_a_busy_machine_is_named_in_one_line_before_anything_is_measured(
    capsys: pytest.CaptureFixture[str], load: float, said: bool
) -> None:
    machine = FakeMachine(conditions_reading=Conditions("ac", False, "nominal", load))
    say_busy(machine, make_screen(json_lines=False, quiet=False, out=sys.stdout, err=sys.stderr))
    err = capsys.readouterr().err
    assert err.startswith("this machine is busy: on average 7.0 threads") is said
    assert len(err.splitlines()) == said


@pytest.mark.parametrize(
    "words", [("--context", "9" * 30), ("--prompt-tokens", "9" * 30), ("--decode-tokens", "9" * 9)]
)
def test_lengths_without_room_are_refused_before_any_text_is_made(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    monkeypatch.setattr("streaming_core.testing.prompts", lambda *asked: made.append(asked[1]))
    with pytest.raises(RequestInvalid, match=r"memory\.context makes room for 4096"):
        request(*words)
    assert not made
