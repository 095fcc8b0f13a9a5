"""What is done with a guess: nothing, a hint to the system, a read into a side buffer, or a read into a slot."""

from streaming_core.prefetch.backends import (
    AdvisePrefetch,
    NoPrefetch,
    Prefetch,
    SlotPrefetch,
    StagePrefetch,
)
from streaming_core.prefetch.budget import Budget, PassBudget
from streaming_core.prefetch.reads import GuessReads, PrefetchLayer
from streaming_core.prefetch.side import SideBuffers

__all__ = [
    "AdvisePrefetch",
    "Budget",
    "GuessReads",
    "NoPrefetch",
    "PassBudget",
    "Prefetch",
    "PrefetchLayer",
    "SideBuffers",
    "SlotPrefetch",
    "StagePrefetch",
]
