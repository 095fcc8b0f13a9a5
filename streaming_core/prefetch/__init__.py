"""What is done with a guess: nothing, a hint to the system, a read into a side buffer, or a read into a slot."""

from streaming_core.prefetch.backends import (
    AdvisePrefetch,
    NoPrefetch,
    Prefetch,
    PrefetchLayer,
    SlotPrefetch,
    StagePrefetch,
)
from streaming_core.prefetch.budget import Budget, PassBudget

__all__ = [
    "AdvisePrefetch",
    "Budget",
    "NoPrefetch",
    "PassBudget",
    "Prefetch",
    "PrefetchLayer",
    "SlotPrefetch",
    "StagePrefetch",
]
