"""A recorded run as a value: what each pass asked for and guessed; and the file that keeps it.

The file is gzip-compressed JSON.  Version 2 is `RouteTrace` in lists, the fields in order.  Version 1, which is still
read for its routes, had nothing but the experts of each pass.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from streaming_core.errors import TraceInvalid
from streaming_core.whole_file import replace_file

__all__ = ["Asked", "Guessed", "PassRecord", "RouteTrace", "Routes", "read_routes", "read_trace", "save_trace"]

Routes = list[dict[int, list[int]]]

_VERSION = 2
_LARGEST = 1 << 30  # bytes of JSON that a trace may unpack to
_LAYERS = 10_000
_COUNT = 1 << 32  # more than any model has experts or any pass has rows
_DIGITS = 4  # of a score: float16 has fewer


@dataclass(frozen=True, slots=True)
class Asked:
    """One call of a streamed layer."""

    layer: int
    experts: tuple[int, ...]  # distinct, in the order in which the layer planned them
    rows: tuple[int, ...] = ()  # of the call, for each expert; (): one each


@dataclass(frozen=True, slots=True)
class Guessed:
    """One guess, evaluated in the call of layer `at`.

    `at` == `layer`: just before the layer's own choice; `at` > `layer`: for the next pass.
    """

    at: int
    layer: int
    ranked: tuple[tuple[int, float], ...]  # the best first


@dataclass(slots=True)
class PassRecord:
    """One forward pass."""

    tokens: int
    counted: bool  # whether the run's statistics include it
    asked: list[Asked] = field(default_factory=list)
    guessed: list[Guessed] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteTrace:
    """A run, and the settings that what was recorded depends on."""

    fingerprint: str  # of the checkpoint
    experts: int
    top_k: int
    chunk: int  # tokens per prefill pass
    predict_kind: str
    predict_mult: float
    ahead: int
    passes: Sequence[PassRecord]

    @property
    def routes(self) -> Routes:
        return [{asked.layer: list(asked.experts) for asked in step.asked} for step in self.passes]

    @property
    def layers(self) -> frozenset[int]:
        """Those that were streamed: of others nothing was recorded."""
        return frozenset(asked.layer for step in self.passes for asked in step.asked)


def save_trace(path: Path, trace: RouteTrace) -> None:
    """In one step.  Raises TraceInvalid when it cannot be written."""
    document = {
        "version": _VERSION,
        "fingerprint": trace.fingerprint,
        "experts": trace.experts,
        "top_k": trace.top_k,
        "chunk": trace.chunk,
        "predict": [trace.predict_kind, trace.predict_mult, trace.ahead],
        "passes": [_packed_pass(step) for step in trace.passes],
    }
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    try:
        replace_file(path, gzip.compress(text.encode(), mtime=0))
    except OSError as err:
        raise TraceInvalid(f"{path}: {err.strerror}; name another file") from err


def _packed_pass(step: PassRecord) -> list[Any]:
    return [
        step.tokens,
        int(step.counted),
        [[asked.layer, asked.experts, asked.rows] for asked in step.asked],
        [
            [guess.at, guess.layer, [e for e, _ in guess.ranked], [round(s, _DIGITS) for _, s in guess.ranked]]
            for guess in step.guessed
        ],
    ]


def read_trace(path: Path, fingerprint: str) -> RouteTrace:
    """A saved trace.  Raises TraceInvalid on anything that `save_trace` cannot have written, and on version 1."""
    document = _document(path, fingerprint)
    if document["version"] == 1:
        raise TraceInvalid(
            f"{path}: an earlier version recorded neither lengths nor guesses; "
            "record it again with `mlx-autotune trace --save`"
        )
    try:
        return _trace(document)
    except _BROKEN as err:
        raise _no_trace(path, err) from err


def read_routes(path: Path, fingerprint: str) -> Routes:
    """The experts of each pass, of a trace of either version.  Raises TraceInvalid."""
    document = _document(path, fingerprint)
    try:
        return _trace(document).routes if document["version"] == _VERSION else _first_version(document)
    except _BROKEN as err:
        raise _no_trace(path, err) from err


_BROKEN = (ValueError, KeyError, TypeError, AttributeError, EOFError, RecursionError, zlib.error)


def _no_trace(path: Path, err: Exception) -> TraceInvalid:
    return TraceInvalid(f"{path}: not a trace of this program ({' '.join(str(err).split())[:200]})")


def _document(path: Path, fingerprint: str) -> dict[str, Any]:
    try:
        with gzip.open(path, "rb") as packed:
            text = packed.read(_LARGEST + 1)
        if len(text) > _LARGEST:
            raise ValueError("larger than any trace of this program")
        document: dict[str, Any] = json.loads(text, parse_constant=_no_constant)
        if document["version"] not in (1, _VERSION):
            raise ValueError(f"version {document['version']!r}; this program reads versions 1 and {_VERSION}")
        found = document["fingerprint"]
    except OSError as err:
        raise TraceInvalid(f"{path}: {err.strerror or err}; is it a file of `mlx-autotune trace --save`?") from err
    except _BROKEN as err:
        raise _no_trace(path, err) from err
    if found != fingerprint:
        raise TraceInvalid(
            f"{path}: recorded with another checkpoint; record it again with `mlx-autotune trace --save`"
        )
    return document


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of a trace")


def _first_version(document: dict[str, Any]) -> Routes:
    experts = document["experts"]
    routes = [{int(layer): [int(e) for e in asked] for layer, asked in step.items()} for step in document["passes"]]
    if not all(0 <= e < experts for step in routes for asked in step.values() for e in asked):
        raise ValueError("it names experts that the model does not have")
    return routes


def _trace(document: dict[str, Any]) -> RouteTrace:
    experts = _whole(document["experts"], _COUNT, low=1)
    kind, mult, ahead = document["predict"]
    if not isinstance(kind, str):
        raise TypeError("the kind of guess is no text")
    return RouteTrace(
        fingerprint=document["fingerprint"],
        experts=experts,
        top_k=_whole(document["top_k"], experts + 1, low=1),
        chunk=_whole(document["chunk"], _COUNT, low=1),
        predict_kind=kind,
        predict_mult=_number(mult),
        ahead=_whole(ahead, _LAYERS),
        passes=[_pass(each, experts) for each in _items(document["passes"])],
    )


def _pass(raw: Any, experts: int) -> PassRecord:
    tokens, counted, asked, guessed = raw
    step = PassRecord(_whole(tokens, _COUNT, low=1), bool(_whole(counted, 2)))
    for layer, named, rows in _items(asked):
        calls = Asked(_whole(layer, _LAYERS), _experts(named, experts), tuple(_whole(n, _COUNT, 1) for n in rows))
        if calls.rows and len(calls.rows) != len(calls.experts):
            raise ValueError("experts and rows of a call differ in number")
        step.asked.append(calls)
    for at, layer, named, scores in _items(guessed):
        ranked = zip(_experts(named, experts), map(_number, _items(scores)), strict=True)
        step.guessed.append(Guessed(_whole(at, _LAYERS), _whole(layer, _LAYERS), tuple(ranked)))
    return step


def _experts(raw: Any, experts: int) -> tuple[int, ...]:
    found = tuple(_whole(each, _COUNT) for each in _items(raw))
    if any(each >= experts for each in found):
        raise ValueError("it names experts that the model does not have")
    if len(set(found)) != len(found):
        raise ValueError("it names an expert twice in one call")
    return found


def _items(raw: Any) -> list[Any]:
    if not isinstance(raw, list):
        raise TypeError(f"a list is expected, not {type(raw).__name__}")
    return raw


def _whole(raw: Any, end: int, low: int = 0) -> int:
    if type(raw) is not int or not low <= raw < end:
        raise ValueError(f"a whole number from {low} below {end} is expected")
    return raw


def _number(raw: Any) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not abs(raw) < 1e9:
        raise ValueError("a number is expected")
    return float(raw)
