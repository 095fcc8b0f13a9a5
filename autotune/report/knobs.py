"""What single knobs did, by the values that were in force in each trial of the search."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.trial import TrialState, create_trial

from autotune.facts import GUESSED, RESIDENT
from autotune.journal import Purpose, Record
from autotune.judge import Judge
from autotune.report.effects import effects
from autotune.trial import Measured
from streaming_core.layer_set import LayerSet

__all__ = ["ENOUGH", "importance", "slices", "value_of"]

ENOUGH = 20  # trials; with fewer, effects are not told from noise
_BEST = 0.2  # the share of the trials that the others are held against
_SLICES = 6
_BEHIND = 0.2  # how far behind the slowest allowed trial failures are put
IDLE = "not in play"


def importance(records: Sequence[Record], judge: Judge) -> list[dict[str, Any]]:
    """Of each searched knob its effect, the largest first, and Optuna's opinion: PED-ANOVA (Watanabe et al., 2023), the
    share it has in a trial's being among the fastest fifth.  Failures count as slow.  Empty with too few trials.
    """
    explored = [each for each in records if each.purpose.explores]
    values = {name: [value_of(each, name) for each in explored] for name in _knobs(explored)}
    if len(explored) < ENOUGH or not values:
        return []
    judged = [judge.judge(each.outcome) for each in explored]
    floor = min((each.score for each in judged if each.feasible), default=judge.default_score) - _BEHIND
    found = effects(values, [max(each.score, floor) for each in judged])
    opinion = _ped_anova(values, [each.score for each in judged])
    rows = [{"knob": name, "ratio": ratio, "ped_anova": opinion.get(name)} for name, ratio in found.items()]
    return sorted(rows, key=lambda row: (-row["ratio"], -(row["ped_anova"] or 0.0)))


def _ped_anova(values: Mapping[str, Sequence[str]], scores: Sequence[float]) -> dict[str, float]:
    """On a study of its own: what was in force, not what was proposed: then no knob is missing in any trial."""
    shape: dict[str, BaseDistribution] = {
        name: CategoricalDistribution(_ordered(set(column))) for name, column in values.items()
    }
    study = optuna.create_study(direction="maximize", storage=optuna.storages.InMemoryStorage())
    for at, score in enumerate(scores):
        params = {name: column[at] for name, column in values.items()}
        study.add_trial(create_trial(state=TrialState.COMPLETE, value=score, params=params, distributions=shape))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        evaluator = PedAnovaImportanceEvaluator(target_quantile=_BEST)
        found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {name: share for name, share in found.items() if math.isfinite(share)}


def slices(records: Sequence[Record], order: Sequence[str]) -> list[dict[str, Any]]:
    """Speeds by the options of a knob, for the first few of `order`, or of all that were tried."""
    measured = [each for each in records if each.purpose.explores and isinstance(each.outcome, Measured)]
    found = []
    for name in list(order or _knobs(measured))[:_SLICES]:
        speeds: dict[str, list[float]] = {}
        for each in measured:
            assert isinstance(each.outcome, Measured)
            speeds.setdefault(value_of(each, name), []).append(each.outcome.decode_tps)
        options = [
            {"value": value, "tps": speeds[value], "median_tps": statistics.median(speeds[value])}
            for value in _ordered(speeds)
        ]
        found.append({"knob": name, "options": options})
    return found


def value_of(record: Record, name: str) -> str:
    """What was in force, as text; layer sets by how many layers they name."""
    outcome = record.outcome
    if isinstance(outcome, Measured) and name in outcome.unread:
        return IDLE
    source = outcome.effective if isinstance(outcome, Measured) and outcome.effective else record.settings
    section, _, key = name.partition(".")
    value = source.get(section, {}).get(key)
    if name in (RESIDENT, GUESSED) and isinstance(value, str) and value[:1].isdigit():
        layers = LayerSet.parse(value).layers or ()
        return f"{len(layers)} layer{'s' if len(layers) != 1 else ''}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _knobs(records: Sequence[Record]) -> list[str]:
    """Searched, and tried with more than one value."""
    searched = dict.fromkeys(name for each in records for name in each.params if each.purpose is not Purpose.RANK)
    return [name for name in searched if len({value_of(each, name) for each in records}) > 1]


def _ordered(values: Mapping[str, Any] | set[str]) -> list[str]:
    """Words first, then numbers by size."""

    def key(text: str) -> tuple[int, float, str]:
        try:
            return (1, float(text.split()[0]), text)
        except (ValueError, IndexError):
            return (2 if text == "all" else 0, 0.0, text)

    return sorted(values, key=key)
