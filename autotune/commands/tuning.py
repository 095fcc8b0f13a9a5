"""One tuning of a real model, with its probes and its simulation, told to the screen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autotune.context import Context, say_busy, say_kernels, say_reader
from autotune.knobs import Params
from autotune.prepare import Place, pack_store, store_files
from autotune.probe import DiskRow, probe_disk
from autotune.request import Subject, TuneRequest
from autotune.result import Status, TuneResult
from autotune.runner import WorkerRunner
from autotune.simulate.outlook import Outlook
from autotune.simulate.priors import best_of, candidates, foreseen
from autotune.space import Objective, Space
from autotune.subject import probe_plan
from autotune.tuner import tune
from streaming_core.errors import AutotuneError
from streaming_core.models.outline import ModelOutline
from streaming_core.progress import Progress

__all__ = ["EXIT", "tuned"]

EXIT = {Status.PROVEN: 0, Status.DEFAULT_KEPT: 0, Status.INTERRUPTED: 130}
_SIMULATION_S = 8.0


def tuned(
    request: TuneRequest,
    subject: Subject,
    outline: ModelOutline,
    place: Place,
    context: Context,
    on_best: Callable[[TuneResult], None],
) -> TuneResult:
    screen = context.screen
    say_busy(place.machine, screen)
    say_reader(request.base, screen)
    say_kernels(request.base, place.machine, screen)

    def probe() -> Sequence[DiskRow]:
        settings = request.base
        pack_store(outline, place, settings, screen.progress)
        files = store_files(outline, place, settings.store.layout)
        return probe_disk(
            files,
            place.machine,
            probe_plan(outline, settings),
            lambda done, of: screen.progress(Progress("probing the disk", done, of, "points")),
        )

    def foresee(space: Space) -> Sequence[Params]:
        if place.machine.hardware().backend == "cuda" or request.objective is not Objective.DECODE:
            return ()  # what the simulation does not tell
        proposals = candidates(space, request.seed)
        asked = Outlook(
            model=subject.asked,
            cache_dir=place.cache_dir,
            workload=request.workload,
            base=space.base.to_mapping(),
            candidates=[space.settings(params).to_mapping() for params in proposals],
            limit_s=_SIMULATION_S,
        )
        try:
            return best_of(foreseen(asked, context.environment), proposals)
        except AutotuneError as err:
            screen.notice(f"no settings were foreseen by simulation: {err}")
            return ()

    try:
        with WorkerRunner(context.environment) as runner:
            return tune(
                request, subject, runner, place.cache_dir, screen.event, probe=probe, foresee=foresee, on_best=on_best
            )
    finally:
        screen.close()
