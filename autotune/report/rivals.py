"""Default and winner: which trials of the journal compare them, and what those say."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from autotune.journal import Purpose, Record
from autotune.judge import Judge, score_of
from autotune.report.studies import Study
from autotune.statistics import Interval, Noise, credible_gain, paired_ratio
from autotune.trial import Measured
from streaming_core.settings import Settings

__all__ = ["Meeting", "Rivals", "judged", "rivals_of"]

_Settings = Mapping[str, Any]
_FEWEST_PAIRS = 4


@dataclass(frozen=True, slots=True)
class Meeting:
    """Measured side by side in time: one round of the race, one pair, or a trial of the search."""

    name: str
    number: int  # of the trial
    outcome: Measured


@dataclass(frozen=True, slots=True)
class Rivals:
    """`winner` is what came furthest, proven or not; None where nothing but the default was measured."""

    default_settings: _Settings
    winner_settings: _Settings | None
    how: str  # in words: what makes it the one that is shown
    default: Sequence[Meeting]
    winner: Sequence[Meeting]
    pairs: tuple[tuple[Measured, ...], tuple[Measured, ...]]  # winner's and default's, by position

    @property
    def changes(self) -> dict[str, Any]:
        return _changes(self.winner_settings, self.default_settings)


def rivals_of(study: Study, judge: Judge) -> Rivals:
    race = list(_last_race(study.records))
    default = study.default_settings
    chosen, how = _chosen(study, race, judge)
    pairs = [(name, record) for name, _, record in race if record.purpose is Purpose.PAIR]
    met = race or [
        (f"trial {n}", n, each) for n, each in enumerate(study.records, 1) if each.purpose is not Purpose.RANK
    ]

    def meetings(settings: _Settings | None) -> list[Meeting]:
        return [
            Meeting(name, number, record.outcome)
            for name, number, record in met
            if record.settings == settings and isinstance(record.outcome, Measured)
        ]

    theirs = meetings(default) or [
        Meeting(f"trial {n}", n, each.outcome)
        for n, each in enumerate(study.records, 1)
        if each.settings == default and isinstance(each.outcome, Measured)
    ]
    return Rivals(default, chosen, how, theirs, meetings(chosen), _paired(pairs, chosen, default))


def judged(rivals: Rivals, judge: Judge, noise: Noise) -> tuple[str, str, Interval | None, float]:
    """Status, reason, interval and needed gain by the pairs of the journal: for a study without a finished profile."""
    ours, theirs = rivals.pairs
    needed = credible_gain(noise.sigma, max(1, len(ours)))
    if len(ours) < 2:
        return "unfinished", "no race has come to its end yet; nothing is proven", None, needed
    scores = [[score_of(each, judge.objective) for each in side] for side in rivals.pairs]
    interval = paired_ratio(*scores)
    times = f"{interval.middle:.2f} times the default ({interval.low:.2f} to {interval.high:.2f}) in {len(ours)} pairs"
    if len(ours) < _FEWEST_PAIRS:
        return "unfinished", f"{times}, which are too few to prove it", interval, needed
    broken = judge.broken_by(ours, theirs)
    if broken or interval.low <= 1 or interval.middle < 1 + needed:
        return "default_kept", f"the default is kept: {'; '.join(broken) or times}", interval, needed
    return "proven", times, interval, needed


def _last_race(records: Sequence[Record]) -> Iterator[tuple[str, int, Record]]:
    """Round, number and record of every trial of the last race."""
    numbered = list(enumerate(records, 1))
    last = next((at for at in range(len(numbered), 0, -1) if not records[at - 1].purpose.explores), 0)
    race = list(takewhile(lambda each: not each[1].purpose.explores, reversed(numbered[:last])))[::-1]
    seen: list[_Settings] = []
    counts = {Purpose.RACE: 0, Purpose.PAIR: 0}
    purpose = None
    for number, record in race:
        if record.purpose is not purpose or record.settings in seen:
            seen, purpose = [], record.purpose
            counts[purpose] += 1
        seen.append(record.settings)
        yield f"{'round' if purpose is Purpose.RACE else 'pair'} {counts[record.purpose]}", number, record


def _chosen(study: Study, race: Sequence[tuple[str, int, Record]], judge: Judge) -> tuple[_Settings | None, str]:
    default = study.default_settings
    rivals = [record for _, _, record in race if record.settings != default and isinstance(record.outcome, Measured)]
    paired = [record.settings for record in rivals if record.purpose is Purpose.PAIR]
    if paired:
        return paired[-1], "winner of the race's rounds"
    if rivals:
        return _fastest(rivals, judge), "fastest of the race's finalists, not ahead of the default or not yet in pairs"
    tried = [
        record
        for record in study.records
        if record.purpose is Purpose.SEARCH and record.settings != default and judge.judge(record.outcome).feasible
    ]
    return (_fastest(tried, judge), "fastest of the search, never raced") if tried else (None, "")


def _fastest(records: Sequence[Record], judge: Judge) -> _Settings:
    def score(record: Record) -> float:
        same = [each.outcome for each in records if each.settings == record.settings]
        return statistics.median(judge.judge(outcome).score for outcome in same)

    return max(records, key=score).settings


def _paired(
    pairs: Sequence[tuple[str, Record]], chosen: _Settings | None, default: _Settings
) -> tuple[tuple[Measured, ...], tuple[Measured, ...]]:
    found = []
    for name in dict.fromkeys(name for name, _ in pairs):
        sides = [record for other, record in pairs if other == name]
        ours = [each.outcome for each in sides if each.settings == chosen]
        theirs = [each.outcome for each in sides if each.settings == default]
        if ours and theirs and isinstance(ours[0], Measured) and isinstance(theirs[0], Measured):
            found.append((ours[0], theirs[0]))
    return tuple(a for a, _ in found), tuple(b for _, b in found)


def _changes(settings: _Settings | None, default: _Settings) -> dict[str, Any]:
    return {} if settings is None else Settings.from_mapping(settings).changes_from(Settings.from_mapping(default))
