"""The fixed workload that every trial replays.

A passage is a prompt and a continuation that is forced upon the model token by token, so that two trials do the
same work whatever they would have said themselves.  The texts come from a corpus, not from the model: experts are
used as variedly as in real text, and no repetition loop flatters the hit rate.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from autotune.errors import RequestInvalid

__all__ = ["Passage", "Workload", "check_room", "workload_from_texts"]


@dataclass(frozen=True, slots=True)
class Passage:
    """One prompt and the text that is replayed after it."""

    prompt: str
    continuation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Passages and how many tokens of each are used.  Texts that are too short are repeated, never padded."""

    name: str
    passages: tuple[Passage, ...]
    prompt_tokens: int = 64
    warmup_tokens: int = 16  # decoded before the clock starts: the slots are then filled as in steady use
    decode_tokens: int = 48  # timed

    def __post_init__(self) -> None:
        if not self.passages:
            raise RequestInvalid("a workload needs at least one passage")
        for field, low in (("prompt_tokens", 1), ("warmup_tokens", 0), ("decode_tokens", 2)):
            if getattr(self, field) < low:
                raise RequestInvalid(f"workload {field} must be at least {low}, got {getattr(self, field)}")

    @property
    def content_hash(self) -> str:
        """Equal for workloads that make a model do the same work."""
        plain = json.dumps({**self.to_json(), "name": ""}, sort_keys=True)
        return hashlib.sha256(plain.encode()).hexdigest()[:12]

    @property
    def context_tokens(self) -> int:
        return self.prompt_tokens + 1 + self.warmup_tokens + self.decode_tokens  # 1: the prompt gives the first

    def check_room(self, context: int) -> None:
        """Raises RequestInvalid when a passage is longer than the memory plan makes room for."""
        check_room(self.context_tokens, context)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Workload:
        passages = tuple(Passage(**each) for each in raw["passages"])
        return cls(**{**raw, "passages": passages})


def check_room(tokens: int, context: int) -> None:
    """Raises RequestInvalid when a passage of so many tokens is longer than the memory plan makes room for."""
    if tokens > context:
        raise RequestInvalid(
            f"a passage has {tokens} tokens (prompt, warm-up and decoded), memory.context makes room "
            f"for {context}; ask for fewer or pass --set memory.context={tokens}"
        )


def workload_from_texts(texts: Sequence[str], *, name: str = "default") -> Workload:
    """Text i is prompted, text i + 1 is replayed after it; the last one wraps around.

    Other lengths: `dataclasses.replace(workload, decode_tokens=...)`.
    """
    passages = tuple(Passage(text, texts[(i + 1) % len(texts)]) for i, text in enumerate(texts))
    return Workload(name=name, passages=passages)
