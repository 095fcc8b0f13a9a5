"""Which expert is in which slot of one layer.  Pure decisions: no arrays, no reads, no clock."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from streaming_core.residency.policy import Policy

__all__ = ["Miss", "Plan", "SlotTable"]


@dataclass(frozen=True, slots=True)
class Miss:
    """An expert to be read into a slot."""

    expert: int
    slot: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What a set of asked experts needs.  They are held, that is no victims, until the plan is released."""

    experts: tuple[int, ...]
    misses: tuple[Miss, ...]

    @property
    def hits(self) -> int:
        return len(self.experts) - len(self.misses)


class SlotTable:
    """At most `slots` of `experts` are resident.  Used by one thread."""

    def __init__(self, experts: int, slots: int, policy: Policy) -> None:
        if not 1 <= slots <= experts:
            raise ValueError(f"slots must be from 1 to {experts}, got {slots}")
        self.experts = experts
        self.slots = slots
        self._policy = policy
        self._slot_of: dict[int, int] = {}
        self._free = list(range(slots - 1, -1, -1))
        self._holds: dict[int, int] = {}  # expert -> how many plans hold it

    def __contains__(self, expert: object) -> bool:
        return expert in self._slot_of

    def slot(self, expert: int) -> int:
        """The slot of a resident expert.  Raises KeyError."""
        return self._slot_of[expert]

    @property
    def resident(self) -> Iterable[int]:
        return self._slot_of.keys()

    def plan(self, experts: Sequence[int]) -> Plan:
        """Gives every asked expert a slot, and says which of them must be read.

        Args:
            experts: distinct expert numbers.  With those already held they must fit into the slots.

        Raises:
            ValueError: an expert that the layer does not have, or more than the slots can hold at once.
        """
        missing = [e for e in experts if e not in self._slot_of]
        self._policy.begin()
        for expert in experts:
            self._holds[expert] = self._holds.get(expert, 0) + 1
        try:
            slots = self._make_room(missing)
        except ValueError:
            self._unhold(experts)
            raise
        for expert in experts:
            self._policy.use(expert)
        misses = tuple(map(Miss, missing, slots))
        for miss in misses:
            self._slot_of[miss.expert] = miss.slot
        return Plan(tuple(experts), misses)

    def admit(self, experts: Sequence[int], likely: Collection[int]) -> list[Miss]:
        """Gives guessed, absent experts a slot each as long as there is room, and holds them.

        Nothing held and nothing in `likely` makes room.  What is admitted is the first to go once it is no longer held,
        unless it was asked for: a wrong guess costs a read, not a resident.
        """
        wanted = [e for e in experts if e not in self._slot_of and 0 <= e < self.experts]
        kept = self._holds.keys() | set(likely)
        lacking = len(wanted) - len(self._free)
        for victim in self._policy.victims(lacking, kept) if lacking > 0 else []:
            self.forget(victim)
        misses = [Miss(expert, self._free.pop()) for expert in wanted[: len(self._free)]]
        for miss in misses:
            self._slot_of[miss.expert] = miss.slot
            self._policy.admit(miss.expert)
            self._holds[miss.expert] = self._holds.get(miss.expert, 0) + 1
        return misses

    def unhold(self, expert: int) -> None:
        """Ends the hold of an admitted expert.  Call once per admission."""
        self._unhold((expert,))

    def _make_room(self, missing: Sequence[int]) -> list[int]:
        for expert in missing:
            if not 0 <= expert < self.experts:
                raise ValueError(f"expert {expert} asked for; the layer has {self.experts}")
        lacking = len(missing) - len(self._free)
        victims = self._policy.victims(lacking, self._holds) if lacking > 0 else []
        if len(victims) < lacking:
            raise ValueError(f"{len(self._holds)} experts are needed at once; the layer has {self.slots} slots")
        for victim in victims:
            self.forget(victim)
        return [self._free.pop() for _ in missing]

    def forget(self, expert: int) -> None:
        """Empties the expert's slot: its bytes did not arrive, or it made room."""
        self._policy.drop(expert)
        self._free.append(self._slot_of.pop(expert))

    def clear(self) -> None:
        """Empties every slot and ends every hold, whatever state an interrupted call left behind."""
        for expert in range(self.experts):
            self._policy.drop(expert)
        self._slot_of.clear()
        self._holds.clear()
        self._free = list(range(self.slots - 1, -1, -1))

    def release(self, plan: Plan) -> None:
        """Ends the plan's hold.  Call once per plan."""
        self._unhold(plan.experts)

    def _unhold(self, experts: Iterable[int]) -> None:
        for expert in experts:
            left = self._holds[expert] - 1
            if left:
                self._holds[expert] = left
            else:
                del self._holds[expert]
