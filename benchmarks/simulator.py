"""Predicted beside measured decoding speed: `python benchmarks/simulator.py`.

Records one run, measures what a layer, a miss and a read take, predicts every setting of the list, then runs each of
them on the same forced tokens in shuffled order.  Counts must be equal where nothing is guessed.  Prints Spearman's
rank correlation, the median error, and how many settings a minute are simulated.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import streaming_core
from autotune.prepare import Place, outline_of, pack_store, read_bytes_of
from autotune.replay import ForcedTokens
from autotune.simulate import Simulated, simulate
from autotune.simulate.measure import ComputeTimes, ReadTimes, costs_of, measure_compute, measure_reads
from autotune.simulate.record import trace_of
from streaming_core import Settings
from streaming_core.hardware import detect
from streaming_core.models import default_cache_dir
from streaming_core.recording import RouteRecorder
from streaming_core.residency.memory import MemoryPlan
from streaming_core.route_trace import RouteTrace
from streaming_core.testing import prompts
from streaming_core.trace import Stats

PROMPT = 40
NOTHING_RESIDENT = {"residency.resident_layers": "none"}


def wanted(top_k: int, experts: int) -> list[dict[str, Any]]:
    """Settings from next to nothing in memory to everything."""

    def slots(*shares: float) -> list[int]:
        return sorted({max(top_k, min(experts, round(share * experts))) for share in shares})

    found: list[dict[str, Any]] = []
    for count in slots(0.06, 0.1, 0.15, 0.2, 0.3, 0.4, 0.55, 0.75, 1.0):
        found += [
            {"residency.slots": count, "residency.policy": policy, "reading.page_cache": cache}
            for policy in ("lru", "lfu")
            for cache in ("keep", "bypass")
        ]
    found += [{"residency.slots": count, "reading.threads": 1} for count in slots(0.1, 0.25, 0.5)]
    found += [{"residency.slots": count, "residency.resident_layers": 4} for count in slots(0.1, 0.4)]
    for backend in ("stage", "slots"):
        guessing = {"predict.kind": "gate_input", "prefetch.backend": backend, "prefetch.per_layer": top_k}
        found += [{"residency.slots": count, **guessing} for count in slots(0.15, 0.4)]
        found.append({"residency.slots": slots(0.2)[0], "reading.page_cache": "bypass", **guessing})
    return [{**NOTHING_RESIDENT, **values} for values in found]


@dataclass(slots=True)
class Row:
    """One setting."""

    values: dict[str, Any]
    settings: Settings
    plan: MemoryPlan
    predicted: float = 0.0
    simulated: Simulated | None = None
    measured: list[float] = field(default_factory=list)
    exact: bool = True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--tokens", type=int, default=48, help="decoded and counted (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="of all settings (default: %(default)s)")
    parser.add_argument("--cache-dir", type=Path, default=default_cache_dir())
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    place = Place(detect(), args.cache_dir)
    outline = outline_of(args.model, place)
    pack_store(outline, place, Settings())
    texts = prompts(6, 200, seed=11)

    def decode(settings: Settings) -> tuple[Stats, float, RouteTrace]:
        recorder = RouteRecorder()
        with streaming_core.load(outline.folder, settings, cache_dir=args.cache_dir) as model:
            model.record(recorder)
            tokens = model.tokenizer.encode(" ".join(texts))
            forced = tokens[PROMPT : PROMPT + args.tokens + 2]
            recorder.counting = False
            stream = model.stream(tokens[:PROMPT], len(forced), sampler=ForcedTokens(forced))
            next(stream)
            recorder.counting = True
            model.reset_stats()
            seconds = []
            for _ in range(args.tokens):
                started = time.perf_counter()
                next(stream)
                seconds.append(time.perf_counter() - started)
            # Of the middle token: one that another process disturbed does not count.
            return model.stats(), 1 / statistics.median(seconds), trace_of(model, recorder)

    @cache
    def recorded(kind: str) -> RouteTrace:
        values = {**NOTHING_RESIDENT, "residency.slots": "all", "predict.kind": kind}
        return decode(Settings().with_values(values))[2]

    @cache
    def compute_of(kind: str) -> ComputeTimes:
        return measure_compute(outline, Settings().with_values({"predict.kind": kind}), place)

    @cache
    def reads_of(reading: Any, policy: str, half_life: int) -> ReadTimes:
        changes = {"residency.policy": policy, "residency.half_life": half_life}
        changes |= {"reading.threads": reading.threads, "reading.page_cache": reading.page_cache}
        return measure_reads(outline, Settings().with_values(changes), place)

    rows = []
    spent = 0.0
    for values in wanted(outline.top_k, outline.experts):
        settings = Settings().with_values(values)
        row = Row(values, settings, streaming_core.plan(outline, settings, place.machine))
        trace, read_bytes = recorded(settings.predict.kind), read_bytes_of(outline, settings, place)
        costs = costs_of(
            compute_of(settings.predict.kind),
            reads_of(settings.reading, settings.residency.policy, settings.residency.half_life),
        )
        started = time.perf_counter()
        row.simulated = simulate(trace, settings, row.plan, read_bytes, costs)
        spent += time.perf_counter() - started
        row.predicted = 1 / statistics.median(each.seconds for each in row.simulated.passes if each.counted)
        rows.append(row)
    print(f"{len(rows)} settings simulated in {spent:.2f} s; now they are run", file=sys.stderr)
    for number in range(args.rounds):
        for row in random.Random(number).sample(rows, len(rows)):
            stats, tps, _ = decode(row.settings)
            row.measured.append(tps)
            if row.settings.predict.kind == "none":
                assert row.simulated is not None
                ours = [row.simulated.total(name) for name in ("hits", "misses", "demand_bytes")]
                row.exact &= ours == [stats.hits, stats.misses, stats.demand_bytes]
    report(rows, 60 * len(rows) / spent, as_json=args.json)


def report(rows: Sequence[Row], per_minute: float, *, as_json: bool) -> None:
    measured = [statistics.median(row.measured) for row in rows]
    predicted = [row.predicted for row in rows]
    errors = [abs(p / m - 1) for p, m in zip(predicted, measured, strict=True)]
    found = {
        "settings": len(rows),
        "counts_exact": sum(row.exact for row in rows if row.settings.predict.kind == "none"),
        "of": sum(row.settings.predict.kind == "none" for row in rows),
        "spearman": spearman(predicted, measured),
        "median_error": statistics.median(errors),
        "simulated_per_minute": per_minute,
    }
    if as_json:
        each = [{"set": row.values, "predicted": row.predicted, "measured": row.measured} for row in rows]
        print(json.dumps({**found, "rows": each}))
        return
    print(f"{'predicted':>10} {'measured':>10} {'error':>7}  settings")
    for row, p, m in sorted(zip(rows, predicted, measured, strict=True), key=lambda each: each[2]):
        text = " ".join(f"{key.partition('.')[2]}={value}" for key, value in row.values.items())
        print(f"{p:10.2f} {m:10.2f} {p / m - 1:7.1%}  {text.removeprefix('resident_layers=none ')}")
    print(
        f"{found['counts_exact']} of {found['of']} settings without guesses counted exactly; Spearman "
        f"{found['spearman']:.3f}, median error {found['median_error']:.1%}, {per_minute:.0f} simulated a minute"
    )


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    return statistics.correlation(ranks(one), ranks(other))


def ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    place = {index: float(rank) for rank, index in enumerate(order)}
    return [place[index] for index in range(len(values))]


if __name__ == "__main__":
    main()
