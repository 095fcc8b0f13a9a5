"""Attention that sees what an indexer picks: the scores of the indexer's heads are in the plan."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest
from checkpoint_cases import build, flat, plain, write
from test_cache_bytes import DEEPSEEK

import streaming_core
from streaming_core import Settings

CONTEXT = 1024


@pytest.mark.skipif(mx.default_device() != mx.cpu, reason="the peak of other devices includes their own staging")
def test_the_peak_of_a_prompt_is_within_the_plan(tiny: Path, tmp_path: Path) -> None:
    folder = write(tmp_path / "m", DEEPSEEK, flat(build(DEEPSEEK, plain)), tiny)
    wanted = {"residency.slots": 3, "memory.context": CONTEXT, "memory.budget": "2GiB", "memory.mlx_cache": "0B"}
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    with streaming_core.load(folder, Settings().with_values(wanted), cache_dir=tmp_path / "cache") as model:
        list(model.stream([5 + n % 200 for n in range(CONTEXT - 4)], max_tokens=2))
        peak = mx.get_peak_memory() - before
        assert peak <= model.memory_plan.total_bytes - model.memory_plan.terms["process"]
