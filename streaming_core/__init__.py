"""Streams the experts of Mixture-of-Experts models through mlx-lm's own model code, exactly.

with streaming_core.load("mlx-community/Qwen3-Next-80B-A3B-Instruct-4bit", load_profile()) as model:
    for piece in model.stream("Why is the sky blue?"):
        print(piece.text, end="", flush=True)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streaming_core.errors import AutotuneError, KernelWarning
    from streaming_core.layer_set import LayerSet
    from streaming_core.profile import Profile, load_profile
    from streaming_core.progress import Progress
    from streaming_core.residency.memory import MemoryPlan
    from streaming_core.runtime import StreamedModel, inspect, load, plan
    from streaming_core.settings import Settings
    from streaming_core.trace import Stats

__all__ = [
    "AutotuneError",
    "KernelWarning",
    "LayerSet",
    "MemoryPlan",
    "Profile",
    "Progress",
    "Settings",
    "Stats",
    "StreamedModel",
    "inspect",
    "load",
    "load_profile",
    "plan",
]

_HOMES = {
    "AutotuneError": "errors",
    "KernelWarning": "errors",
    "LayerSet": "layer_set",
    "MemoryPlan": "residency.memory",
    "Profile": "profile",
    "Progress": "progress",
    "Settings": "settings",
    "Stats": "trace",
    "StreamedModel": "runtime",
    "inspect": "runtime",
    "load": "runtime",
    "load_profile": "profile",
    "plan": "runtime",
}


def __getattr__(name: str) -> Any:
    # Loaded when first asked for: importing mlx_lm takes a second or two, and who reads settings does not need it.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
