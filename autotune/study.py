"""Opens the study that a request means: its journal, and the space that its trials are points of."""

from __future__ import annotations

from pathlib import Path

from autotune.events import Notice, OnEvent
from autotune.journal import Journal, set_aside
from autotune.request import Subject, TuneRequest, first_space
from autotune.space import Space

__all__ = ["open_study"]


def open_study(request: TuneRequest, subject: Subject, studies: Path, on_event: OnEvent) -> tuple[Journal, Space]:
    """The study's journal, and the space with the budget that it was begun with.

    What is available differs from one minute to the next; trials under different budgets could not be compared.
    """
    identity = request.identity(subject)
    folder = studies / identity.name
    if request.fresh:
        set_aside(folder)
    journal = Journal(folder)
    budget = journal.header.get("budget_bytes", None) if journal.header else subject.budget_of(request.base)
    space = first_space(request, subject, budget)
    if journal.header and journal.header["space"] != space.content_hash:
        journal.close()
        aside = set_aside(folder)
        on_event(Notice(f"what can be searched has changed; the earlier trials are now in {aside}"))
        journal = Journal(folder)
        budget = subject.budget_of(request.base)
        space = first_space(request, subject, budget)
    if not journal.header:
        journal.start(identity, budget_bytes=budget, space=space.content_hash)
    elif journal.records:
        on_event(Notice(f"carrying on: {len(journal.records)} trials of an earlier run are known"))
    return journal, space
