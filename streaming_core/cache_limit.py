"""MLX's limit of freed buffers that it keeps: one per process, wanted by every open model."""

from __future__ import annotations

import threading

import mlx.core as mx

__all__ = ["CacheLimit"]

_lock = threading.Lock()
_held: list[CacheLimit] = []  # the last one is in force.  As wide as what it guards: MLX has one limit a process


class CacheLimit:
    """A limit from now on until its release, whatever the order in which several are released."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        with _lock:
            self._before = mx.set_cache_limit(nbytes)  # to be put back by whoever is released last
            _held.append(self)

    def release(self) -> None:
        """Idempotent."""
        with _lock:
            if self not in _held:
                return
            after = _held.index(self) + 1
            if after == len(_held):
                mx.set_cache_limit(self._before)
            elif _held[after]._before == self._nbytes:  # else somebody changed it in between and wants that back
                _held[after]._before = self._before
            _held.remove(self)
