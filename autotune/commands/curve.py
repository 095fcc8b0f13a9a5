"""`mlx-autotune run --objective pareto`: memory against speed."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace

from autotune.commands.output import Output
from autotune.commands.tuning import EXIT, tuned
from autotune.context import Context
from autotune.errors import RequestInvalid
from autotune.pareto import BudgetPoint, budgets_between, knee_of
from autotune.prepare import Place, plan_of
from autotune.request import Subject, TuneRequest
from autotune.result import Status
from autotune.runner import ignore
from autotune.tables import curve_table
from autotune.wording import tps_text
from streaming_core.errors import BudgetTooSmall
from streaming_core.models.outline import ModelOutline
from streaming_core.units import format_size

__all__ = ["along_budgets"]

_BUDGETS = 4
_MIB = 1 << 20


def along_budgets(
    request: TuneRequest, subject: Subject, outline: ModelOutline, place: Place, context: Context, output: Output
) -> int:
    """A search for each of some budgets, from the one asked for down to the smallest; the knee is written."""
    screen = context.screen
    budgets = _budgets(request, subject, outline, place)
    deadline = None if request.time_s is None else time.monotonic() + request.time_s
    points: list[BudgetPoint] = []
    interrupted = False
    for number, budget in enumerate(budgets):
        screen.notice(f"budget {number + 1} of {len(budgets)}: {format_size(budget)}")
        left = None if deadline is None else max(1.0, (deadline - time.monotonic()) / (len(budgets) - number))
        asked = replace(
            request,
            base=request.base.with_values({"memory.budget": budget}),
            fixed=request.fixed | {"memory.budget"},
            time_s=left,
            priors=(points[-1].result.settings,) if points else request.priors,
        )
        try:
            result = tuned(asked, subject, outline, place, context, ignore if points else output.write_best)
        except KeyboardInterrupt:
            if not points:
                raise
            interrupted = True
            break
        if result.status is Status.INTERRUPTED:
            interrupted = True
            points += [] if points else [BudgetPoint(budget, result)]
            break
        points.append(BudgetPoint(budget, result))
        output.write(knee_of(points).result, points, finished=False)
    knee = knee_of(points)
    written = output.write(knee.result, points, finished=not interrupted)
    data = {
        "profile": str(output.path),
        "written": written,
        "interrupted": interrupted,
        "curve": [point.to_json() for point in points],
        "knee": knee.to_json(),
        "settings": knee.result.settings.to_mapping(),
    }
    summary = f"{tps_text(knee.tps)} tok/s in {format_size(knee.budget_bytes)}: more memory buys little beyond; " + (
        f"written to {output.path}" if written else f"{output.path} keeps its finished result for {outline.name}"
    )
    screen.result(data, summary, lambda console: curve_table(console, points, knee, output.path))
    return EXIT[Status.INTERRUPTED] if interrupted else 0


def _budgets(request: TuneRequest, subject: Subject, outline: ModelOutline, place: Place) -> list[int]:
    """Raises RequestInvalid where there is no memory to choose from, BudgetTooSmall."""
    largest = subject.budget_of(request.base)
    if largest is None:
        raise RequestInvalid("--objective pareto needs to know how much memory there is at most; add --budget")
    whole = request.base.with_values({"memory.budget": None, "residency.resident_layers": "all"})
    with suppress(BudgetTooSmall):
        largest = min(largest, plan_of(outline, whole, place).total_bytes)
    smallest = largest
    try:
        plan_of(outline, request.base.with_values({"memory.budget": 1}), place)
    except BudgetTooSmall as err:
        smallest = -(-err.smallest_bytes // _MIB) * _MIB
    return budgets_between(smallest, largest, _BUDGETS)
