"""What streaming costs when nothing is missing, and what it reaches when something is: `python benchmarks/overhead.py`.

Every variant decodes the same forced tokens; variants take turns in shuffled order, so drift hits all of them alike.
Prints medians over rounds, their spread, and the ratio to plain mlx-lm of the same round.  Plain mlx-lm takes part
twice: what its second turn is off by is what the comparison cannot tell.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm

import streaming_core
from streaming_core import Settings
from streaming_core.models import default_cache_dir, resolve_model
from streaming_core.testing import prompts

Decode = Callable[[list[int], Callable[[mx.array], mx.array]], Iterator[Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=80, help="tokens decoded per variant and round")
    parser.add_argument("--warm-up", type=int, default=16, help="tokens decoded before the clock starts")
    parser.add_argument("--variant", action="append", default=[], metavar="NAME:KEY=VALUE,...", help="further settings")
    parser.add_argument("--cache-dir", type=Path, default=default_cache_dir())
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    source = resolve_model(args.model, cache_dir=args.cache_dir)
    plain, tokenizer = mlx_lm.load(str(source.folder))

    def decode_plain(prompt: list[int], sampler: Callable[[mx.array], mx.array]) -> Iterator[Any]:
        yield from mlx_lm.stream_generate(
            plain, tokenizer, prompt, max_tokens=args.warm_up + args.tokens, sampler=sampler
        )

    variants: dict[str, Decode] = {"plain mlx-lm": decode_plain, "plain again": decode_plain}
    models = {name: load(source.folder, settings, args.cache_dir) for name, settings in wanted(args.variant).items()}
    for name, model in models.items():
        variants[name] = lambda prompt, sampler, m=model: m.stream(prompt, args.warm_up + args.tokens, sampler=sampler)
    results = measure(variants, tokenizer, args, models)
    for model in models.values():
        model.close()
    print(json.dumps(results) if args.json else table(results))


def wanted(texts: list[str]) -> dict[str, Settings]:
    """Settings by name: the built-in comparisons, then those of the command line."""
    found = {
        "all in slots": {"residency.slots": "all", "residency.resident_layers": "none"},
        "all resident": {"residency.resident_layers": "all", "residency.slots": "all"},
    }
    for text in texts:
        name, _, pairs = text.partition(":")
        found[name] = {
            k: json.loads(v) if v.isdigit() else v for k, _, v in (p.partition("=") for p in pairs.split(","))
        }
    return {name: Settings().with_values(values) for name, values in found.items()}


def load(folder: Path, settings: Settings, cache_dir: Path) -> streaming_core.StreamedModel:
    return streaming_core.load(folder, settings, cache_dir=cache_dir)


def measure(
    variants: dict[str, Decode], tokenizer: Any, args: argparse.Namespace, models: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    rates: dict[str, list[float]] = {name: [] for name in variants}
    for round_number in range(args.rounds + 1):  # the first one warms up
        texts = prompts(8, 100, seed=round_number)
        prompt = tokenizer.encode(texts[0])[:40]
        forced = tokenizer.encode(" ".join(texts[1:]))
        for name in random.Random(round_number).sample(sorted(variants), len(variants)):
            if name in models:
                models[name].reset_stats()
            rate = decode_rate(variants[name], prompt, forced, args.warm_up)
            if round_number:
                rates[name].append(rate)
    plain = rates["plain mlx-lm"]
    results: dict[str, dict[str, Any]] = {}
    for name, values in rates.items():
        ratios = [value / base for value, base in zip(values, plain, strict=True)]
        results[name] = {
            "tokens_per_s": statistics.median(values), "lowest": min(values), "highest": max(values),
            "ratio": statistics.median(ratios), "ratios": ratios,
        }  # fmt: skip
        if name in models:
            stats = models[name].stats()
            results[name] |= {"hit_rate": stats.hit_rate, "wait_s": stats.wait_s, "syncs": stats.syncs}
    return results


def decode_rate(decode: Decode, prompt: list[int], forced: list[int], warm_up: int) -> float:
    """Tokens per second after `warm_up` tokens."""
    tokens = iter(forced)
    count, started = 0, 0.0
    for count, _ in enumerate(decode(prompt, lambda logits: mx.array([next(tokens)])), 1):
        if count == warm_up:
            started = time.perf_counter()
    return (count - warm_up) / (time.perf_counter() - started)


def table(results: dict[str, dict[str, Any]]) -> str:
    rows = [f"{'':<16}{'tokens/s':>10}{'lowest':>9}{'highest':>9}{'of plain':>10}{'hit rate':>10}"]
    for name, row in results.items():
        hits = f"{row['hit_rate']:.3f}" if "hit_rate" in row else ""
        rows.append(
            f"{name:<16}{row['tokens_per_s']:>10.2f}{row['lowest']:>9.2f}{row['highest']:>9.2f}"
            f"{row['ratio']:>10.3f}{hits:>10}"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    main()
