"""Git-lfs leaves small text files where it did not fetch the large ones."""

from __future__ import annotations

from pathlib import Path

from streaming_core.errors import StoreInvalid

__all__ = ["check_not_pointer"]


def check_not_pointer(path: Path, start: bytes) -> None:
    """Raises StoreInvalid when a file that begins with `start` is such a text."""
    if start.startswith(b"version https://git-lfs"):
        raise StoreInvalid(f"{path}: a git-lfs pointer, not the file itself; run `git lfs pull` in {path.parent}")
