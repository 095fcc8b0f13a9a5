"""Numbers and events in words.  Pure functions; every text that people see of a tuning comes from here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.events import (
    BestChanged,
    NoiseMeasured,
    Notice,
    PhaseStarted,
    ResultReady,
    TrialFinished,
    TrialProgressed,
    TrialStarted,
    TuneEvent,
)

__all__ = ["changes_text", "event_text", "gain_text", "seconds_text", "tps_text"]


def tps_text(tps: float) -> str:
    """Three significant digits: more would be noise."""
    return f"{tps:.0f}" if tps >= 100 else f"{tps:.1f}" if tps >= 10 else f"{tps:.2f}"


def gain_text(ratio: float) -> str:
    return f"{ratio - 1:+.1%}" if ratio < 10 else f"{ratio:.0f} times"


def seconds_text(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 90:
        return f"{seconds:.3g} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def changes_text(changes: Mapping[str, Any]) -> str:
    """`slots=32 threads=8`; the section is left out, names are unique enough for people."""
    return " ".join(f"{key.partition('.')[2]}={value}" for key, value in changes.items()) or "default"


def event_text(event: TuneEvent) -> str:
    """One line, or nothing for an event that only moves a progress bar."""
    match event:
        case PhaseStarted(phase=phase, note=note):
            return f"{phase}: {note}" if note else ""
        case TrialStarted() | TrialProgressed() | ResultReady():
            return ""
        case TrialFinished():
            return _finished(event)
        case NoiseMeasured(sigma=sigma, credible_gain=gain, measurements=count):
            if count < 2:
                return "noise unknown: the default was measured once"
            return f"noise {sigma:.1%} over {count} measurements; a gain below {gain:.1%} says nothing yet"
        case BestChanged(decode_tps=tps, ratio=ratio, changes=changes):
            return f"best so far {tps_text(tps)} tok/s ({gain_text(ratio)}): {changes_text(changes)}"
        case Notice(text=text):
            return text


def _finished(event: TrialFinished) -> str:
    if event.decode_tps is None:
        return f"trial {event.number}: {event.kind.replace('_', ' ')}: {event.detail}"
    ratio = "" if event.ratio is None else f" ({gain_text(event.ratio)})"
    detail = f"; breaks {event.detail}" if event.detail and event.detail != "cut short" else ""
    return f"trial {event.number}: {tps_text(event.decode_tps)} tok/s{ratio}{detail}"
