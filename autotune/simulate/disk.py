"""How long reads take, by size and by how many are in flight together."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["NO_TIME", "DiskTable"]


@dataclass(frozen=True, slots=True)
class DiskTable:
    """`points[read_bytes][together]` is how long so many reads of that size take when submitted at once."""

    points: Mapping[int, Mapping[int, float]]

    def seconds(self, read_bytes: int, together: int) -> float:
        """Straight lines between the points.  Beyond them: more bytes, and more reads than were ever in flight, take
        proportionally longer; fewer bytes take as long as the smallest read."""
        if together == 0:
            return 0.0
        sizes = sorted(self.points)
        at = [self._together(size, together) for size in sizes]
        if read_bytes >= sizes[-1]:
            return at[-1] * read_bytes / sizes[-1]
        return _between(sizes, at, read_bytes)

    def _together(self, size: int, together: int) -> float:
        row = self.points[size]
        counts = sorted(row)
        if together >= counts[-1]:
            return row[counts[-1]] * together / counts[-1]
        return _between(counts, [row[count] for count in counts], together)


NO_TIME = DiskTable({1: {1: 0.0}})


def _between(places: list[int], values: list[float], at: int) -> float:
    after = bisect_left(places, at)
    if after == 0:
        return values[0]
    share = (at - places[after - 1]) / (places[after] - places[after - 1])
    return values[after - 1] + share * (values[after] - values[after - 1])
