"""What can go wrong in the tuner itself; one class per remedy, next to those of `streaming_core.errors`."""

from __future__ import annotations

from streaming_core.errors import AutotuneError

__all__ = ["RequestInvalid", "StudyInvalid", "WorkerFailed"]


class RequestInvalid(AutotuneError):
    """What was asked for makes no sense: no trials, a negative time, an unknown option value."""


class StudyInvalid(AutotuneError):
    """The files of an earlier run cannot be carried on, or another process is using them."""


class WorkerFailed(AutotuneError):
    """No worker process could be started, or the default settings do not run at all."""
