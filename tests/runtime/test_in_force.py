"""What settings come to, and which make no difference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import streaming_core
from streaming_core.hardware import FakeMachine
from streaming_core.in_force import settings_in_force, unread_settings
from streaming_core.settings import Settings

STREAMED = {"residency.slots": 4, "residency.resident_layers": 0}


def unread(tiny: Path, values: dict[str, Any]) -> set[str]:
    outline = streaming_core.inspect(tiny)
    settings = Settings().with_values({**STREAMED, **values})
    plan = streaming_core.plan(outline, settings, FakeMachine())
    return set(unread_settings(settings_in_force(settings, plan, "cpu"), plan, outline.experts))


def test_without_guesses_nothing_about_them_is_read(tiny: Path) -> None:
    found = unread(tiny, {})
    about_guesses = {key for key in Settings.keys() if key.startswith("prefetch.")}  # noqa: SIM118
    assert about_guesses <= found
    assert {"predict.mult", "predict.min_score", "reading.guess_threads", "residency.half_life"} <= found
    assert not {"predict.kind", "residency.slots", "residency.policy", "reading.threads"} & found


@pytest.mark.parametrize(
    ("values", "read", "not_read"),
    [
        ({"residency.policy": "lfu"}, {"residency.half_life"}, set[str]()),
        ({"residency.slots": "all"}, set(), {"residency.policy", "residency.half_life"}),
        ({"residency.resident_layers": "all"}, set(), {"residency.policy", "prefetch.backend", "predict.mult"}),
        (
            {"predict.kind": "gate"},
            {"predict.mult", "prefetch.ahead", "prefetch.backend"},
            {"prefetch.per_layer", "prefetch.depth", "predict.min_score"},
        ),
        (
            {"predict.kind": "gate", "prefetch.backend": "stage"},
            {"prefetch.window", "prefetch.depth", "reading.guess_threads", "predict.min_score"},
            set(),
        ),
        (
            {"predict.kind": "gate", "prefetch.backend": "advise"},
            {"prefetch.per_layer", "prefetch.layers"},
            {"prefetch.depth", "prefetch.window", "reading.guess_threads"},
        ),
        ({"predict.kind": "frequency"}, {"residency.half_life", "predict.mult"}, set()),
        ({"prefetch.backend": "stage"}, {"prefetch.backend", "prefetch.window", "prefetch.per_layer"}, set()),
        ({"kernels.indexed": "on"}, set(), {"kernels.targets", "kernels.tile"}),  # on the CPU they are off again
    ],
)
def test_what_is_read_depends_on_the_other_settings(
    tiny: Path, values: dict[str, Any], read: set[str], not_read: set[str]
) -> None:
    found = unread(tiny, values)
    assert not read & found
    assert not_read <= found


def test_the_threads_that_may_guess_are_those_that_nobody_waits_with(tiny: Path) -> None:
    outline = streaming_core.inspect(tiny)
    for threads, wanted, in_force in ((1, 4, 1), (2, 4, 1), (4, 4, 3), (8, 4, 4)):
        values = {**STREAMED, "reading.threads": threads, "reading.guess_threads": wanted}
        settings = Settings().with_values(values)
        plan = streaming_core.plan(outline, settings, FakeMachine())
        assert settings_in_force(settings, plan, "cpu").reading.guess_threads == in_force


def test_an_unread_setting_can_be_changed_and_the_tokens_and_counts_stay(tiny: Path, shared_cache: Path) -> None:
    base = Settings().with_values({**STREAMED, "reading.reader": "threads"})
    changed = base.with_values({"prefetch.per_layer": 2, "prefetch.depth": 3, "predict.mult": 4.0})
    found = []
    for settings in (base, changed):
        with streaming_core.load(tiny, settings, cache_dir=shared_cache) as model:
            assert {"prefetch.per_layer", "prefetch.depth", "predict.mult"} <= set(model.unread)
            text = model.generate([1, 2, 3, 4], max_tokens=8)
            stats = model.stats()
            found.append((text, stats.hits, stats.misses, stats.demand_bytes, stats.guessed))
    assert found[0] == found[1]
