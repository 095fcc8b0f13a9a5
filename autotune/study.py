"""Opens the study that a request means: its journal, the space of its trials, and who else works on it."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from uuid import uuid4

from autotune.errors import StudyInvalid
from autotune.events import Notice, OnEvent
from autotune.journal import Journal, StudyIdentity, set_aside
from autotune.peers import ALONE, Peers, Shared
from autotune.request import Subject, TuneRequest, first_space
from autotune.shared_study import SharedStudy
from autotune.space import Space

__all__ = ["open_study"]


def open_study(
    request: TuneRequest, subject: Subject, studies: Path, on_event: OnEvent
) -> tuple[Journal, Space, Peers]:
    """The journal is open; the space has the budget that the study was begun with.

    What is available differs from one minute to the next; trials under different budgets could not be compared.
    """
    identity = request.identity(subject)
    shared = None if request.storage is None else SharedStudy(request.storage, identity.name)
    # A journal of its own: trials under another budget than the one that is shared could not be told to others.
    suffix = "" if request.storage is None else f"-{sha256(request.storage.encode()).hexdigest()[:6]}"
    folder = studies / f"{identity.name}{suffix}"
    if request.fresh:
        set_aside(folder)
    journal = Journal(folder)
    try:
        budget = journal.header["budget_bytes"] if journal.header else subject.budget_of(request.base)
        agreed = budget if shared is None else shared.agree("budget_bytes", budget)
        space = first_space(request, subject, agreed)
        if journal.header and journal.header["space"] != space.content_hash:
            journal.close()
            aside = set_aside(folder)
            on_event(Notice(f"what can be searched has changed; the earlier trials are now in {aside}"))
            journal = Journal(folder)
            if shared is None:
                agreed = subject.budget_of(request.base)
                space = first_space(request, subject, agreed)
        if shared is not None and shared.agree("space", space.content_hash) != space.content_hash:
            raise StudyInvalid(
                f"--storage {shared.where}: other settings can be searched here than on the machine that began the "
                "study; compare what `mlx-autotune doctor` says on both, or name another database"
            )
        _begin(journal, identity, space, agreed, on_event, shared is not None)
        if shared is None:
            return journal, space, ALONE
        return journal, space, Shared(shared, journal.header["owner"], space, request.objective, journal.records)
    except BaseException:
        journal.close()
        raise


def _begin(
    journal: Journal, identity: StudyIdentity, space: Space, budget: int | None, on_event: OnEvent, shared: bool
) -> None:
    if journal.header:
        if journal.records:
            on_event(Notice(f"carrying on: {len(journal.records)} trials of an earlier run are known"))
        return
    owner = {"owner": uuid4().hex[:12]} if shared else {}
    journal.start(identity, budget_bytes=budget, space=space.content_hash, **owner)
