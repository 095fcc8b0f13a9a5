"""The model that a command talks to: settings chosen, process as they want it, loaded, everything about it said."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from autotune.context import Choice, Context, chosen_settings, model_name, restarted_for, say_checkpoint, say_settings
from autotune.errors import RequestInvalid
from streaming_core.hardware import detect

if TYPE_CHECKING:
    from streaming_core import StreamedModel

__all__ = ["chosen", "opened"]


def chosen(args: argparse.Namespace, context: Context) -> Choice:
    """May start the process anew, so it comes before anything is read.  Raises RequestInvalid, ProfileInvalid."""
    if args.max_tokens < 1:
        raise RequestInvalid(f"--max-tokens must be at least 1, got {args.max_tokens}")
    model_name(args)  # raises where there is none
    choice = chosen_settings(args, detect())
    restarted_for(choice.settings, context)
    return choice


@contextmanager
def opened(args: argparse.Namespace, context: Context, choice: Choice) -> Iterator[StreamedModel]:
    """Raises what `streaming_core.load` does, and ProfileInvalid for a profile of another checkpoint."""
    import streaming_core

    screen = context.screen
    say_settings(choice, detect().hardware(), screen)
    model = model_name(args)
    with streaming_core.load(model, choice.settings, cache_dir=args.cache_dir, on_progress=screen.progress) as streamed:
        choice.check(model, streamed.outline)
        say_checkpoint(streamed.outline, choice.settings, screen)
        yield streamed
