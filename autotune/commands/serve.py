"""`mlx-autotune serve`: OpenAI's API over a streamed model, by mlx_lm's own server."""

from __future__ import annotations

import argparse
import contextlib
from typing import TYPE_CHECKING, Any

from autotune.commands.opened import chosen, opened
from autotune.context import Choice, Context, model_name

if TYPE_CHECKING:
    from streaming_core import StreamedModel

__all__ = ["run"]


def run(args: argparse.Namespace, context: Context) -> int:
    choice = chosen(args, context)
    model = model_name(args)
    from autotune.serving import StreamedGenerator, bind

    screen = context.screen
    # The address first: loading takes long, and a port in use ends it all.
    with bind(args.host, args.port) as server, opened(args, context, choice) as streamed:
        facts = _facts(streamed, choice)
        ready = {"url": server.url, "port": server.server_port, "model": model, **facts}
        line = f"serving {model} at {server.url} (port {server.server_port}): {_mode(facts)}; {choice.reason}"
        generator = StreamedGenerator(streamed, model, args.max_tokens)
        try:
            with contextlib.suppress(KeyboardInterrupt):  # how a server ends
                server.serve(generator, lambda: screen.report("ready", ready, line), screen.notice)
        finally:
            generator.close()
    screen.notice("stopped")
    return 0


def _facts(streamed: StreamedModel, choice: Choice) -> dict[str, Any]:
    plan = streamed.memory_plan
    return {
        "layout": streamed.settings.store.layout,
        "slots": plan.slots,
        "experts": streamed.outline.experts,
        "streamed_layers": len(plan.streamed),
        "context": streamed.settings.memory.context,
        "settings": choice.reason,
    }


def _mode(facts: dict[str, Any]) -> str:
    if not facts["streamed_layers"]:
        return "all experts in memory"
    source = "packed records" if facts["layout"] == "packed" else "the checkpoint"
    return f"streamed from {source}, {facts['slots']} of {facts['experts']} experts of a layer in memory"
