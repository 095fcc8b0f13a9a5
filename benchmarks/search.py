"""How good the search and the verdict are, on fake machines whose best settings are known.

    python benchmarks/search.py spaces --seeds 50      # trials to within 3 % of the best, against TPE and random search
    python benchmarks/search.py verdicts --seeds 200   # false accepts, a true +10 % found, knobs that do nothing

Every trial has noise, and the machine gets slower while it heats up; what counts is the true speed of what a method
would choose.  The score is that of Willemsen et al. (2024): 0 is random search, calculated without noise, 1 the optimum
at once.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

import optuna

from autotune.events import TrialStarted, TuneEvent
from autotune.history import History
from autotune.journal import Journal, Purpose
from autotune.judge import Judge
from autotune.knobs import Params
from autotune.measurer import Measurer
from autotune.proposals import Proposals
from autotune.request import Subject, TuneRequest
from autotune.result import Status
from autotune.search import Search, SearchPlan
from autotune.space import Objective
from autotune.testing import SPACES, FakeRunner, FakeSpace, Weather
from autotune.trial import Procedure, TrialSpec
from autotune.tuner import tune
from autotune.workload import Workload, workload_from_texts
from streaming_core.settings import Settings

CLOSE = 0.97  # of the best speed
METHODS = ("search", "tpe", "random")
CASES = ("nothing matters", "one knob gains 10 %")
CLAMPED = "store.layout"  # the runtime takes the default whatever is asked for, and says so
Curve = list[float]  # true speed of what would be chosen after 1, 2, ... trials, in units of the best


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("spaces", "verdicts"))
    parser.add_argument("--seeds", type=int, default=50, help="(default: 50)")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=40, help="of the search (default: 40)")
    parser.add_argument("--others", type=int, default=160, help="trials of TPE and random search (default: 160)")
    parser.add_argument("--method", action="append", choices=METHODS, help="(default: all)")
    parser.add_argument("--noise", type=float, default=0.03, help="of a sample; a trial is the median of three")
    parser.add_argument("--drift", type=float, default=0.10, help="how much slower the machine gets")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    weather = Weather(noise=args.noise, drift=args.drift)
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    if args.what == "spaces":
        found = spaces(seeds, args.trials, args.others, weather, args.method or METHODS, args.jobs)
    else:
        found = verdicts(seeds, args.trials, weather, args.jobs)
    print(json.dumps(found) if args.json else table(found))


# Spaces


def spaces(
    seeds: Iterable[int], trials: int, others: int, weather: Weather, methods: Sequence[str], jobs: int
) -> list[dict[str, Any]]:
    tasks = [(number, method, seed) for number in range(len(SPACES)) for method in methods for seed in seeds]
    curves = dict(zip(tasks, _mapped(partial(_curve, trials, others, weather), tasks, jobs), strict=True))
    rows = []
    for number in range(len(SPACES)):
        space = _space(number)
        for method in methods:
            mine = [curve for (n, m, _), curve in curves.items() if (n, m) == (number, method)]
            needed = [next((i for i, value in enumerate(curve, 1) if value >= CLOSE), math.inf) for curve in mine]
            middle = statistics.median(needed)
            rows.append({
                "space": space.name, "points": len(space.speeds), "method": method, "trials": max(map(len, mine)),
                "close": statistics.fmean(curve[min(trials, len(curve)) - 1] >= CLOSE for curve in mine),
                "of_best": statistics.fmean(curve[min(trials, len(curve)) - 1] for curve in mine),
                "needed": middle if middle < math.inf else None,
                "score": baseline_score(mine, list(space.speeds.values())),
            })  # fmt: skip
    return rows


def _curve(trials: int, others: int, weather: Weather, task: tuple[int, str, int]) -> Curve:
    number, method, seed = task
    with tempfile.TemporaryDirectory(dir=_memory()) as folder, Journal(Path(folder)) as journal:
        run = _Run(_space(number), journal, weather, seed)
        if method == "search":
            run.search(trials)
        else:
            run.compare(method, others)
        return run.curve


class _Run:
    """One method on one space."""

    def __init__(self, fake: FakeSpace, journal: Journal, weather: Weather, seed: int) -> None:
        self.curve: Curve = []
        self._fake, self._journal, self._seed = fake, journal, seed
        space = fake.space
        runner = FakeRunner(fake.speed, weather, seed=seed)
        self._judge = Judge(Objective.DECODE, budget_bytes=None)
        spec = TrialSpec(
            model="fake",
            settings=space.base.to_mapping(),
            workload=workload(),
            cache_dir=journal.folder,
            procedure=Procedure(repeats=3),
        )
        self._measurer = Measurer(runner, journal, self._judge, spec, self._hear, clock=runner.clock)
        self._history = History(space)
        self._chosen: Callable[[], Settings] = lambda: space.base

    def search(self, trials: int) -> None:
        plan = SearchPlan(trials=trials, seed=self._seed)
        search = Search(self._fake.space, self._history, self._measurer, self._judge, plan, lambda event: None)
        self._chosen = lambda: next(iter(search.finalists(1)), self._history.default).settings
        search.measure_default()
        search.run(Proposals.in_memory(self._fake.space, self._journal.records, self._judge, seed=self._seed))
        self._note()

    def compare(self, method: str, trials: int) -> None:
        """TPE, or random search, with the default to start from and the best number to choose."""
        self._chosen = lambda: self._history.ranked(self._judge)[0].settings
        space, rng = self._fake.space, random.Random(self._seed)
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=self._seed))
        default = self._history.default
        self._history.add(default, self._measurer.measure(default, Purpose.DEFAULT))
        study.add_trial(
            optuna.create_trial(
                value=default.score(self._judge),
                params=dict(default.params),
                distributions=space.distributions(default.params),
            )
        )
        for _ in range(trials - 1):
            trial = study.ask() if method == "tpe" else None
            params = space.canonical(space.suggest(trial) if trial else _anything(self._fake, rng))
            config = self._history.config(params)
            outcome = self._measurer.measure(config, Purpose.SEARCH)
            self._history.add(config, outcome)
            if trial:
                study.tell(trial, self._judge.judge(outcome).score)
        self._note()

    def _hear(self, event: TuneEvent) -> None:
        if isinstance(event, TrialStarted) and event.number > 1:
            self._note()

    def _note(self) -> None:
        self.curve.append(self._fake.speed(self._chosen()) / self._fake.best)


def _anything(fake: FakeSpace, rng: random.Random) -> Params:
    return {
        knob.name: rng.randrange(len(knob.options)) if knob.ordinal else str(rng.choice(knob.options))
        for knob in fake.space.knobs
    }


def baseline_score(curves: Sequence[Curve], speeds: Sequence[float], low: float = 0.01, high: float = 0.95) -> float:
    """The mean distance from random search to the optimum that was covered, over the trials in which random search gets
    from `low` to `high` of the way from the median to the optimum, no longer than the longest curve.
    """
    best, middle = max(speeds), statistics.median(speeds)
    parts = []
    for trials, value in enumerate(expected_best(speeds, max(map(len, curves))), 1):
        way = (value - middle) / (best - middle)
        if low <= way <= high:
            reached = statistics.fmean(curve[min(trials, len(curve)) - 1] for curve in curves) * best
            parts.append((reached - value) / (best - value))
    return statistics.fmean(parts) if parts else math.nan


def expected_best(speeds: Sequence[float], most: int) -> Iterator[float]:
    """Of 1, 2, ... different points taken at random."""
    ordered = sorted(speeds, reverse=True)
    for trials in range(1, most + 1):
        none_better, value = 1.0, 0.0  # chance that all are among those not yet looked at
        for rank, speed in enumerate(ordered):
            left = len(ordered) - rank
            if left <= trials or none_better < 1e-12:
                value += none_better * speed
                break
            chance = none_better * trials / left
            value += chance * speed
            none_better -= chance
        yield value


# Verdicts


def verdicts(seeds: Iterable[int], trials: int, weather: Weather, jobs: int) -> list[dict[str, Any]]:
    tasks = [(case, seed) for case in CASES for seed in seeds]
    rows = []
    results = dict(zip(tasks, _mapped(partial(_study, trials, weather), tasks, jobs), strict=True))
    for case in CASES:
        mine = [result for (c, _), result in results.items() if c == case]
        accepted = [result for result in mine if result["proven"]]
        rows.append({
            "case": case, "studies": len(mine), "accepted": len(accepted) / len(mine),
            "right": sum(result["right"] for result in accepted) / len(mine),
            "clamped_credited": sum(CLAMPED in result["changes"] for result in mine),
            "idle_changes": statistics.fmean(
                len(set(result["changes"]) - {"reading.page_cache"}) for result in accepted
            ) if accepted else None,
            "trials": statistics.median(result["trials"] for result in mine),
        })  # fmt: skip
    return rows


def _study(trials: int, weather: Weather, task: tuple[str, int]) -> dict[str, Any]:
    case, seed = task
    fake = _space(0)
    gain = 0.0 if case == CASES[0] else 0.10

    def speed(settings: Settings) -> float:
        return 10.0 * (1 + gain * (settings.reading.page_cache == "bypass"))

    def in_force(settings: Settings) -> Settings:
        return settings.with_values({CLAMPED: Settings().get(CLAMPED)})

    runner = FakeRunner(speed, weather, seed=seed, in_force=in_force)
    subject = Subject(
        model="fake",
        asked="fake",
        fingerprint="fake",
        hardware="fake",
        facts=fake.space.facts,
        budget_of=lambda s: None,
    )
    request = TuneRequest(base=Settings(), workload=workload(), trials=trials, seed=seed)
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        result = tune(request, subject, runner, Path(folder), clock=runner.clock)
    return {
        "proven": result.status is Status.PROVEN,
        "right": result.settings.reading.page_cache == "bypass",
        "changes": sorted(result.settings.changes_from(Settings())),
        "trials": len(result.trials),
    }


# Both


@cache
def _space(number: int) -> FakeSpace:
    return SPACES[number]()


@cache
def workload() -> Workload:
    return workload_from_texts(["one two three", "four five six", "seven eight nine"])


def _memory() -> str | None:
    """Where nothing waits for a disk, if there is such a folder."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def _mapped(work: Callable[[Any], Any], tasks: Sequence[Any], jobs: int) -> list[Any]:
    if jobs == 1:
        return [work(task) for task in tasks]
    with ProcessPoolExecutor(jobs, initializer=_quiet) as pool:
        return list(pool.map(work, tasks))


def table(rows: list[dict[str, Any]]) -> str:
    texts = [list(rows[0])] + [[_text(value) for value in row.values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in texts)


def _text(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
