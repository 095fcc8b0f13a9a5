"""What tests of mlx-lm's families share."""

from __future__ import annotations

import mlx.core as mx
import pytest
from metal_stand_ins import stand_in_for_metal


@pytest.fixture
def without_metal(monkeypatch: pytest.MonkeyPatch) -> None:
    if not mx.metal.is_available():
        stand_in_for_metal(monkeypatch)
