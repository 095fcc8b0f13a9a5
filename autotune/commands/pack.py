"""`mlx-autotune pack`: the experts in files of their own, checked on request."""

from __future__ import annotations

import argparse

from rich.text import Text

from autotune.context import Context, model_name, say_unused, set_values
from autotune.prepare import Place, damaged_records, is_packed, outline_of, pack_store, store_files
from streaming_core.hardware import detect
from streaming_core.progress import Progress
from streaming_core.settings import Settings
from streaming_core.units import format_size

__all__ = ["run"]


def run(args: argparse.Namespace, context: Context) -> int:
    set_values(args)
    model = model_name(args)
    place = Place(detect(), args.cache_dir)
    screen = context.screen
    outline = outline_of(model, place, screen.progress)
    say_unused(outline, screen)

    def on_layer(done: int, of: int) -> None:
        screen.progress(Progress("verifying", done, of, "layers"))

    # What was there before is verified first: opening a damaged store ends with its first fault, and this names all.
    verify_first = args.verify and is_packed(outline, place)
    faults = damaged_records(outline, place, on_layer) if verify_first else []
    if not faults:
        pack_store(outline, place, Settings(), screen.progress)
    if args.verify and not verify_first:
        faults = damaged_records(outline, place, on_layer)
    files = store_files(outline, place, "packed")
    size = sum(path.stat().st_size for path in files)
    folder = files[0].parent
    state = f"{len(faults)} damaged" if faults else "every record is whole" if args.verify else "not verified"
    summary = f"{outline.name}: {len(files)} files, {format_size(size)} in {folder}; {state}"
    data = {"folder": str(folder), "files": len(files), "bytes": size, "verified": args.verify, "faults": faults}
    text = "\n".join([summary, *faults])
    screen.result(data, text, lambda console: console.print(Text(text)))
    return 1 if faults else 0
