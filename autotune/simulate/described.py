"""A machine that is not here, as a YAML file describes it.

hardware: {system: darwin, chip: Apple M3 Max, cores: 14, memory: "64GiB", page: "16KiB", backend: metal}
compute: 0.2          # of the time that this machine computes
host: 0.6             # of the time that this machine's processor takes for a miss; 1 if it is not there
disk:                 # of the reader in use: bytes of a read, how many in flight, what that reaches
  - {read: "2MiB", in_flight: 1, gb_per_s: 2.9}
  - {read: "2MiB", in_flight: 4, gb_per_s: 6.1}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from autotune.errors import RequestInvalid
from autotune.simulate.disk import DiskTable
from streaming_core.errors import AutotuneError
from streaming_core.hardware import Hardware
from streaming_core.units import parse_size

__all__ = ["Described", "read_described"]

_LARGEST = 1 << 20
_KEYS = ("hardware", "compute", "host", "disk")
_ROW = ("read", "in_flight", "gb_per_s")


@dataclass(frozen=True, slots=True)
class Described:
    """`compute` and `host` are shares of this machine's times."""

    hardware: Hardware
    compute: float
    host: float
    disk: DiskTable


def read_described(path: Path) -> Described:
    """Raises RequestInvalid, or ProfileInvalid from `hardware`: file, key and what would be right."""
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST + 1)
        if len(text) > _LARGEST:
            raise RequestInvalid(f"{path}: too large to describe a machine; give another file")
        raw = yaml.safe_load(text)
    except OSError as err:
        raise RequestInvalid(f"{path}: {err.strerror}; --hardware takes a YAML file that describes a machine") from err
    except (yaml.YAMLError, ValueError, RecursionError) as err:
        reason = " ".join(str(err).split())[:200]
        raise RequestInvalid(f"{path}: not YAML: {reason}; correct the file") from err
    try:
        return _described(raw, path)
    except RequestInvalid:
        raise
    except AutotuneError as err:
        text_of = str(err)
        raise RequestInvalid(text_of if str(path) in text_of else f"{path}: {text_of}") from err


def _described(raw: Any, path: Path) -> Described:
    mapping = _mapping(raw, _KEYS, ("hardware", "compute", "disk"), str(path))
    points: dict[int, dict[int, float]] = {}
    rows = mapping["disk"]
    if not isinstance(rows, list) or not rows:
        raise RequestInvalid(f"{path}: disk must be a list of at least one row with {', '.join(_ROW)}, got {rows!r}")
    for number, row in enumerate(rows, 1):
        where = f"{path}: disk row {number}"
        found = _mapping(row, _ROW, _ROW, where)
        if not isinstance(found["read"], str):
            raise RequestInvalid(f'{where}: read must be a size in quotes such as "2MiB", got {found["read"]!r}')
        size = parse_size(found["read"], f"{where}: read")
        together = found["in_flight"]
        if isinstance(together, bool) or not isinstance(together, int) or not 1 <= together <= 4096:
            raise RequestInvalid(f"{where}: in_flight must be a whole number from 1 to 4096, got {together!r}")
        speed = _positive(found["gb_per_s"], f"{where}: gb_per_s")
        points.setdefault(size, {})[together] = size * together / (speed * 1e9)
    return Described(
        hardware=Hardware.from_mapping(mapping["hardware"], f"{path}: hardware"),
        compute=_positive(mapping["compute"], f"{path}: compute"),
        host=_positive(mapping.get("host", 1.0), f"{path}: host"),
        disk=DiskTable(points),
    )


def _mapping(raw: Any, known: tuple[str, ...], required: tuple[str, ...], where: str) -> Mapping[str, Any]:
    if not isinstance(raw, Mapping):
        raise RequestInvalid(f"{where}: a mapping with {', '.join(known)} is expected, got {type(raw).__name__}")
    for key in raw:
        if key not in known:
            raise RequestInvalid(f"{where}: unknown key {key!r}; known: {', '.join(known)}")
    for key in required:
        if key not in raw:
            raise RequestInvalid(f"{where}: {key} is missing; needed: {', '.join(required)}")
    return raw


def _positive(raw: Any, where: str) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not 1e-6 <= raw <= 1e6:
        raise RequestInvalid(f"{where} must be a positive number, got {raw!r}")
    return float(raw)
