"""A small model and a machine made of formulas, for tests of the tuner."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from autotune.events import TuneEvent
from autotune.history import History
from autotune.journal import Journal, StudyIdentity
from autotune.judge import Judge
from autotune.measurer import Measurer
from autotune.request import Subject, TuneRequest
from autotune.result import TuneResult
from autotune.space import Objective, Space, SpaceFacts, build_space
from autotune.testing import FakeRunner
from autotune.trial import Procedure, TrialSpec
from autotune.tuner import tune
from autotune.workload import Workload, workload_from_texts
from streaming_core.settings import Settings

LAYERS = tuple(range(1, 13))
EXPERTS = 64
TOP_K = 4
BUDGET_RECORDS = 256  # a third of the experts


def records_needed(settings: Settings) -> int:
    """How many records are in memory at once."""
    resident = settings.residency.resident_layers
    if resident == "auto":
        count = 0
    elif isinstance(resident, int):
        count = resident
    else:
        from streaming_core.layer_set import LayerSet

        named = LayerSet.parse(resident)
        count = sum(layer in named for layer in LAYERS)
    slots = settings.residency.slots
    each = {"auto": TOP_K, "all": EXPERTS}[slots] if isinstance(slots, str) else slots
    return count * EXPERTS + (len(LAYERS) - count) * each


def facts(**changes: object) -> SpaceFacts:
    values: dict[str, object] = {
        "layers": LAYERS,
        "ranking": tuple(reversed(LAYERS)),
        "experts": EXPERTS,
        "top_k": TOP_K,
        "backend": "cpu",
        "fits": lambda settings: records_needed(settings) <= BUDGET_RECORDS,
    }
    return SpaceFacts(**{**values, **changes})  # type: ignore[arg-type]


def space(base: Settings | None = None, objective: Objective = Objective.DECODE, **changes: object) -> Space:
    return build_space(base or Settings(), facts(**changes), objective)


def workload() -> Workload:
    return workload_from_texts(["one two three", "four five six", "seven eight nine"])


def hill(settings: Settings) -> float:
    """Best with 16 threads and half of the slots that fit; a bypassed page cache costs a tenth."""
    slots = settings.residency.slots if isinstance(settings.residency.slots, int) else BUDGET_RECORDS // len(LAYERS)
    threads = math.log2(settings.reading.threads)
    loss = 0.08 * (threads - 4) ** 2 + 0.004 * (slots - 10) ** 2
    return 20.0 * math.exp(-loss) * (0.9 if settings.reading.page_cache == "bypass" else 1.0)


def identity(**changes: object) -> StudyIdentity:
    values: dict[str, object] = {
        "model": "demo",
        "fingerprint": "abc",
        "hardware": "linux-2c-24g",
        "workload": workload().content_hash,
        "version": "0.1.0",
        "objective": "decode",
        "procedure": {},
        "base": {},
        "fixed": (),
    }
    return StudyIdentity(**{**values, **changes})  # type: ignore[arg-type]


@dataclass
class Workbench:
    """Everything around a search, on a fake machine."""

    runner: FakeRunner
    journal: Journal
    judge: Judge
    measurer: Measurer
    space: Space
    history: History
    events: list[TuneEvent]


def workbench(folder: Path, runner: FakeRunner, the_space: Space | None = None) -> Workbench:
    the_space = the_space or space()
    journal = Journal(folder)
    if not journal.header:
        journal.start(identity())
    judge = Judge(Objective.DECODE, budget_bytes=None)
    events: list[TuneEvent] = []
    spec = TrialSpec(
        model="demo",
        settings=the_space.base.to_mapping(),
        workload=workload(),
        cache_dir=folder,
        procedure=Procedure(repeats=3),
    )
    measurer = Measurer(runner, journal, judge, spec, events.append, clock=runner.clock)
    return Workbench(runner, journal, judge, measurer, the_space, History(the_space), events)


def subject(**changes: object) -> Subject:
    return Subject(
        model="owner/demo",
        asked="demo",
        fingerprint="abc",
        hardware="linux-2c-24g",
        facts=facts(**changes),
        budget_of=lambda settings: settings.memory.budget or (1 << 30),
    )


def request(**changes: object) -> TuneRequest:
    return TuneRequest(**{"base": Settings(), "workload": workload(), "trials": 18, **changes})  # type: ignore[arg-type]


def tuned(folder: Path, runner: FakeRunner, events: list[TuneEvent] | None = None, **changes: object) -> TuneResult:
    heard = [] if events is None else events
    return tune(request(**changes), subject(), runner, folder, heard.append, clock=runner.clock)
