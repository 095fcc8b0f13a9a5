"""Studies to report on, and a reader of pages."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from tuner_fakes import hill, tuned

from autotune.result import TuneResult
from autotune.testing import FakeRunner, Weather
from streaming_core.settings import Settings

VOID = {"meta", "link", "br"}


def threads_matter(settings: Settings) -> float:
    return 10.0 + settings.reading.threads


def study(cache: Path, speed: Callable[[Settings], Any] = hill, **options: Any) -> tuple[Path, TuneResult]:
    """A finished study of `owner/demo` under `cache`."""
    weather = Weather(noise=options.pop("noise", 0.01), crashes=options.pop("crashes", 0.0))
    result = tuned(cache, FakeRunner(speed, weather, seed=options.pop("seed", 0)), **options)
    return cache / "studies" / str(result.search["study"]), result


def edited(folder: Path, change: Callable[[int, dict[str, Any]], None]) -> None:
    """Every line of the journal through `change`, with its number from 0."""
    path = folder / "trials.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for number, line in enumerate(lines):
        change(number, line)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


class Reader(HTMLParser):
    """What is on a page; `balanced` while every element that is opened is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.balanced = True
        self._open: list[str] = []
        self.feed(text)
        self.close()
        self.balanced = self.balanced and not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        self.balanced = self.balanced and bool(self._open) and self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def pictures(text: str) -> list[str]:
    return re.findall(r"<svg .*?</svg>", text, re.DOTALL)
