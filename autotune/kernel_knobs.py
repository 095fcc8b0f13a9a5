"""Which custom kernels are searched, and up to how many tokens of a call.

To the search a kernel's switch and its largest call are one number, `off` at its start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.knobs import AnyOf, Condition, Knob, Value
from streaming_core.settings import Settings

__all__ = ["MAX_SEQ", "kernel_knobs", "kernel_settings", "used_up_to"]

FUSED = "kernels.fused_max_seq"
INDEXED = "kernels.indexed_max_seq"
MAX_SEQ = {FUSED: "fused", INDEXED: "indexed"}  # knob -> its kernel
_OFF = "off"
_STEPS = (1, 2, 4, 8, 16, 32)


def used_up_to(settings: Settings, name: str) -> Value:
    """The most tokens of a call that a kernel runs in; `off`."""
    on = settings.get(f"kernels.{name}") == "on"
    most: Value = settings.get(f"kernels.{name}_max_seq") if on else _OFF
    return most


def kernel_settings(values: Mapping[str, Value]) -> dict[str, Any]:
    """Values of knobs as settings."""
    changed: dict[str, Any] = {key: value for key, value in values.items() if key not in MAX_SEQ}
    for key, name in MAX_SEQ.items():
        if key in values:
            off = values[key] == _OFF
            changed |= {f"kernels.{name}": _OFF} if off else {f"kernels.{name}": "on", key: values[key]}
    return changed


def kernel_knobs(base: Settings, kernels: tuple[str, ...], fixed: frozenset[str], *, decode_only: bool) -> list[Knob]:
    """`kernels` are those that exist here.  `decode_only`: no call of more than one token is measured."""
    on = {
        key: tuple(step for step in _steps(base, key, fixed, decode_only) if step != _OFF)
        for key, name in MAX_SEQ.items()
        if name in kernels
    }
    used = {key: Condition(key, steps) for key, steps in on.items() if steps}
    if not used:
        return []
    # Where the fused kernel runs, the other one has nothing left to do in the calls that are measured.
    unless_fused = Condition(FUSED, (_OFF,))
    knobs = [
        Knob(
            name=key,
            options=_steps(base, key, fixed, decode_only),
            ordinal=True,
            when=unless_fused if key == INDEXED and FUSED in used else None,
        )
        for key in used
    ]
    if INDEXED in used:
        knobs.append(Knob(name="kernels.targets", options=("gate_up", "all"), ordinal=False, when=used[INDEXED]))
    blocks = tuple(sorted({32, 64, 128, 256, 512, base.kernels.block}))
    some = AnyOf(tuple(used.values()))
    return [
        *knobs,
        Knob(name="kernels.tile", options=(1, 2, 4, 8), ordinal=True, when=some),
        Knob(name="kernels.lanes", options=(8, 16, 32), ordinal=True, when=some),
        Knob(name="kernels.block", options=blocks, ordinal=True, when=some),
    ]


def _steps(base: Settings, key: str, fixed: frozenset[str], decode_only: bool) -> tuple[Value, ...]:
    """What is offered for one kernel; where the user turned it on or off, only that."""
    default: int = base.get(key)
    steps: tuple[Value, ...] = (default,) if decode_only or key in fixed else tuple(sorted({*_STEPS, default}))
    if f"kernels.{MAX_SEQ[key]}" not in fixed:
        return (_OFF, *steps)
    return steps if base.get(f"kernels.{MAX_SEQ[key]}") == "on" else (_OFF,)
