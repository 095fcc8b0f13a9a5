"""Sets of MoE layers, written `"1-7,10-16"`, `"all"` or `"none"`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from streaming_core.errors import SettingsError

__all__ = ["LayerSet"]

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


@dataclass(frozen=True, slots=True)
class LayerSet:
    """A set of decoder-layer numbers; `None` stands for every layer."""

    layers: frozenset[int] | None = frozenset()

    @classmethod
    def of(cls, layers: Iterable[int]) -> LayerSet:
        return cls(frozenset(layers))

    @classmethod
    def parse(cls, text: str, name: str = "layers") -> LayerSet:
        """Raises SettingsError on anything but `all`, `none` or comma-separated numbers and ranges."""
        text = text.strip()
        if text == "all":
            return cls(None)
        if text in ("none", ""):
            return cls()
        found: set[int] = set()
        for piece in text.split(","):
            match = _RANGE.fullmatch(piece.strip())
            if match is None:
                raise SettingsError(f'{name} must be "all", "none" or ranges such as "1-7,10-16", got {text!r}')
            first = int(match[1])
            last = int(match[2] or first)
            if last < first or last > 9999:
                raise SettingsError(f"{name}: range {piece.strip()!r} runs backwards or past 9999")
            found.update(range(first, last + 1))
        return cls(frozenset(found))

    def __contains__(self, layer: int) -> bool:
        return self.layers is None or layer in self.layers

    def __str__(self) -> str:
        if self.layers is None:
            return "all"
        if not self.layers:
            return "none"
        runs: list[list[int]] = []
        for layer in sorted(self.layers):
            if runs and layer == runs[-1][1] + 1:
                runs[-1][1] = layer
            else:
                runs.append([layer, layer])
        return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
