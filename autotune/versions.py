"""Which versions of what are in use."""

from __future__ import annotations

import importlib.metadata

__all__ = ["program_version", "versions"]

_NAMES = ("mlx-autotune", "mlx", "mlx-lm", "optuna")


def program_version() -> str:
    return versions()["mlx-autotune"]


def versions() -> dict[str, str]:
    """By distribution; "source" when it is run from a checkout without being installed."""
    return {name: _version(name) for name in _NAMES}


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "source"
