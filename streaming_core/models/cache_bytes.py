"""What mlx-lm's prompt cache of a model holds, from shapes alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

__all__ = ["CacheBytes", "cache_bytes"]

# Tokens of a pass.  One less than a power of two leaves as much as ever is of a group that is not full yet.
_FEW, _MANY = 7, 4095


@dataclass(frozen=True, slots=True)
class CacheBytes:
    """Of one sequence."""

    fixed: int  # recurrent states and the like, whatever the context
    per_token: int  # keys and values, over all layers that keep them all
    windows: tuple[tuple[int, int], ...]  # layers that keep the last tokens only: how many, bytes of one
    largest_state: int  # recurrent, of one layer


def cache_bytes(model: nn.Module) -> CacheBytes:
    """From passes that are put together and never run: their arrays have shapes and no bytes."""
    per_token = 0
    windows: Counter[int] = Counter()
    states: dict[tuple[int, str], int] = {}  # by entry and by place in it, after one token
    for n, entry in enumerate(_after(model, 1)):
        keys, values = getattr(entry, "keys", None), getattr(entry, "values", None)
        if not isinstance(keys, mx.array) or not isinstance(values, mx.array):
            states |= _states(n, entry)
            continue
        of_token = (keys.nbytes + values.nbytes) // keys.shape[-2]
        if (kept := _window(entry)) is None:
            per_token += of_token
        else:
            windows[kept] += of_token
    recurrent: Counter[int] = Counter()
    for place, growth in _growths(model, states).items():
        recurrent[place[0]] += growth.fixed
        per_token += growth.per_token
        if growth.kept:
            windows[growth.kept] += growth.of_kept
    fixed = sum(recurrent.values())
    return CacheBytes(fixed, per_token, tuple(sorted(windows.items())), max(recurrent.values(), default=0))


@dataclass(frozen=True, slots=True)
class _Growth:
    """Of an array of a cache of the family's own, which says nothing of how it grows."""

    fixed: int = 0
    per_token: int = 0
    kept: int = 0  # tokens that it holds at most
    of_kept: int = 0

    @classmethod
    def of(cls, one: int, many: int, twice: int) -> _Growth:
        """From its bytes after 1, `_MANY` and 2 `_MANY` + 1 tokens."""
        if twice > many:
            per_token = -(-(twice - many) // (_MANY + 1))
            return cls(fixed=max(0, many - per_token * _MANY), per_token=per_token)
        if one and many > one and many % one == 0:
            return cls(kept=many // one, of_kept=one)
        return cls(fixed=max(one, many))


def _growths(model: nn.Module, states: Mapping[tuple[int, str], int]) -> dict[tuple[int, str], _Growth]:
    """How each array grows that had so many bytes after one token."""
    # A recurrent state never does, and without a kernel its scan is a graph of as many steps as tokens: few, then.
    if not states or _all_states(model, _FEW) == states:
        return {place: _Growth(fixed=one) for place, one in states.items()}
    many, twice = _all_states(model, _MANY), _all_states(model, 2 * _MANY + 1)
    places = states.keys() | many.keys() | twice.keys()
    return {place: _Growth.of(*(sizes.get(place, 0) for sizes in (states, many, twice))) for place in places}


def _all_states(model: nn.Module, tokens: int) -> dict[tuple[int, str], int]:
    found: dict[tuple[int, str], int] = {}
    for n, entry in enumerate(_after(model, tokens)):
        if not isinstance(getattr(entry, "keys", None), mx.array):
            found |= _states(n, entry)
    return found


def _states(n: int, entry: Any) -> dict[tuple[int, str], int]:
    return {(n, place): a.nbytes for place, a in tree_flatten(entry.state) if isinstance(a, mx.array) and a.nbytes}


def _after(model: nn.Module, tokens: int) -> list[Any]:
    cache = make_prompt_cache(model)
    model(mx.zeros((1, tokens), dtype=mx.int32), cache=cache)
    return list(_entries(cache))


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
