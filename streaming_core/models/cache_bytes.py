"""What mlx-lm's prompt cache of a model holds, from shapes alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

__all__ = ["CacheBytes", "cache_bytes"]


@dataclass(frozen=True, slots=True)
class CacheBytes:
    """Of one sequence."""

    fixed: int  # recurrent states and the like, whatever the context
    per_token: int  # keys and values, over all layers that keep them all
    windows: tuple[tuple[int, int], ...]  # layers that keep the last tokens only: how many, bytes of one
    largest_state: int  # recurrent, of one layer


def cache_bytes(model: nn.Module) -> CacheBytes:
    """From a pass of one token that is put together and never run: its arrays have shapes and no bytes."""
    cache = make_prompt_cache(model)
    model(mx.zeros((1, 1), dtype=mx.int32), cache=cache)
    fixed = per_token = largest = 0
    windows: Counter[int] = Counter()
    for entry in _entries(cache):
        keys, values = getattr(entry, "keys", None), getattr(entry, "values", None)
        if not isinstance(keys, mx.array) or not isinstance(values, mx.array):
            state = sum(a.nbytes for _, a in tree_flatten(entry.state) if isinstance(a, mx.array))
            fixed += state
            largest = max(largest, state)
            continue
        of_token = (keys.nbytes + values.nbytes) // keys.shape[-2]
        if (kept := _window(entry)) is None:
            per_token += of_token
        else:
            windows[kept] += of_token
    return CacheBytes(fixed, per_token, tuple(sorted(windows.items())), largest)


def _window(entry: Any) -> int | None:
    """Tokens that a cache keeps at most between passes; None for all of them."""
    if (rotating := getattr(entry, "max_size", None)) is not None:
        return int(rotating)
    if (chunk := getattr(entry, "chunk_size", None)) is not None:
        return int(chunk) + int(entry.step)  # cut to a chunk before a pass, grown by a step in it
    return None


def _entries(cache: Sequence[Any]) -> Iterator[Any]:
    for entry in cache:
        inner = getattr(entry, "caches", None)
        if inner is None:
            yield entry
        else:
            yield from _entries(inner)
