"""`python -m autotune` is `mlx-autotune`."""

from autotune.cli import entry

entry()
