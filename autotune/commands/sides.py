"""The two sides that `bench` and `verify` compare: a profile's settings and the default it was proven against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from autotune.baseline import Baseline, Pair, pair_of
from autotune.contest import Contestant, run_rounds
from autotune.context import Choice
from autotune.prepare import Place, plan_of
from autotune.runner import Runner
from autotune.screen import Screen
from autotune.wording import tps_text
from streaming_core.hardware import Hardware, default_budget_bytes
from streaming_core.models.outline import ModelOutline
from streaming_core.progress import Progress
from streaming_core.units import format_size

__all__ = ["baseline_of", "measure", "pair_for"]


def baseline_of(choice: Choice, model: str, here: Hardware, screen: Screen) -> Baseline:
    """How `run` had its default; without an entry, the built-in one.  Raises ProfileInvalid."""
    profile = choice.profile
    name = None if profile is None else profile.entry_name(model)
    if profile is None or name is None:
        return Baseline()
    baseline = Baseline.read(profile.entries[name], f"{profile.path}: models.{name}")
    if not baseline.known:
        screen.notice("the profile does not say which settings were fixed when it was tuned; repeat them with --set")
    if profile.hardware.difference(here):
        return replace(baseline, budget_bytes=None)  # another machine's memory says nothing about this one's
    return baseline


def pair_for(
    choice: Choice, baseline: Baseline, values: Mapping[str, Any], outline: ModelOutline, place: Place, screen: Screen
) -> Pair:
    """What is compared; `values` are the user's of today.

    Raises BudgetTooSmall: what cannot fit is said before anything is packed.
    """
    pair = pair_of(choice.settings, baseline, values, lambda settings: plan_of(outline, settings, place).budget_bytes)
    budget = pair.streamed.memory.budget
    today = default_budget_bytes(place.machine.hardware(), place.machine.memory())
    if choice.settings.memory.budget is None and budget is not None and budget > today:
        now = f"what is free now would give {format_size(today)}"
        screen.notice(f"memory.budget is {format_size(budget)}, as when it was tuned; {now}; --budget sets another")
    plan_of(outline, pair.streamed, place)
    return pair


def measure(
    contestants: Sequence[Contestant],
    rounds: int,
    seed: int,
    runner: Runner,
    screen: Screen,
    *,
    before: int = 0,
    after: int = 0,
) -> None:
    """Measures each once a round; so many rounds were measured by earlier calls, so many may follow."""
    first, total = before * len(contestants), (before + rounds + after) * len(contestants)

    def on_start(contestant: Contestant, number: int) -> None:
        screen.progress(Progress(f"measuring {contestant.name}", first + number, total, "trials"))

    def on_end(contestant: Contestant, number: int) -> None:
        said = contestant.failure or f"{tps_text(contestant.trials[-1].decode_tps)} tok/s"
        screen.notice(f"trial {first + number + 1}/{total} [{contestant.name}] {said}")

    run_rounds(contestants, rounds, seed, runner, on_start, on_end)
    screen.progress(Progress("measuring", first + rounds * len(contestants), total, "trials"))
