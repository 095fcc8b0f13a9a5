"""The planned bytes of a cache are never fewer than a cache of that family holds, and hardly more."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from family_configs import FAMILIES
from family_models import bare_model, text
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from streaming_core.models.cache_bytes import cache_bytes
from streaming_core.residency.memory import MemoryDemand

CONTEXT = 500


def planned(model: Any) -> int:
    kept = cache_bytes(model)
    demand = MemoryDemand(
        trunk_bytes=0, slot_bytes={}, experts=8, top_k=2, kv_fixed_bytes=kept.fixed, kv_token_bytes=kept.per_token,
        kv_windows=kept.windows, row_bytes=0, token_bytes=0, score_bytes=0, scan_bytes=0,
    )  # fmt: skip
    return demand.kv_bytes(CONTEXT)


def arrays(part: Any) -> dict[int, mx.array]:
    """Every array in a cache, whatever it calls them."""
    found: dict[int, mx.array] = {}
    for _, leaf in tree_flatten(part):
        if isinstance(leaf, mx.array):
            found[id(leaf)] = leaf
        elif type(leaf).__module__.startswith("mlx_lm."):
            found |= arrays(vars(leaf))
    return found


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.usefixtures("without_metal")
def test_the_plan_covers_what_a_cache_holds(name: str) -> None:
    model = bare_model(FAMILIES[name])
    tokens = mx.array([text(CONTEXT)])
    cache = make_prompt_cache(model)
    for start, end in [(0, 256), (256, CONTEXT - 2), (CONTEXT - 2, CONTEXT - 1), (CONTEXT - 1, CONTEXT)]:
        mx.eval(model(tokens[:, start:end], cache=cache))
    real = sum(array.nbytes for array in arrays(cache).values())
    assert real <= planned(model) <= 1.05 * real
