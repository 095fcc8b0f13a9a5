"""What the router asked for and what was guessed, pass by pass: kept, counted, saved and read back.

A saved trace is gzip-compressed JSON: version, fingerprint of the checkpoint, experts, and per pass the experts that
each streamed layer asked for.
"""

from __future__ import annotations

import gzip
import json
import os
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from streaming_core.errors import TraceInvalid
from streaming_core.reading import Read, Ticket, Urgency

__all__ = [
    "GuessRecord",
    "NullRecorder",
    "ReadTimes",
    "Recorder",
    "RouteRecorder",
    "Routes",
    "read_routes",
    "save_routes",
]

Routes = list[dict[int, list[int]]]

_VERSION = 1
_LARGEST = 1 << 30  # bytes of JSON that a trace may unpack to


class Recorder(Protocol):
    """Told by the engine what happens."""

    def begins_pass(self, tokens: int) -> None: ...
    def guessed(self, layer: int, ranked: Sequence[tuple[int, float]]) -> None: ...
    def asked(self, layer: int, experts: Sequence[int]) -> None: ...
    def submitted(self, ticket: Ticket, reads: Sequence[Read], urgency: Urgency) -> None: ...


class NullRecorder:
    """Keeps nothing."""

    def begins_pass(self, tokens: int) -> None:
        return

    def guessed(self, layer: int, ranked: Sequence[tuple[int, float]]) -> None:
        return

    def asked(self, layer: int, experts: Sequence[int]) -> None:
        return

    def submitted(self, ticket: Ticket, reads: Sequence[Read], urgency: Urgency) -> None:
        return


@dataclass(slots=True)
class GuessRecord:
    """How one layer's guesses did, in passes of one token."""

    asked: int = 0  # experts asked for in passes that had a guess
    ranks: list[int] = field(default_factory=list)  # place in the guess, from 0, of each asked expert that was in it
    windows_s: list[float] = field(default_factory=list)  # from acting on a guess to the call it was made for

    def recall(self, width: int) -> float | None:
        """Share of the asked experts among the first `width` candidates; None if there was no guess."""
        return sum(rank < width for rank in self.ranks) / self.asked if self.asked else None


@dataclass(slots=True)
class ReadTimes:
    """How long tickets took: all reads of one demand, or one guessed expert.  Cancelled ones are not counted."""

    tickets: int = 0
    queue_s: float = 0.0  # sum of the times from submission to begin
    queue_max_s: float = 0.0
    read_s: float = 0.0  # sum of the times from begin to end
    read_max_s: float = 0.0

    def add(self, ticket: Ticket) -> None:
        self.tickets += 1
        self.queue_s += ticket.queue_s
        self.queue_max_s = max(self.queue_max_s, ticket.queue_s)
        self.read_s += ticket.read_s
        self.read_max_s = max(self.read_max_s, ticket.read_s)


class RouteRecorder:
    """Keeps every choice, and in passes of one token the times of reads and how the choice compares with the guess.

    A prompt's chunk asks for so many experts that neither would say anything about decoding.
    """

    def __init__(self) -> None:
        self.routes: Routes = []
        self.guesses: dict[int, GuessRecord] = {}
        self._pending: dict[int, tuple[list[int], float]] = {}
        self._decodes = False
        self._reads: dict[tuple[int, Urgency], ReadTimes] = {}
        self._tickets: list[tuple[int, Urgency, Ticket]] = []  # not counted yet

    def begins_pass(self, tokens: int) -> None:
        self.routes.append({})
        self._pending.clear()
        self._decodes = tokens == 1
        self._count_tickets()

    def submitted(self, ticket: Ticket, reads: Sequence[Read], urgency: Urgency) -> None:
        if self._decodes and reads:
            self._tickets.append((reads[0].layer, urgency, ticket))

    def read_times(self, layer: int, urgency: Urgency) -> ReadTimes:
        """Of the reads of `layer` that began as `urgency` and have ended."""
        self._count_tickets()
        return self._reads.get((layer, urgency), ReadTimes())

    def _count_tickets(self) -> None:
        under_way = []
        for layer, urgency, ticket in self._tickets:
            if not ticket.done:
                under_way.append((layer, urgency, ticket))
            elif not ticket.cancelled:
                self._reads.setdefault((layer, urgency), ReadTimes()).add(ticket)
        self._tickets = under_way

    def guessed(self, layer: int, ranked: Sequence[tuple[int, float]]) -> None:
        if self._decodes:
            self._pending[layer] = ([expert for expert, _ in ranked], time.perf_counter())

    def asked(self, layer: int, experts: Sequence[int]) -> None:
        if self.routes:
            self.routes[-1][layer] = list(experts)
        pending = self._pending.pop(layer, None)
        if pending is None:
            return
        candidates, made_at = pending
        record = self.guesses.setdefault(layer, GuessRecord())
        record.asked += len(experts)
        place = {expert: rank for rank, expert in enumerate(candidates)}
        record.ranks += [place[expert] for expert in experts if expert in place]
        record.windows_s.append(time.perf_counter() - made_at)


def save_routes(path: Path, routes: Sequence[Mapping[int, Sequence[int]]], fingerprint: str, experts: int) -> None:
    """Writes to a temporary name beside `path`, syncs and renames.  Raises TraceInvalid when it cannot be written."""
    document = {
        "version": _VERSION,
        "fingerprint": fingerprint,
        "experts": experts,
        "passes": [{str(layer): list(asked) for layer, asked in step.items()} for step in routes],
    }
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as raw:
            with gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0) as packed:
                packed.write(json.dumps(document, separators=(",", ":")).encode())
            raw.flush()
            os.fsync(raw.fileno())
        os.replace(temporary, path)
    except OSError as err:
        temporary.unlink(missing_ok=True)
        raise TraceInvalid(f"{path}: {err.strerror}; name another file") from err


def read_routes(path: Path, fingerprint: str) -> Routes:
    """The passes of a saved trace.  Raises TraceInvalid on anything that `save_routes` cannot have written."""
    try:
        with gzip.open(path, "rb") as packed:
            text = packed.read(_LARGEST + 1)
        if len(text) > _LARGEST:
            raise ValueError("larger than any trace of this program")
        document = json.loads(text)
        if document["version"] != _VERSION:
            raise ValueError(f"version {document['version']!r}; this program reads version {_VERSION}")
        experts = document["experts"]
        routes = [{int(layer): [int(e) for e in asked] for layer, asked in step.items()} for step in document["passes"]]
        if not all(0 <= e < experts for step in routes for asked in step.values() for e in asked):
            raise ValueError("it names experts that the model does not have")
        found = document["fingerprint"]
    except OSError as err:
        raise TraceInvalid(f"{path}: {err.strerror or err}; is it a file of `mlx-autotune trace --save`?") from err
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, RecursionError, zlib.error) as err:
        raise TraceInvalid(f"{path}: not a trace of this program ({err})") from err
    if found != fingerprint:
        raise TraceInvalid(
            f"{path}: recorded with another checkpoint; record it again with `mlx-autotune trace --save`"
        )
    return routes
