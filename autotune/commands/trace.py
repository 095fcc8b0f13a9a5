"""`mlx-autotune trace`: what the router asked for, layer by layer, and how well it was guessed."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from autotune.context import Context, chosen_settings, model_name
from autotune.errors import RequestInvalid
from autotune.tables import plain_table
from streaming_core.hardware import detect
from streaming_core.recording import GuessRecord, RouteRecorder, read_routes, save_routes
from streaming_core.testing import prompts
from streaming_core.units import format_size

if TYPE_CHECKING:
    from streaming_core.runtime import StreamedModel
    from streaming_core.trace import LayerStats, Stats

__all__ = ["run"]


def run(args: argparse.Namespace, context: Context) -> int:
    if args.tokens < 1 or args.prompts < 1:
        raise RequestInvalid(f"--tokens and --prompts must be at least 1, got {args.tokens} and {args.prompts}")
    model = model_name(args)
    machine = detect()
    choice = chosen_settings(args, machine)
    import streaming_core

    screen = context.screen
    screen.notice(f"settings: {choice.reason}")
    oracle = None
    if args.oracle is not None:
        outline = streaming_core.inspect(model, cache_dir=args.cache_dir, on_progress=screen.progress)
        oracle = read_routes(args.oracle, outline.fingerprint)
    loaded = streaming_core.load(
        model, choice.settings, cache_dir=args.cache_dir, oracle=oracle, on_progress=screen.progress
    )
    with loaded as streamed:
        recorder = RouteRecorder()
        streamed.record(recorder)
        streamed.reset_stats()
        _replay(streamed, args, context)
        found = _Found(streamed.stats(), recorder.guesses, streamed.outline.top_k, args.save)
        if args.save is not None:
            save_routes(args.save, recorder.routes, streamed.outline.fingerprint, streamed.outline.experts)
    screen.result(found.to_json(), found.summary, found.show)
    return 0


def _replay(streamed: StreamedModel, args: argparse.Namespace, context: Context) -> None:
    """Decodes varied text, told what to say: text of a model in circles flatters every cache."""
    import mlx.core as mx

    from streaming_core.progress import Progress

    texts = prompts(2 * args.prompts, 40 + args.tokens, seed=args.seed)
    for number in range(args.prompts):
        prompt, rest = (streamed.tokenizer.encode(text) for text in texts[2 * number : 2 * number + 2])
        forced = iter(rest)
        count = min(args.tokens, len(rest) - 1)
        for _ in streamed.stream(prompt[:40], count, sampler=lambda _, left=forced: mx.array([next(left)])):
            pass
        context.screen.progress(Progress("tracing", number + 1, args.prompts, "passages"))


@dataclass(frozen=True, slots=True)
class _Found:
    stats: Stats
    guesses: Mapping[int, GuessRecord]
    top_k: int
    saved: Path | None

    @property
    def summary(self) -> str:
        stats = self.stats
        used = f", {stats.guesses_used} of {stats.guessed} guesses used" if stats.guessed else ""
        return f"{stats.hit_rate:.1%} of experts were in memory over {stats.tokens} tokens{used}"

    def to_json(self) -> dict[str, Any]:
        stats = self.stats
        return {
            "tokens": stats.tokens,
            "passes": stats.passes,
            "hit_rate": stats.hit_rate,
            "demand_bytes": stats.demand_bytes,
            "prefetch_bytes": stats.prefetch_bytes,
            "guessed": stats.guessed,
            "guesses_used": stats.guesses_used,
            "wait_s": stats.wait_s,
            "syncs": stats.syncs,
            "saved": None if self.saved is None else str(self.saved),
            "layers": [self._layer(row) for row in stats.layers],
        }

    def _layer(self, row: LayerStats) -> dict[str, Any]:
        record = self.guesses.get(row.layer, GuessRecord())
        window = statistics.median(record.windows_s) if record.windows_s else None
        return {
            "layer": row.layer,
            "hits": row.hits,
            "misses": row.misses,
            "demand_bytes": row.demand_bytes,
            "wait_s": row.wait_s,
            "guessed": row.guessed,
            "guesses_used": row.guesses_used,
            "recall_at_k": record.recall(self.top_k),
            "recall_at_2k": record.recall(2 * self.top_k),
            "recall_at_4k": record.recall(4 * self.top_k),
            "window_s": window,
        }

    def show(self, console: Console) -> None:
        columns = ["layer", "missed", "read", "waited", "guessed", "used", "recall k", "2k", "4k", "window"]
        rows: list[Sequence[str]] = []
        for row in self.to_json()["layers"]:
            asked = row["hits"] + row["misses"]
            rows.append([
                str(row["layer"]),
                f"{row['misses'] / asked:.1%}" if asked else "-",
                format_size(row["demand_bytes"]),
                f"{1e3 * row['wait_s'] / max(1, self.stats.passes):.2f} ms",
                str(row["guessed"]),
                str(row["guesses_used"]),
                *(_share(row[name]) for name in ("recall_at_k", "recall_at_2k", "recall_at_4k")),
                "-" if row["window_s"] is None else f"{1e3 * row['window_s']:.2f} ms",
            ])  # fmt: skip
        console.print(plain_table(columns, rows))
        console.print(self.summary)
        if self.saved is not None:
            console.print(f"saved: {self.saved}")


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
