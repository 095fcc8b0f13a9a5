"""Where tests of the command line run."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def elsewhere(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another current folder, profiles of its own, and a cache that all tests of the command line share."""
    monkeypatch.chdir(tmp_path)
    shared = tmp_path_factory.getbasetemp() / "cli-cache"  # one checkpoint for all tests
    monkeypatch.setenv("MLX_AUTOTUNE_CACHE_DIR", str(shared))
    monkeypatch.setattr("streaming_core.profile._find.default_folders", lambda: [tmp_path / "profiles"])
