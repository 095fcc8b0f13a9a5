"""Where output goes: a live view on a terminal, lines elsewhere, JSON lines, or next to nothing.

Progress and notices go to standard error, results to standard output; with `--json` everything is a line of JSON on
standard output.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from autotune.board import Board
from autotune.events import TrialFinished, TrialProgressed, TrialStarted, TuneEvent, event_to_json
from autotune.wording import changes_text, event_text
from streaming_core.progress import Progress
from streaming_core.units import format_size

__all__ = ["Render", "Screen", "make_screen"]

Render = Callable[[Console], None]
_SPARSE_S = 2.0  # between two lines about the same work
_EACH_S = 1.0  # likewise, of JSON


class Screen(Protocol):
    """What commands may say."""

    def event(self, event: TuneEvent) -> None: ...

    def progress(self, progress: Progress) -> None: ...

    def notice(self, text: str) -> None:
        """One line that the user should see."""

    def problem(self, text: str) -> None:
        """One line about something that was asked for and not done; said even where only results are wanted."""

    def report(self, event: str, data: Mapping[str, Any], text: str) -> None:
        """What a command that goes on has to say before its end: for programs, and for people in one line or none."""

    def text(self, piece: str) -> None:
        """Output of the model, as it comes."""

    def result(self, data: Mapping[str, Any], summary: str, render: Render) -> None:
        """The answer of a command: for programs, in one line, and for people."""

    def close(self) -> None:
        """Leaves the terminal as it was.  Idempotent."""


class JsonScreen:
    """A line of JSON an event; the result is the last one, `{"event": "result", ...}`."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._said: dict[str, float] = {}  # by stage: when it was last spoken of

    def _say(self, value: Mapping[str, Any]) -> None:
        self._out.write(json.dumps(value) + "\n")
        self._out.flush()

    def event(self, event: TuneEvent) -> None:
        if not isinstance(event, TrialProgressed) or self._due(f"trial {event.stage.name}"):
            self._say(event_to_json(event))

    def _due(self, stage: str) -> bool:
        now = time.monotonic()
        if now - self._said.get(stage, -math.inf) < _EACH_S:
            return False
        self._said[stage] = now
        return True

    def progress(self, progress: Progress) -> None:
        if not self._due(progress.stage):
            return
        self._say({"event": "progress", "stage": progress.stage, "done": progress.done, "total": progress.total})

    def notice(self, text: str) -> None:
        self._say({"event": "notice", "text": text})

    def problem(self, text: str) -> None:
        self._say({"event": "problem", "text": text})

    def report(self, event: str, data: Mapping[str, Any], text: str) -> None:
        self._say({"event": event, **data})

    def text(self, piece: str) -> None:
        self._say({"event": "text", "text": piece})

    def result(self, data: Mapping[str, Any], summary: str, render: Render) -> None:
        self._say({"event": "result", **data})

    def close(self) -> None:
        return


class QuietScreen:
    """The result in one line, the model's words, and nothing else."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = out
        self._err = err

    def event(self, event: TuneEvent) -> None:
        return

    def progress(self, progress: Progress) -> None:
        return

    def notice(self, text: str) -> None:
        return

    def problem(self, text: str) -> None:
        self._err.write(text + "\n")
        self._err.flush()

    def report(self, event: str, data: Mapping[str, Any], text: str) -> None:
        if text:
            self.text(text + "\n")

    def text(self, piece: str) -> None:
        self._out.write(piece)
        self._out.flush()

    def result(self, data: Mapping[str, Any], summary: str, render: Render) -> None:
        if summary:
            self._out.write(summary + "\n")

    def close(self) -> None:
        return


class PlainScreen:
    """Lines: for logs, pipes and terminals without cursor movement."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = out
        self._err = err
        self._said: dict[str, float] = {}

    def _line(self, text: str) -> None:
        self._err.write(text + "\n")
        self._err.flush()

    def event(self, event: TuneEvent) -> None:
        if isinstance(event, TrialStarted):
            of = f"/{event.of}" if event.of else ""
            self._line(f"trial {event.number}{of} [{event.purpose}] {changes_text(event.changes)}")
        elif text := event_text(event):
            self._line(text)

    def progress(self, progress: Progress) -> None:
        now = time.monotonic()
        first = self._said.setdefault(progress.stage, now)
        if now - first >= _SPARSE_S:
            self._said[progress.stage] = now
            self._line(progress_text(progress))

    def notice(self, text: str) -> None:
        self._line(text)

    def problem(self, text: str) -> None:
        self._line(text)

    def report(self, event: str, data: Mapping[str, Any], text: str) -> None:
        if text:
            self.text(text + "\n")

    def text(self, piece: str) -> None:
        self._out.write(piece)
        self._out.flush()

    def result(self, data: Mapping[str, Any], summary: str, render: Render) -> None:
        render(Console(file=self._out, highlight=False, soft_wrap=True))

    def close(self) -> None:
        return


class LiveScreen:
    """A few lines that are drawn over, with what is worth keeping scrolling by above them."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = out
        self._console = Console(file=err, highlight=False)
        self._board = Board()
        self._work = ""
        self._live: Live | None = None

    def event(self, event: TuneEvent) -> None:
        self._board.hear(event)
        text = event_text(event)
        if text and not (isinstance(event, TrialFinished) and event.decode_tps is not None):
            self._console.print(Text(text))
        self._draw()

    def progress(self, progress: Progress) -> None:
        self._work = "" if progress.done >= progress.total > 0 else progress_text(progress)
        self._draw()

    def notice(self, text: str) -> None:
        self._console.print(Text(text))

    def problem(self, text: str) -> None:
        self.notice(text)

    def report(self, event: str, data: Mapping[str, Any], text: str) -> None:
        if text:
            self.text(text + "\n")

    def text(self, piece: str) -> None:
        self.close()
        self._out.write(piece)
        self._out.flush()

    def result(self, data: Mapping[str, Any], summary: str, render: Render) -> None:
        self.close()
        render(Console(file=self._out, highlight=False))

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._work = ""

    def _draw(self) -> None:
        if self._live is None:
            self._live = Live(get_renderable=self._view, console=self._console, refresh_per_second=4, transient=True)
            self._live.start()

    def _view(self) -> Group:
        lines = [*self._board.lines(time.monotonic()), *([self._work] if self._work else [])]
        return Group(*(Text(line, overflow="ellipsis", no_wrap=True) for line in lines))


def progress_text(progress: Progress) -> str:
    if progress.total <= 0:
        return progress.stage
    if progress.unit == "bytes":
        return f"{progress.stage}: {format_size(progress.done)} of {format_size(progress.total)}"
    return f"{progress.stage}: {progress.done} of {progress.total} {progress.unit}"


def make_screen(*, json_lines: bool, quiet: bool, out: TextIO, err: TextIO) -> Screen:
    if json_lines:
        return JsonScreen(out)
    if quiet:
        return QuietScreen(out, err)
    if err.isatty():
        return LiveScreen(out, err)
    return PlainScreen(out, err)
