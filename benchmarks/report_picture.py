"""Makes docs/report.png: a study's report in headless Chromium.  python benchmarks/report_picture.py STUDY PROFILE"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from autotune.cli import main

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "report.png"
FLAGS = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --hide-scrollbars"


def draw(study: str, profile: str) -> int:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("no Chromium is installed here", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        status = main(["report", study, "--profile", profile, "--output", str(page), "--quiet"])
        if status:
            return status
        words = [browser, *FLAGS.split(), f"--user-data-dir={folder}/browser", "--window-size=1160,1500"]
        return subprocess.run([*words, f"--screenshot={PICTURE}", page.as_uri()], timeout=120).returncode


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(draw(*sys.argv[1:]))
