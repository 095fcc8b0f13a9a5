"""Checks on plain data that somebody may have typed by hand.  Every message starts with where the fault is."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from streaming_core.errors import ProfileInvalid

__all__ = ["check_keys", "mapping_at", "plain", "text_at"]

_DEEPEST = 32


def check_keys(mapping: Mapping[Any, Any], known: Sequence[str], required: Sequence[str], where: str) -> None:
    """Raises ProfileInvalid on a key that is not known, with the nearest that is, and on one that is missing."""
    for key in mapping:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.0)[0]
            raise ProfileInvalid(f"{where}: unknown key {key!r}; did you mean {near!r}? Known: {', '.join(known)}")
    for key in required:
        if key not in mapping:
            raise ProfileInvalid(f"{where}: {key} is missing; needed: {', '.join(required)}")


def mapping_at(value: object, where: str) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise ProfileInvalid(f"{where}: must be a mapping of names to values, got {_kind(value)}")
    return value


def text_at(mapping: Mapping[Any, Any], key: str, where: str) -> str:
    """A value that must be text.  YAML reads 1.10 as 1.1, off as False and 2026-01-31 as a date unless quoted."""
    value = mapping[key]
    if not isinstance(value, str):
        raise ProfileInvalid(f"{where}: {key} must be text in quotes, got {value!r} ({_kind(value)})")
    return value


def plain(value: Any, where: str, depth: int = 0) -> Any:
    """A deep copy in dicts, lists, text, numbers, booleans and None.  Raises ProfileInvalid on anything else."""
    if depth > _DEEPEST:
        raise ProfileInvalid(f"{where}: nested more than {_DEEPEST} deep; flatten it")
    if value is None or type(value) in (bool, int, float):
        return value
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ProfileInvalid(f"{where}: text that is not Unicode cannot be written, got {value!r}") from None
        return str(value)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ProfileInvalid(f"{where}: key {key!r} must be text in quotes")
        return {plain(key, where): plain(item, f"{where}.{key}", depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{where}[{at}]", depth + 1) for at, item in enumerate(value)]
    raise ProfileInvalid(f"{where}: must be numbers, text, lists or mappings, got {value!r} ({_kind(value)})")


def _kind(value: object) -> str:
    return "nothing" if value is None else type(value).__name__
