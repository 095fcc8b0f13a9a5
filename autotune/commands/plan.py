"""`mlx-autotune plan`: what a model will need in memory, term by term; reads config and headers, loads nothing."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from autotune.context import Context, chosen_settings, model_name, say_checkpoint, say_settings
from autotune.errors import RequestInvalid
from autotune.prepare import Place, outline_of, plan_of
from autotune.tables import plain_table
from streaming_core.hardware import detect
from streaming_core.models.outline import ModelOutline
from streaming_core.residency.memory import MemoryPlan
from streaming_core.settings import Settings
from streaming_core.units import format_size

__all__ = ["run"]

_WORDS = {
    "process": "process",
    "trunk": "trunk (all but experts)",
    "KV cache": "KV cache and state",
    "transients": "a prefill pass",
    "MLX cache": "MLX's cache",
    "staging": "staging",
    "stages": "side buffers",
    "resident layers": "resident layers",
    "banks": "slots",
}


def run(args: argparse.Namespace, context: Context) -> int:
    """Raises BudgetTooSmall with what would fit."""
    for name, value in (("--batch", args.batch), ("--context", args.context)):
        if value is not None and value < 1:
            raise RequestInvalid(f"{name} must be at least 1, got {value}")
    model = model_name(args)
    place = Place(detect(), args.cache_dir)
    choice = chosen_settings(args, place.machine)
    settings = choice.settings
    if args.context is not None:
        settings = settings.with_values({"memory.context": args.context}, "--context")
    screen = context.screen
    outline = outline_of(model, place, screen.progress, download=False)
    choice.check(model, outline)
    plan = plan_of(outline, settings, place, args.batch)
    say_settings(choice, place.machine.hardware(), screen)
    say_checkpoint(outline, settings, screen)
    lines = _lines(outline, plan, settings, args.batch)

    def show(console: Console) -> None:
        console.print(Text(outline.name))
        rows = [[_WORDS.get(name, name), format_size(nbytes)] for name, nbytes in plan.terms.items()]
        rows.append(["total", format_size(plan.total_bytes)])
        if plan.budget_bytes is not None:
            rows.append(["budget", format_size(plan.budget_bytes)])
            rows.append(["left", format_size(plan.budget_bytes - plan.total_bytes)])
        console.print(plain_table(["", ""], rows))
        for line in lines:
            console.print(Text(line))

    screen.result(_data(outline, plan, settings, args.batch), _summary(outline, plan, lines), show)
    return 0


def _summary(outline: ModelOutline, plan: MemoryPlan, lines: Sequence[str]) -> str:
    of = "" if plan.budget_bytes is None else f" of {format_size(plan.budget_bytes)}"
    return f"{outline.name}: {format_size(plan.total_bytes)}{of}; {lines[0]}"


def _lines(outline: ModelOutline, plan: MemoryPlan, settings: Settings, batch: int) -> list[str]:
    demand, context = outline.demand, settings.memory.context
    experts = f"{outline.experts} experts of {format_size(outline.record_bytes)}"
    if plan.streamed:
        slots = f"{plan.slots} slots (at least {outline.top_k}) in each of {len(plan.streamed)} layers"
        places = f"{slots} with {experts}"
    else:
        places = f"all {len(outline.layers)} layers with {experts} stay in memory"
    state = f", {format_size(demand.kv_fixed_bytes)} of state" if demand.kv_fixed_bytes else ""
    windows = "".join(
        f", {format_size(nbytes)} for each of the last {kept} tokens" for kept, nbytes in demand.kv_windows
    )
    sequences = f"each of {batch} sequences" if batch > 1 else "a sequence"
    return [
        places,
        f"{sequences} of {context} tokens takes {format_size(demand.kv_token_bytes)} a token{windows}{state}",
        f"a prefill pass has {plan.chunk} tokens{' of each' if batch > 1 else ''}",
    ]


def _data(outline: ModelOutline, plan: MemoryPlan, settings: Settings, batch: int) -> dict[str, Any]:
    demand = outline.demand
    left = None if plan.budget_bytes is None else plan.budget_bytes - plan.total_bytes
    return {
        "model": outline.name,
        "context": settings.memory.context,
        "batch": batch,
        "terms": dict(plan.terms),
        "total_bytes": plan.total_bytes,
        "budget_bytes": plan.budget_bytes,
        "left_bytes": left,
        "slots": plan.slots,
        "experts": outline.experts,
        "experts_per_token": outline.top_k,
        "record_bytes": outline.record_bytes,
        "expert_bytes": outline.expert_bytes,
        "resident_layers": str(plan.resident),
        "streamed_layers": len(plan.streamed),
        "prefill_chunk": plan.chunk,
        "kv_token_bytes": demand.kv_token_bytes,
        "kv_windows": [{"tokens": kept, "token_bytes": nbytes} for kept, nbytes in demand.kv_windows],
        "state_bytes": demand.kv_fixed_bytes,
        "formats": [str(each) for each in outline.formats],
        "layout": outline.layout_text(settings.store.layout),
        "unused_tensors": list(outline.unused),
    }
