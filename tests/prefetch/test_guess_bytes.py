"""Bytes of guesses are those that were read, whatever became of the others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from prefetch_cases import HeldTicket, Manners, PutIn, Unruly, run, settings

import streaming_core
from streaming_core.reading import Read, Ticket, Urgency

RECORD = 36_864


@pytest.mark.parametrize("backend", ["slots", "stage"])
def test_what_was_taken_back_before_it_was_read_is_not_counted(
    tiny: Path, shared_cache: Path, put_in: PutIn, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    tickets: list[HeldTicket] = []
    submit = Unruly.submit

    def noted(unruly: Unruly, reads: Sequence[Read], urgency: Urgency = Urgency.DEMAND) -> Ticket:
        ticket = submit(unruly, reads, urgency)
        if isinstance(ticket, HeldTicket):
            tickets.append(ticket)
        return ticket

    monkeypatch.setattr(Unruly, "submit", noted)
    put_in(Manners(polls=6))
    wanted = settings(residency__slots=8, predict__kind="gate", predict__mult=3.0, prefetch__backend=backend)
    with streaming_core.load(tiny, wanted, cache_dir=shared_cache) as model:
        run(model.model, 33, 16, 1)
        for ticket in tickets:
            ticket.polls = 1_000_000  # nothing more begins
            if ticket.begun is not None:
                ticket.begun.wait()
        read = [ticket for ticket in tickets if ticket.ended and not ticket.cancelled]
        stats = model.stats()
        assert stats.guessed == len(tickets) > len(read) > 0
        assert sum(row.guesses_read for row in stats.layers) == len(read)
        assert stats.prefetch_bytes == len(read) * RECORD
        assert 0 <= stats.wasted_bytes <= stats.prefetch_bytes
        assert model.stats().prefetch_bytes == stats.prefetch_bytes, "asking twice counts nothing twice"
        model.reset_stats()
        assert (model.stats().prefetch_bytes, model.stats().wasted_bytes) == (0, 0)
    assert model.stats().prefetch_bytes == 0, "nor does closing"
