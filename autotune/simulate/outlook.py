"""What many settings would do on this machine, in a process of its own: `python -m autotune.simulate.outlook`.

Records one run, measures what a layer, a miss and a read take, and simulates each of the settings.  Reads one JSON
object from standard input and writes one JSON line: predicted tokens per second, null where it cannot tell.  It ends
when its standard input does.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from autotune.prepare import Place, outline_of, plan_of, read_bytes_of
from autotune.workload import Workload
from streaming_core.errors import AutotuneError, BudgetTooSmall
from streaming_core.hardware import detect
from streaming_core.settings import Settings

__all__ = ["KINDS", "Outlook", "predicted_tps"]

KINDS = ("gate_input", "frequency")  # of guesses that one recorded run tells about
_TOKENS = 24  # decoded to learn what computing takes
_PASSAGES, _PROMPT, _WARMUP, _DECODED = 2, 32, 8, 32  # of the recorded run, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """The question.  Settings are nested plain values; `base` is what the recorded run and the measurements use."""

    model: str
    cache_dir: Path
    workload: Workload
    base: Mapping[str, Any]
    candidates: Sequence[Mapping[str, Any]]
    limit_s: float  # for the simulations; later candidates stay unknown

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "cache_dir": str(self.cache_dir), "workload": self.workload.to_json()}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Outlook:
        return cls(
            **{**raw, "cache_dir": Path(raw["cache_dir"]), "workload": Workload.from_json(raw["workload"])},
        )


def predicted_tps(asked: Outlook) -> list[float | None]:
    """Raises RequestInvalid where computing cannot be told from reading, and what `load` does."""
    from autotune.simulate.measure import ComputeTimes, ReadTimes, costs_of, measure_compute, measure_reads
    from autotune.simulate.record import record_workload
    from autotune.simulate.replay import simulate

    place = Place(detect(), asked.cache_dir)
    outline = outline_of(asked.model, place)
    base = Settings.from_mapping(asked.base)
    kind = KINDS[0] if KINDS[0] in outline.guess_kinds else "none"
    recording = base.with_values(
        {"residency.resident_layers": "none", "predict.kind": kind, "prefetch.backend": "none"}
    )
    trace = record_workload(outline, recording, _short(asked.workload), place)
    read_bytes = read_bytes_of(outline, base, place)

    @cache
    def compute_of(kind: str) -> ComputeTimes:
        guessing = kind if kind == KINDS[0] else "none"  # the others cost next to nothing
        return measure_compute(outline, base.with_values({"predict.kind": guessing}), place, tokens=_TOKENS)

    @cache
    def reads_of(page_cache: str, policy: str) -> ReadTimes:
        changed = {"reading.page_cache": page_cache, "residency.policy": policy}
        return measure_reads(outline, base.with_values(changed), place)

    found: list[float | None] = []
    spent = 0.0
    for values in asked.candidates:
        settings = Settings.from_mapping(values)
        if spent > asked.limit_s:
            found.append(None)
            continue
        try:
            plan = plan_of(outline, settings, place)
        except BudgetTooSmall:
            found.append(None)
            continue
        kind = settings.predict.kind if settings.prefetch.backend != "none" else "none"
        costs = costs_of(compute_of(kind), reads_of(settings.reading.page_cache, settings.residency.policy))
        started = time.perf_counter()
        simulated = simulate(trace, settings, plan, read_bytes, costs)
        spent += time.perf_counter() - started
        found.append(simulated.tokens / simulated.seconds if simulated.seconds else None)
    return found


def _short(workload: Workload) -> Workload:
    return replace(
        workload,
        passages=workload.passages[:_PASSAGES],
        prompt_tokens=min(workload.prompt_tokens, _PROMPT),
        warmup_tokens=min(workload.warmup_tokens, _WARMUP),
        decode_tokens=min(workload.decode_tokens, _DECODED),
    )


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


def main() -> int:
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # MLX, tokenizers and friends print
    asked = Outlook.from_json(json.loads(sys.stdin.readline()))
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    try:
        found: dict[str, Any] = {"tps": predicted_tps(asked)}
    except AutotuneError as err:
        found = {"error": str(err)}
    replies.write(json.dumps(found) + "\n")
    replies.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
