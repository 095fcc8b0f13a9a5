"""The data of a report: plain values, from the journal and, where there is one, the profile's entry of the study."""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from autotune.journal import Record
from autotune.judge import Judge
from autotune.report.knobs import ENOUGH, importance, slices, value_of
from autotune.report.rivals import Meeting, Rivals, judged, rivals_of
from autotune.report.studies import Study
from autotune.result import rounded
from autotune.statistics import measured_noise
from autotune.trial import Measured, TimedOut, outcome_to_json
from streaming_core.profile import Entry
from streaming_core.settings import Settings

__all__ = ["facts_of"]


def facts_of(study: Study, entry: Entry | None, source: Path | None) -> dict[str, Any]:
    """`entry`: of the profile `source`, if that was written from this very study."""
    judge = study.judge()
    rivals = rivals_of(study, judge)
    evidence: Mapping[str, Any] = {} if entry is None else entry.evidence
    weighed = importance(study.records, judge)
    noise = measured_noise([each.samples for each in judge.default])
    default, winner = _side(rivals.default), _side(rivals.winner)
    found: dict[str, Any] = rounded(
        {
            "study": _study(study),
            "verdict": _verdict(study, rivals, judge, evidence, source),
            "command": entry.command if entry is not None and entry.command else _command(study),
            "versions": _plain(evidence, "versions") or {"mlx-autotune": study.identity["version"]},
            "conditions": _plain(evidence, "conditions"),
            "changes": {key: _text(value) for key, value in rivals.changes.items()},
            "shown_because": rivals.how,
            "sides": {"default": default, **({"winner": winner} if winner else {})},
            "compute_s": _compute_s(study.records),
            "trials": _trials(study, judge),
            "importance": {"trials": _explored(study), "needed": ENOUGH, "knobs": weighed},
            "slices": slices(study.records, [each["knob"] for each in weighed]),
            "residency": _residency(study.records),
            "memory": {
                "budget_bytes": study.budget_bytes,
                "default_bytes": default["needed_bytes"] if default else None,
                "winner_bytes": winner["needed_bytes"] if winner else None,
            },
            "noise": {
                "sigma": noise.sigma,
                "credible_gain": noise.credible_gain,
                "measurements": noise.measurements,
            },
            "drift": _drift(study),
            "dead": _dead(evidence),
            "curve": _curve(evidence.get("curve")),
        }
    )
    return found


def _study(study: Study) -> dict[str, Any]:
    identity = study.identity
    return {
        "name": study.folder.resolve().name,
        "folder": str(study.folder),
        "begun": study.records[0].started_at,
        "last": study.records[-1].started_at,
        "seconds": sum(each.duration_s for each in study.records),
        "trials": len(study.records),
        "shared": study.shared,
        **{key: identity[key] for key in ("model", "fingerprint", "hardware", "objective", "workload", "version")},
        "procedure": _plain(identity, "procedure"),
        "fixed": list(identity.get("fixed", ())),
    }


def _verdict(
    study: Study, rivals: Rivals, judge: Judge, evidence: Mapping[str, Any], source: Path | None
) -> dict[str, Any]:
    noise = measured_noise([each.samples for each in judge.default])
    status, reason, interval, needed = judged(rivals, judge, noise)
    told = {
        "status": status,
        "reason": reason,
        "interval": None if interval is None else [interval.low, interval.middle, interval.high],
        "needed_gain": needed,
        "source": "recomputed from the journal; no profile of this study was found",
    }
    if not isinstance(evidence.get("reason"), str):
        return told
    stated = evidence.get("interval")
    numbers = [stated.get(key) for key in ("low", "middle", "high")] if isinstance(stated, Mapping) else []
    return {
        "status": str(evidence.get("status", status)),
        "reason": evidence["reason"],
        "interval": numbers if numbers and all(map(_is_number, numbers)) else told["interval"],
        "needed_gain": evidence["needed_gain"] if _is_number(evidence.get("needed_gain")) else needed,
        "source": f"as written to {source}",
    }


def _side(meetings: Sequence[Meeting]) -> dict[str, Any] | None:
    """Everything about one of the two; None where it was never measured."""
    if not meetings:
        return None
    trials = [each.outcome for each in meetings]
    tokens = sum(each.counters.tokens for each in trials)
    hits, misses = sum(each.counters.hits for each in trials), sum(each.counters.misses for each in trials)
    token_s = statistics.median(1.0 / each.decode_tps for each in trials)
    wait_s = statistics.median(each.counters.wait_s / max(1, each.counters.tokens) for each in trials)
    return {
        "decode_tps": statistics.median(each.decode_tps for each in trials),
        "first_token_s": statistics.median(each.first_token_s for each in trials),
        "token_p50_s": statistics.median(each.token_p50_s for each in trials),
        "token_p99_s": statistics.median(each.token_p99_s for each in trials),
        "needed_bytes": max(each.needed_bytes for each in trials),
        "hit_rate": hits / (hits + misses) if hits + misses else None,
        "missed_bytes_per_token": sum(each.counters.demand_bytes for each in trials) / max(1, tokens),
        "guessed_bytes_per_token": sum(each.counters.prefetch_bytes for each in trials) / max(1, tokens),
        "token_s": token_s,
        "wait_s": min(wait_s, token_s),
        "rounds": [
            {
                "round": each.name,
                "trial": each.number,
                "samples": list(each.outcome.samples),
                "median_tps": each.outcome.decode_tps,
            }
            for each in meetings
        ],
    }


def _compute_s(records: Sequence[Record]) -> float:
    """A token's least time without waiting in any trial: nearest to what computing alone takes."""
    trials = [each.outcome for each in records if isinstance(each.outcome, Measured)]
    return max(0.0, min(1 / each.decode_tps - each.counters.wait_s / max(1, each.counters.tokens) for each in trials))


def _trials(study: Study, judge: Judge) -> list[dict[str, Any]]:
    """Of each trial how it ended, and the best of the search until then."""
    default = Settings.from_mapping(study.default_settings)
    best: float | None = None
    rows = []
    for number, record in enumerate(study.records, 1):
        outcome = record.outcome
        tps = outcome.decode_tps if isinstance(outcome, Measured) else None
        broken = judge.judge(outcome).broken
        if tps is not None and not broken and record.purpose.explores:
            best = tps if best is None else max(best, tps)
        silent = f"silent for {outcome.after_s:.0f} s" if isinstance(outcome, TimedOut) else ""
        changes = Settings.from_mapping(record.settings).changes_from(default)
        rows.append(
            {
                "number": number,
                "purpose": record.purpose.value,
                "kind": outcome_to_json(outcome)["kind"],
                "tps": tps,
                "best_tps": best,
                "broken": [] if tps is None else broken,
                "detail": silent or getattr(outcome, "reason", ""),
                "changes": {key: _text(value) for key, value in changes.items()},
                "started_at": record.started_at,
            }
        )
    return rows


def _residency(records: Sequence[Record]) -> list[dict[str, Any]]:
    """By slots in force: what was asked for and found, what was read.  Trials that streamed nothing are left out."""
    found: dict[str, list[Measured]] = {}
    for record in records:
        outcome = record.outcome
        if isinstance(outcome, Measured) and outcome.counters.hits + outcome.counters.misses:
            found.setdefault(value_of(record, "residency.slots"), []).append(outcome)
    rows = []
    for slots, trials in found.items():
        counters = [each.counters for each in trials]
        rows.append(
            {
                "slots": slots,
                "trials": len(trials),
                "hit_rate": sum(each.hits for each in counters) / sum(each.hits + each.misses for each in counters),
                "missed_bytes_per_token": sum(each.demand_bytes for each in counters)
                / max(1, sum(each.tokens for each in counters)),
                "median_tps": statistics.median(each.decode_tps for each in trials),
            }
        )
    return sorted(
        rows, key=lambda row: (not str(row["slots"]).isdigit(), int(row["slots"]) if row["slots"].isdigit() else 0)
    )


def _drift(study: Study) -> list[dict[str, Any]]:
    """The default over time, in the search and in the race."""
    rows = []
    for number, record in enumerate(study.records, 1):
        if record.settings == study.default_settings and isinstance(record.outcome, Measured):
            minutes = _minutes(study.records[0].started_at, record.started_at)
            rows.append({"trial": number, "minutes": minutes, "tps": record.outcome.decode_tps})
    return rows


def _minutes(first: str, then: str) -> float:
    try:
        return (datetime.fromisoformat(then) - datetime.fromisoformat(first)).total_seconds() / 60
    except (TypeError, ValueError):
        return 0.0


def _dead(evidence: Mapping[str, Any]) -> dict[str, str] | None:
    """None: not told without a profile."""
    search = evidence.get("search")
    dead = search.get("dead") if isinstance(search, Mapping) else None
    return {str(key): str(value) for key, value in dead.items()} if isinstance(dead, Mapping) else None


def _curve(found: object) -> list[dict[str, Any]]:
    """Budgets and what they reach, as `run --objective pareto` writes them."""
    rows = [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []
    numbers = ("budget_bytes", "decode_tps", "default_tps")
    return [
        {**{key: each[key] for key in numbers}, "status": str(each.get("status", ""))}
        for each in rows
        if all(_is_number(each.get(key)) and each[key] > 0 for key in numbers)
    ]


def _command(study: Study) -> str:
    """Near enough to begin the same study: what the user fixed, and the objective."""
    base = study.identity.get("base", {})
    words = ["mlx-autotune", "run", "--model", study.identity["model"]]
    for key in study.identity.get("fixed", ()):
        section, _, name = str(key).partition(".")
        words += ["--set", f"{key}={_text(base.get(section, {}).get(name))}"]
    if study.identity["objective"] != "decode":
        words += ["--objective", study.identity["objective"]]
    return shlex.join(words)


def _explored(study: Study) -> int:
    return sum(each.purpose.explores for each in study.records)


def _plain(mapping: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = mapping.get(key)
    return dict(value) if isinstance(value, Mapping) else {}


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _text(value: object) -> str:
    return "null" if value is None else str(value)
