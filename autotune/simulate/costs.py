"""What a decoded token costs apart from waiting for reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from autotune.simulate.disk import NO_TIME, DiskTable

__all__ = ["NO_COSTS", "TokenCosts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCosts:
    """Seconds, of passes of one token."""

    layer_s: Mapping[int, float]  # a streamed layer with everything in its slots, its host sync included
    outside_s: float  # embedding, output, sampling: everything that is no streamed layer's
    resident_saves_s: float  # how much less a layer takes that holds all its experts
    miss_s: float  # the host's work for one miss, reading apart
    disk: DiskTable

    def scaled(self, compute: float, host: float, disk: DiskTable) -> TokenCosts:
        """Of a machine that computes in `compute` of the time, and whose host takes `host` of it."""
        return replace(
            self,
            layer_s={layer: compute * seconds for layer, seconds in self.layer_s.items()},
            outside_s=compute * self.outside_s,
            resident_saves_s=compute * self.resident_saves_s,
            miss_s=host * self.miss_s,
            disk=disk,
        )


NO_COSTS = TokenCosts(layer_s={}, outside_s=0.0, resident_saves_s=0.0, miss_s=0.0, disk=NO_TIME)
