"""Sizes as people write them, and back.  Binary units only: 1 GiB = 2**30 bytes."""

from __future__ import annotations

import re

from streaming_core.errors import SettingsError

__all__ = ["GIB", "KIB", "MIB", "exact_size", "format_size", "parse_size", "round_up"]

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

_FACTORS = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": 1 << 40}
_DECIMAL = {"kb": "KiB", "mb": "MiB", "gb": "GiB", "tb": "TiB", "k": "KiB", "m": "MiB", "g": "GiB", "t": "TiB"}
_DIGITS = 40  # more than that is no size, and past 300 no number
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_size(text: str, name: str = "size") -> int:
    """Bytes of `"1.5GiB"`.

    Raises:
        SettingsError: no number, or a unit other than B, KiB, MiB, GiB, TiB.  `GB` is refused rather
            than guessed, since half of the world means 10**9 by it.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise SettingsError(f'{name} must be a size such as "1.5GiB", got {text!r}')
    number, unit = match.groups()
    if len(number) > _DIGITS:
        raise SettingsError(f'{name} must be a size such as "1.5GiB", got one of {len(number)} digits')
    for known, factor in _FACTORS.items():
        if unit.lower() == known.lower():
            return int(float(number) * factor)
    hint = _DECIMAL.get(unit.lower())
    advice = f'write "{number}{hint}"' if hint else "use B, KiB, MiB, GiB or TiB"
    raise SettingsError(f"{name} needs a binary unit, got {text!r}; {advice}")


def format_size(nbytes: int) -> str:
    """`1610612736 -> "1.5GiB"`: the shortest text with at most two decimals, readable by `parse_size`."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if nbytes >= _FACTORS[unit]:
            return f"{nbytes / _FACTORS[unit]:.2f}".rstrip("0").rstrip(".") + unit
    return f"{nbytes}B"


def exact_size(nbytes: int) -> str:
    """Like `format_size`, but never rounds: falls to a smaller unit until the number is whole."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if nbytes and nbytes % _FACTORS[unit] == 0:
            return f"{nbytes // _FACTORS[unit]}{unit}"
    return f"{nbytes}B"


def round_up(nbytes: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `nbytes`."""
    return -(-nbytes // multiple) * multiple
