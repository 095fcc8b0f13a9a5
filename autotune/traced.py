"""What a trace found: where the time of a token goes, what was guessed, how long reads took."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from autotune.tables import plain_table
from streaming_core.reading import Urgency
from streaming_core.recording import GuessRecord, ReadTimes, RouteRecorder
from streaming_core.testing.published import Curve, interpolated
from streaming_core.trace import LayerStats, Stats
from streaming_core.units import format_size

__all__ = ["WIDTHS", "GuessCost", "TokenTime", "Traced"]

WIDTHS = (1.0, 1.5, 2.0, 3.0, 4.0)  # candidates, in multiples of top-k


@dataclass(frozen=True, slots=True)
class TokenTime:
    """Where a decoded token's time goes; the means over all tokens, in seconds.

    `compute_s` is the time the host waits for the device in the streamed layers; what the device computes while the
    host works or reads is in none of these numbers.  `host_s` is everything else: building graphs, planning, sampling.
    """

    token_s: float
    compute_s: float
    host_s: float
    wait_s: float  # for reads

    @classmethod
    def of(cls, stats: Stats, elapsed_s: float, tokens: int) -> TokenTime:
        """`elapsed_s` is what the `tokens` in `stats` took altogether."""
        token, compute, wait = elapsed_s / tokens, stats.sync_s / tokens, stats.wait_s / tokens
        return cls(token, compute, max(0.0, token - compute - wait), wait)


@dataclass(frozen=True, slots=True)
class GuessCost:
    """A token with guesses that nothing is done with, beside one without; medians, waiting for reads taken off."""

    tokens: int  # of each kind
    with_s: float
    without_s: float
    added_compute_s: float  # of the difference: the host waiting for the device
    added_host_s: float

    @property
    def added_s(self) -> float:
        return self.with_s - self.without_s

    @classmethod
    def of(cls, guessing: Sequence[TokenTime], silent: Sequence[TokenTime]) -> GuessCost:
        def middle(tokens: Sequence[TokenTime], part: str) -> float:
            return float(statistics.median(getattr(token, part) for token in tokens))

        def busy(tokens: Sequence[TokenTime]) -> float:
            return statistics.median(token.token_s - token.wait_s for token in tokens)

        return cls(
            tokens=min(len(guessing), len(silent)),
            with_s=busy(guessing),
            without_s=busy(silent),
            added_compute_s=middle(guessing, "compute_s") - middle(silent, "compute_s"),
            added_host_s=middle(guessing, "host_s") - middle(silent, "host_s"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """Counts and times of the tokens decoded after each passage's first; prompts are left out."""

    stats: Stats
    tokens: int
    time: TokenTime
    recorder: RouteRecorder
    top_k: int
    guessed_width: int  # candidates per guess; recall beyond it is not known
    published: Curve  # recall of the same kind of guess in a trained model
    cost: GuessCost | None
    saved: Path | None

    @property
    def summary(self) -> str:
        stats, time = self.stats, self.time
        used = f", {stats.guesses_used} of {stats.guessed} guesses used" if stats.guessed else ""
        return (
            f"{stats.hit_rate:.1%} of experts were in memory over {self.tokens} tokens{used}; a token took "
            f"{_ms(time.token_s)}: {_ms(time.compute_s)} compute, {_ms(time.host_s)} host, "
            f"{_ms(time.wait_s)} waiting for reads"
        )

    def to_json(self) -> dict[str, Any]:
        stats = self.stats
        return {
            "tokens": self.tokens,
            "passes": stats.passes,
            "hit_rate": stats.hit_rate,
            "demand_bytes": stats.demand_bytes,
            "prefetch_bytes": stats.prefetch_bytes,
            "wasted_bytes": stats.wasted_bytes,
            "guessed": stats.guessed,
            "guesses_used": stats.guesses_used,
            "wait_s": stats.wait_s,
            "sync_s": stats.sync_s,
            "syncs": stats.syncs,
            "token": asdict(self.time),
            "recall": [
                {**at, "published": interpolated(self.published, at["width"])}
                for at in self._recall(list(self.recorder.guesses.values()))
            ],
            "guess_cost": None if self.cost is None else {**asdict(self.cost), "added_s": self.cost.added_s},
            "saved": None if self.saved is None else str(self.saved),
            "layers": [self._layer(row) for row in stats.layers],
        }

    def _layer(self, row: LayerStats) -> dict[str, Any]:
        record = self.recorder.guesses.get(row.layer, GuessRecord())
        windows = record.windows_s
        return {
            "layer": row.layer,
            "hits": row.hits,
            "misses": row.misses,
            "demand_bytes": row.demand_bytes,
            "wait_s": row.wait_s,
            "sync_s": row.sync_s,
            "host_s": row.host_s,
            "guessed": row.guessed,
            "guesses_used": row.guesses_used,
            "prefetch_bytes": row.prefetch_bytes,
            "wasted_bytes": row.wasted_bytes,
            "recall": self._recall([record]),
            "window_s": statistics.median(windows) if windows else None,
            "window_min_s": min(windows, default=None),
            "demand_reads": _times(self.recorder.read_times(row.layer, Urgency.DEMAND)),
            "guess_reads": _times(self.recorder.read_times(row.layer, Urgency.GUESS)),
        }

    def _recall(self, records: Sequence[GuessRecord]) -> list[dict[str, Any]]:
        """By width; all records together, each asked expert counting once."""
        whole = GuessRecord(sum(r.asked for r in records), [rank for r in records for rank in r.ranks])
        return [
            {
                "width": width,  # multiples of top-k
                "recall": whole.recall(round(width * self.top_k)) if self._guesses(width) else None,
            }
            for width in WIDTHS
        ]

    def _guesses(self, width: float) -> bool:
        return round(width * self.top_k) <= self.guessed_width

    # ---- for people ----------------------------------------------------------------------------------------------

    def show(self, console: Console) -> None:
        found = self.to_json()
        console.print(f"missed: of the experts asked for; read: on demand, over {self.tokens} tokens; ms of a token:")
        console.print("compute (the host waits for the device), host (Python's own), waited (for reads)")
        console.print(plain_table(_TIME_COLUMNS, [self._time_cells(row) for row in found["layers"]]))
        if self.recorder.guesses:
            console.print(
                "\nguesses; wasted: read in vain; window: ms from guess to need; recall by multiples of top-k"
            )
            heads = ["layer", "guessed", "used", "wasted", "window", *(f"{w:g}k" for w in WIDTHS)]
            rows = [_guess_cells(row) for row in found["layers"]]
            rows.append(["all", *[""] * 4, *(_share(at["recall"]) for at in found["recall"])])
            if self.published:
                rows.append(["published", *[""] * 4, *(_share(at["published"]) for at in found["recall"])])
            console.print(plain_table(heads, rows))
        console.print("\nreads in ms: in the queue and under way, mean and most; first demands, then guesses")
        console.print(plain_table(_READ_COLUMNS, [_read_cells(row) for row in found["layers"]]))
        console.print()
        if self.cost is not None:
            console.print(_cost_text(self.cost))
        console.print(self.summary)
        if self.saved is not None:
            console.print(f"saved: {self.saved}")

    def _time_cells(self, row: Mapping[str, Any]) -> list[str]:
        asked, passes = row["hits"] + row["misses"], max(1, self.stats.passes)
        return [
            str(row["layer"]),
            f"{row['misses'] / asked:.1%}" if asked else "-",
            format_size(row["demand_bytes"]),
            *(_number(row[part] / passes) for part in ("sync_s", "host_s", "wait_s")),
        ]


_TIME_COLUMNS = ["layer", "missed", "read", "compute", "host", "waited"]
_READ_COLUMNS = ["layer", "demands", "queue", "most", "read", "most", "guesses", "queue", "most", "read", "most"]


def _guess_cells(row: Mapping[str, Any]) -> list[str]:
    window = "-" if row["window_s"] is None else _number(row["window_s"])
    counts = [str(row["layer"]), str(row["guessed"]), str(row["guesses_used"]), format_size(row["wasted_bytes"])]
    return [*counts, window, *(_share(at["recall"]) for at in row["recall"])]


def _read_cells(row: Mapping[str, Any]) -> list[str]:
    cells = [str(row["layer"])]
    for times in (row["demand_reads"], row["guess_reads"]):
        cells.append(str(times["tickets"]))
        for name in ("queue_mean_s", "queue_max_s", "read_mean_s", "read_max_s"):
            cells.append(_number(times[name]) if times["tickets"] else "-")
    return cells


def _times(times: ReadTimes) -> dict[str, Any]:
    count = times.tickets
    return {
        "tickets": count,
        "queue_mean_s": times.queue_s / count if count else None,
        "queue_max_s": times.queue_max_s if count else None,
        "read_mean_s": times.read_s / count if count else None,
        "read_max_s": times.read_max_s if count else None,
    }


def _cost_text(cost: GuessCost) -> str:
    return (
        f"guessing alone added {_ms(cost.added_s)} a token: {_ms(cost.added_compute_s)} compute and "
        f"{_ms(cost.added_host_s)} host ({_ms(cost.with_s)} with, {_ms(cost.without_s)} without, reads taken off; "
        f"medians of {cost.tokens} tokens each)"
    )


def _ms(seconds: float) -> str:
    return f"{_number(seconds)} ms"


def _number(seconds: float) -> str:
    return f"{1e3 * seconds:.2f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
