"""What a person sees, and what a program reads."""

from __future__ import annotations

import io
import json

from autotune.events import PhaseStarted, TrialProgressed
from autotune.screen import LiveScreen, make_screen
from autotune.trial import Stage
from streaming_core.progress import Progress


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
