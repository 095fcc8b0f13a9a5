"""What the space needs to know about model and machine, and what settings come to there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from streaming_core.layer_set import LayerSet
from streaming_core.settings import Settings

__all__ = [
    "BACKEND",
    "GUESSED",
    "POLICY",
    "RESIDENT",
    "SLOTS",
    "SpaceFacts",
    "guessed_share",
    "largest_slots",
    "most_resident",
    "resident_count",
    "slots_share",
]

RESIDENT = "residency.resident_layers"
SLOTS = "residency.slots"
POLICY = "residency.policy"
BACKEND = "prefetch.backend"
GUESSED = "prefetch.layers"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceFacts:
    """What the space needs to know about model and machine."""

    layers: tuple[int, ...]  # decoder-layer numbers of the MoE layers
    ranking: tuple[int, ...]  # the same layers, the one that gains most from being resident first
    guess_ranking: tuple[int, ...] = ()  # likewise, the one that gains most from guesses first; (): as `ranking`
    experts: int  # per layer
    top_k: int
    backend: str  # cpu, metal or cuda
    readers: tuple[str, ...] = ("auto",)  # values of reading.reader that differ in this installation
    kernels: tuple[str, ...] = ()  # those that exist for the backend and the model: fused, indexed
    guesses: tuple[str, ...] = ("gate_input", "cascade", "gate", "frequency")  # values of predict.kind that can be had
    fits: Callable[[Settings], bool]  # whether the memory plan of these settings is within the budget

    @property
    def fewest_slots(self) -> int:
        """What one token needs."""
        return min(self.top_k, self.experts)


def guessed_share(settings: Settings, facts: SpaceFacts) -> float:
    """For how many of the MoE layers these settings act on guesses."""
    named = LayerSet.parse(settings.prefetch.layers)
    return round(sum(layer in named for layer in facts.layers) / len(facts.layers), 4)


def resident_count(settings: Settings, facts: SpaceFacts) -> int:
    """How many MoE layers these settings keep resident."""
    wanted = settings.residency.resident_layers
    if isinstance(wanted, int):
        return min(wanted, len(facts.layers))
    if wanted == "auto":
        return len(facts.layers) if facts.fits(settings.with_values({RESIDENT: "all"})) else 0
    resident = LayerSet.parse(wanted)
    return sum(layer in resident for layer in facts.layers)


def slots_share(settings: Settings, largest: int) -> float:
    slots = settings.residency.slots
    return 1.0 if isinstance(slots, str) else min(1.0, round(slots / largest, 4))


def largest_slots(settings: Settings, facts: SpaceFacts) -> int:
    low, high = facts.fewest_slots, facts.experts
    while low < high:
        middle = (low + high + 1) // 2
        if facts.fits(settings.with_values({SLOTS: middle})):
            low = middle
        else:
            high = middle - 1
    return low


def most_resident(base: Settings, facts: SpaceFacts, fixed: frozenset[str]) -> int:
    """The most layers that can be resident while the others still have the slots one token needs."""
    slots = base.residency.slots if SLOTS in fixed else facts.fewest_slots
    low, high = 0, len(facts.layers)
    while low < high:
        middle = (low + high + 1) // 2
        if facts.fits(base.with_values({RESIDENT: middle, SLOTS: slots})):
            low = middle
        else:
            high = middle - 1
    return low
