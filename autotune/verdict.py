"""The verdict: which settings to use, and why, from everything that was measured."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.history import Config, History
from autotune.journal import Record
from autotune.judge import Judge
from autotune.probe import DiskRow, ceiling_of
from autotune.race import RaceResult
from autotune.result import Side, Status, TrialRow, TuneResult
from autotune.statistics import Noise
from autotune.trial import Measured, TimedOut, outcome_to_json
from streaming_core.settings import Settings

__all__ = ["Evidence", "decide"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the verdict is made from."""

    history: History
    judge: Judge
    race: RaceResult
    records: Sequence[Record]
    noise: Noise
    disk: tuple[DiskRow, ...]
    base: Settings  # as requested; trials ran with its budget resolved
    fixed: Mapping[str, Any]
    interrupted: bool
    search: Mapping[str, Any]
    workload: Mapping[str, Any]


def decide(evidence: Evidence) -> TuneResult:
    """The winner only if it was proven and breaks nothing; interrupted, the best so far; else the default."""
    race = evidence.race
    default = evidence.history.default
    default_trials = race.default_trials or default.measured
    if evidence.interrupted:
        best = _best_so_far(evidence)
        status, reason = Status.INTERRUPTED, "interrupted before the race was over: the best so far, not proven"
        if best is None:
            reason = "interrupted before anything was credibly faster than the default"
        return _result(evidence, status, reason, best, best.measured if best else [], default_trials)
    if race.winner is None or not race.winner_trials:
        reason = race.reason or "nothing that was tried was faster"
        return _result(evidence, Status.DEFAULT_KEPT, f"the default is kept: {reason}", None, [], default_trials)
    objection = _objection(race) or "; ".join(evidence.judge.broken_by(race.winner_trials, default_trials))
    if objection:
        reason = f"the default is kept: {objection}"
        return _result(evidence, Status.DEFAULT_KEPT, reason, race.winner, race.winner_trials, default_trials)
    assert race.interval is not None
    reason = (
        f"{race.interval.middle:.2f} times the default ({race.interval.low:.2f} to {race.interval.high:.2f}) "
        f"in {len(race.winner_trials)} pairs"
    )
    return _result(evidence, Status.PROVEN, reason, race.winner, race.winner_trials, default_trials)


def _objection(race: RaceResult) -> str:
    """Why the race did not prove the winner; empty: it did."""
    if race.proven:
        return ""
    if race.reason or race.interval is None:
        return race.reason
    gain = race.interval.middle - 1
    if gain < race.needed_gain:
        return f"the best gained {gain:+.1%}, less than the {race.needed_gain:.1%} that can be told from noise"
    return f"the best gained {gain:+.1%}, but it may as well be {race.interval.low - 1:+.1%}"


def _best_so_far(evidence: Evidence) -> Config | None:
    """The winner of the race's rounds, else the best of the search, if its measurements can be believed so far."""
    judge = evidence.judge
    needed = judge.default_score + math.log1p(evidence.noise.credible_gain)
    winner = evidence.race.winner
    best = evidence.history.ranked(judge)[:1] if winner is None or not winner.measured else [winner]
    for config in best:
        if config is not evidence.history.default and config.score(judge) >= needed:
            return config
    return None


def _result(
    evidence: Evidence,
    status: Status,
    reason: str,
    shown: Config | None,
    shown_trials: Sequence[Measured],
    default_trials: Sequence[Measured],
) -> TuneResult:
    """`shown` is compared with the default; it is also chosen unless the default is kept."""
    base = evidence.history.default.settings
    chosen = shown.settings if shown is not None and status is not Status.DEFAULT_KEPT else base
    race = evidence.race
    kept = status is Status.DEFAULT_KEPT or shown is None
    return TuneResult(
        status=status,
        reason=reason,
        settings=_portable(chosen, evidence.base, [] if kept else shown_trials),
        default=Side.of({}, default_trials),
        tuned=Side.of(shown.settings.changes_from(base), shown_trials) if shown is not None else None,
        interval=race.interval if shown is race.winner else None,
        needed_gain=race.needed_gain or evidence.noise.credible_gain,
        noise=evidence.noise,
        ceiling=ceiling_of(shown_trials or default_trials, evidence.disk),
        disk=evidence.disk,
        trials=tuple(_row(number, record, base) for number, record in enumerate(evidence.records, start=1)),
        search={**_counts(evidence.records, base), **evidence.search},
        workload=evidence.workload,
        budget_bytes=base.memory.budget,
        fixed=evidence.fixed,
    )


def _portable(chosen: Settings, base: Settings, trials: Sequence[Measured]) -> Settings:
    """Without the budget of the day, unless the user named one.  A chunk that followed from it is then written out."""
    settings = chosen.with_values({"memory.budget": base.memory.budget})
    if base.memory.budget is None and trials and settings.prefill.chunk == "auto":
        return settings.with_values({"prefill.chunk": trials[0].effective["prefill"]["chunk"]})
    return settings


def _counts(records: Sequence[Record], base: Settings) -> dict[str, int]:
    kinds = Counter(outcome_to_json(record.outcome)["kind"] for record in records)
    tried = {Settings.from_mapping(record.settings) for record in records} - {base}
    return {
        "trials": len(records),
        "tried": len(tried),
        **{kind: kinds[kind] for kind in ("infeasible", "crashed", "timed_out")},
    }


def _row(number: int, record: Record, base: Settings) -> TrialRow:
    outcome = record.outcome
    tps = outcome.decode_tps if isinstance(outcome, Measured) else None
    detail = f"silent for {outcome.after_s:.0f} s" if isinstance(outcome, TimedOut) else getattr(outcome, "reason", "")
    changes = Settings.from_mapping(record.settings).changes_from(base)
    return TrialRow(number, record.purpose.value, changes, outcome_to_json(outcome)["kind"], tps, detail)
