"""What read-ahead gains where reading takes about as long as computing: `python benchmarks/overlap.py`.

Makes a checkpoint of few large experts, reads past the page cache and lets every way of guessing take turns in shuffled
rounds, beside a recorded run replayed as the ceiling of any guess and the model with every layer resident.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from promises import decode_s

import streaming_core
from streaming_core import Settings
from streaming_core.models import default_cache_dir
from streaming_core.recording import RouteRecorder
from streaming_core.route_trace import Routes
from streaming_core.testing import CheckpointSpec, make_checkpoint, parse_size, prompts

Ways = Mapping[str, Mapping[str, Any]]


def ways(slots: int, min_score: float) -> Ways:
    """Settings by name."""
    base = {"residency.slots": slots, "residency.resident_layers": "none", "reading.page_cache": "bypass",
            "prefetch.depth": 64, "predict.mult": 2.0, "predict.min_score": min_score}  # fmt: skip

    def way(kind: str, backend: str, ahead: int, per_layer: int) -> dict[str, Any]:
        return base | {"predict.kind": kind, "prefetch.backend": backend, "prefetch.ahead": ahead,
                       "prefetch.per_layer": per_layer, "prefetch.window": ahead + 1}  # fmt: skip

    found: dict[str, dict[str, Any]] = {
        "resident": {"residency.slots": "all", "residency.resident_layers": "all"},
        "none": base,
    }
    for kind, aheads in (("oracle", (1, 2)), ("gate", (0, 1, 2)), ("gate_input", (1, 2)), ("cascade", (1,)),
                         ("frequency", (1,))):  # fmt: skip
        for ahead in aheads:
            found[f"{kind} {ahead} stage"] = way(kind, "stage", ahead, 3)
            found[f"{kind} {ahead} slots"] = way(kind, "slots", ahead, 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--top-k", type=int, default=2)
    parser.add_argument("--expert-width", type=int, default=2048)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--min-score", type=float, default=0.1)
    parser.add_argument("--only", nargs="*", default=[], help="ways beside resident and none, such as 'gate 1 stage'")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=30, help="tokens decoded in a round")
    parser.add_argument("--cache-dir", type=Path, default=default_cache_dir())
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    spec = replace(parse_size("demo"), experts=args.experts, top_k=args.top_k, expert_width=args.expert_width,
                   expert_bits=None, name=f"overlap-{args.experts}-{args.top_k}-{args.expert_width}")  # fmt: skip
    chosen = ways(args.slots, args.min_score)
    if strangers := set(args.only) - chosen.keys():
        parser.error(f"--only: {sorted(strangers)[0]} is none of {', '.join(chosen)}")
    if args.only:
        chosen = {name: chosen[name] for name in ("resident", "none", *args.only)}
    results = measure(made(spec, args.cache_dir), chosen, args)
    print(json.dumps(results) if args.json else table(results))


def made(spec: CheckpointSpec, cache_dir: Path) -> Path:
    folder = cache_dir / "models" / spec.name
    return folder if (folder / "config.json").exists() else make_checkpoint(folder, spec)


def measure(folder: Path, chosen: Ways, args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    text = " ".join(prompts(12, 90, seed=0))
    recorder = RouteRecorder()
    run(folder, chosen["none"], args, text, recorder=recorder)
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in chosen}
    for number in range(args.rounds):
        for name in random.Random(number).sample(sorted(chosen), len(chosen)):
            runs[name].append(run(folder, chosen[name], args, text, oracle=recorder.routes))
    return {
        name: {key: statistics.median(row[key] for row in rows) for key in rows[0]}
        | {"to_none": statistics.median(b["token_s"] / r["token_s"] for b, r in zip(runs["none"], rows, strict=True)),
           "lowest_s": min(row["token_s"] for row in rows), "highest_s": max(row["token_s"] for row in rows)}
        for name, rows in runs.items()
    }  # fmt: skip


def run(
    folder: Path,
    values: Mapping[str, Any],
    args: argparse.Namespace,
    text: str,
    *,
    recorder: RouteRecorder | None = None,
    oracle: Routes | None = None,
) -> dict[str, float]:
    with streaming_core.load(folder, Settings().with_values(values), cache_dir=args.cache_dir, oracle=oracle) as model:
        if recorder is not None:
            model.record(recorder)
        tokens: Sequence[int] = model.tokenizer.encode(text)
        token_s = decode_s(model, list(tokens[:30]), list(tokens[30:]), args.tokens)
        stats = model.stats()
    passes = max(1, stats.passes)  # none are counted where every layer is resident
    return {
        "token_s": token_s,
        "waited_s": stats.wait_s / passes,
        "missed_bytes": stats.demand_bytes / passes,
        "guessed": stats.guessed / passes,
        "used": stats.guesses_used / passes,
    }


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    compute, read = results["resident"]["token_s"], results["none"]["waited_s"]
    ideal = max(compute, read)
    heads = ["ms", "lowest", "highest", "to-none", "of-ideal", "waited", "guesses", "used"]
    rows = [f"compute {1e3 * compute:.1f} ms, read {1e3 * read:.1f} ms a token; ideal is the larger of the two"]
    rows.append(f"{'':<20}" + "".join(f"{head:>9}" for head in heads))
    for name, row in sorted(results.items(), key=lambda item: item[1]["token_s"]):
        times = (row["token_s"], row["lowest_s"], row["highest_s"])
        shares = (row["to_none"], ideal / row["token_s"])
        counts = (1e3 * row["waited_s"], row["guessed"], row["used"])
        rows.append(
            f"{name:<20}"
            + "".join(f"{1e3 * value:>9.1f}" for value in times)
            + "".join(f"{value:>9.3f}" for value in shares)
            + "".join(f"{value:>9.1f}" for value in counts)
        )
    return "\n".join(rows)


if __name__ == "__main__":
    main()
