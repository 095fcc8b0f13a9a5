"""What can go wrong, one class per remedy.

Every message is one line that says what happened, where, and what to do next.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "AutotuneError",
    "BudgetTooSmall",
    "ContextExceeded",
    "DiskFull",
    "ExpertsNotInMemory",
    "KernelWarning",
    "ModelClosed",
    "ModelNotFound",
    "ModelNotSupported",
    "ProfileInvalid",
    "ReadError",
    "SettingsError",
    "StoreInvalid",
    "TraceInvalid",
]


class AutotuneError(Exception):
    """Base of every error a user can act on."""


class SettingsError(AutotuneError, ValueError):
    """A setting has a wrong type, value or name.  Where that is known, with what is allowed: words, or from and to."""

    def __init__(
        self, message: str, *, words: Sequence[str | int] = (), span: tuple[float, float] | None = None
    ) -> None:
        super().__init__(message)
        self.words = tuple(words)
        self.span = span


class ProfileInvalid(AutotuneError):
    """A profile file cannot be used as it is."""


class ModelNotFound(AutotuneError):
    """No folder, cached download or alias has this name."""


class ModelNotSupported(AutotuneError):
    """The model was read but cannot be streamed (dense, or a layout not known)."""


class ModelClosed(AutotuneError):
    """A model was used after it was closed."""

    def __init__(self) -> None:
        super().__init__("this model is closed; load it again")


class ExpertsNotInMemory(AutotuneError):
    """Something was asked of a streamed model that only experts in memory can do."""


class KernelWarning(UserWarning):
    """A kernel that the settings ask for is not used; the model runs as it does without."""


class ContextExceeded(AutotuneError):
    """Prompt and answer are longer than the context that the memory plan makes room for."""


class StoreInvalid(AutotuneError):
    """A store file is missing, truncated, corrupt or belongs to another checkpoint."""


class TraceInvalid(AutotuneError):
    """A recorded trace cannot be written, read or used with this model."""


class DiskFull(AutotuneError):
    """The volume has less room than the files to be written need."""


class ReadError(AutotuneError):
    """A read of expert bytes failed."""


class BudgetTooSmall(AutotuneError):
    """The memory plan exceeds the budget.

    Attributes:
        needed_bytes: what the plan asks for.
        budget_bytes: what was allowed.
        smallest_bytes: the smallest budget that works with these settings.
    """

    def __init__(self, message: str, *, needed_bytes: int, budget_bytes: int, smallest_bytes: int) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes
        self.budget_bytes = budget_bytes
        self.smallest_bytes = smallest_bytes
