"""What is not imported, since it takes longer than all the rest: facts, so that no clock is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from streaming_core.hardware import detect
from streaming_core.profile import Entry, Profile
from streaming_core.settings import Settings

HEAVY = ("mlx_lm", "transformers", "optuna", "rich", "numpy", "huggingface_hub", "tokenizers")


def imported(code: str, names: tuple[str, ...], folder: Path) -> set[str]:
    """Which of these modules are there after the code has run in a fresh process."""
    ask = f"\nimport sys; sys.stderr.write(' '.join(name for name in {names!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code + ask], capture_output=True, text=True, cwd=folder, check=True)
    return set(done.stderr.split())


def test_importing_the_runtime_imports_nothing_but_python(tmp_path: Path) -> None:
    assert imported("import streaming_core", (*HEAVY, "mlx.core", "yaml"), tmp_path) == set()


@pytest.mark.parametrize("ask", ["", "'demo'"])
def test_finding_a_profile_imports_neither_models_nor_the_tuner(ask: str, tmp_path: Path) -> None:
    hardware = detect().hardware()
    entry = Entry(fingerprint="00ff", settings=Settings(), evidence={"versions": {"mlx": "0.0.1"}})
    Profile(hardware=hardware, entries={"demo": entry}).write(tmp_path / "profiles" / "mine.yaml")
    code = f"from streaming_core import load_profile\nassert 'mlx was 0.0.1' in load_profile({ask}).reason"
    never = ("autotune", "urllib.request", "streaming_core.profile._schema")
    assert imported(code, (*HEAVY, *never, "mlx.core", "yaml"), tmp_path) == {"mlx.core", "yaml"}


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["profile", "diff", "--help"], ["run", "--wrong"]])
def test_help_and_wrong_words_wait_for_nothing(words: list[str], tmp_path: Path) -> None:
    code = f"import os, sys; sys.stderr = open(os.devnull, 'w')\nfrom autotune.cli import main\nmain({words!r})\n"
    code += "sys.stderr = sys.__stderr__"
    never = ("mlx.core", "yaml", "importlib.metadata", "streaming_core.hardware", "streaming_core.profile")
    assert imported(code, (*HEAVY, *never), tmp_path) == set()
