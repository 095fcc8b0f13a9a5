"""The report in a browser: drawn, quiet, and as wide as the window."""

from __future__ import annotations

import html
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from report_cases import study

from autotune.report import facts_of, page, read_study

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed here")

# No window is narrower than 500, so the page is put into a frame; it forbids scripts, so the parent measures it.
FRAME = """<!DOCTYPE html><body style="margin:0"><iframe style="border:0;width:%dpx;height:1200px" srcdoc="%s"></iframe>
<script>addEventListener("load", () => {
const page = document.querySelector("iframe").contentDocument, root = page.documentElement;
page.querySelectorAll("details").forEach(each => each.open = true);
const drawn = [...page.querySelectorAll("svg[role=img]")].filter(each => each.checkVisibility());
const flat = drawn.filter(each => each.getBoundingClientRect().height < 20).length;
document.body.dataset.probe = [root.clientWidth, root.scrollWidth, drawn.length, flat].join(" ")})</script></body>"""


def browse(folder: Path, text: str, *options: str) -> tuple[str, str]:
    """Document and log after loading."""
    file = folder / "page.html"
    file.write_text(text, encoding="utf-8")
    words = [str(BROWSER), *QUIET.split(), "--disable-component-update", "--disable-sync", "--enable-logging=stderr"]
    words += [f"--user-data-dir={folder / 'browser'}", *options, "--dump-dom", file.as_uri()]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, text=True)
    try:
        return process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def text(tmp_path: Path) -> str:
    folder, _ = study(tmp_path / "cache", trials=24, crashes=0.1)
    return page(facts_of(read_study(folder), None, None))


@pytest.mark.parametrize("width", [390, 1440])
def test_every_chart_is_drawn_and_nothing_is_wider_than_the_window(tmp_path: Path, text: str, width: int) -> None:
    document, _ = browse(tmp_path, FRAME % (width, html.escape(text)), "--window-size=1600,1200")
    found = re.search(r'data-probe="(\d+) (\d+) (\d+) (\d+)"', document)
    assert found is not None, document[:500]
    inner, scroll, drawn, flat = map(int, found.groups())
    assert width - 20 <= inner and scroll <= inner
    assert drawn >= 8 and flat == 0


def test_the_console_stays_silent(tmp_path: Path, text: str) -> None:
    document, log = browse(tmp_path, text)
    assert "Search history" in document
    assert "CONSOLE" not in log
