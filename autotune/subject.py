"""A real model on a real machine, as the tuner sees it."""

from __future__ import annotations

from autotune.prepare import Place, fits, plan_of
from autotune.probe import ProbePlan
from autotune.request import Subject
from autotune.space import SpaceFacts
from streaming_core.kernels.formats import ExpertFormat
from streaming_core.kernels.offer import makers
from streaming_core.models.outline import ModelOutline
from streaming_core.reading import native_available
from streaming_core.settings import KernelSettings, Settings

__all__ = ["probe_plan", "subject_of"]


def subject_of(asked: str, outline: ModelOutline, place: Place) -> Subject:
    hardware = place.machine.hardware()

    def budget_of(settings: Settings) -> int | None:
        return plan_of(outline, settings, place).budget_bytes

    return Subject(
        model=outline.name,
        asked=asked,
        fingerprint=outline.fingerprint,
        hardware=hardware.profile_name(),
        facts=SpaceFacts(
            layers=outline.layers,
            ranking=outline.layers,
            experts=outline.experts,
            top_k=outline.top_k,
            backend=hardware.backend,
            readers=("auto", "threads") if native_available() else ("auto",),
            kernels=_kernels(outline, hardware.backend),
            guesses=(*outline.guess_kinds, "frequency"),
            fits=fits(outline, place),
        ),
        budget_of=budget_of,
    )


def _kernels(outline: ModelOutline, backend: str) -> tuple[str, ...]:
    """Those that can compute the experts of some layer."""
    formats = [each for each in outline.formats if isinstance(each, ExpertFormat)]
    default = KernelSettings()
    return tuple(m.name for m in makers(backend) if any(m.refusal(each, default) is None for each in formats))


def probe_plan(outline: ModelOutline, settings: Settings) -> ProbePlan:
    """Reads of the size that trials make, by the same reader."""
    return ProbePlan(read_bytes=(outline.record_bytes,), reader=settings.reading.reader)
