"""`mlx-autotune`: reads the arguments and the environment, runs one command, and turns errors into one line."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.options import build_parser
from streaming_core.errors import AutotuneError

if TYPE_CHECKING:
    import argparse

    from autotune.context import Context

__all__ = ["entry", "main"]

_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `mlx-autotune argv` and returns its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        args = build_parser(_default_cache()).parse_args(words)
        return _command(args.command)(args, _context(args, words))
    except AutotuneError as err:
        sys.stderr.write(f"mlx-autotune: error: {' '.join(str(err).split())}\n")
        return 2
    except SystemExit as end:  # --help
        return int(end.code or 0)
    except KeyboardInterrupt:
        sys.stderr.write("mlx-autotune: interrupted\n")
        return _INTERRUPTED
    except BrokenPipeError:  # `mlx-autotune show | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def entry() -> None:
    """The console script."""
    sys.exit(main())


def _default_cache() -> Path:
    named = os.environ.get("MLX_AUTOTUNE_CACHE_DIR")
    if named:
        return Path(named)
    from streaming_core.models.resolve import default_cache_dir

    return default_cache_dir()


def _context(args: argparse.Namespace, words: Sequence[str]) -> Context:
    from autotune.context import Context
    from autotune.screen import make_screen

    def restart(environment: Mapping[str, str]) -> None:
        os.execve(sys.executable, [sys.executable, "-m", "autotune", *words], dict(environment))

    return Context(
        screen=make_screen(json_lines=args.json, quiet=args.quiet, out=sys.stdout, err=sys.stderr),
        environment=dict(os.environ),
        restart=restart,
        read_input=lambda: sys.stdin.read(),
        command_line=shlex.join(["mlx-autotune", *words]),
    )


def _command(name: str) -> Callable[[argparse.Namespace, Context], int]:
    """Imported only now, so that help and wrong arguments do not wait for MLX."""
    match name:
        case "run":
            from autotune.commands.run import run
        case "bench":
            from autotune.commands.bench import run
        case "generate":
            from autotune.commands.generate import run
        case "show":
            from autotune.commands.show import run
        case "pack":
            from autotune.commands.pack import run
        case "trace":
            from autotune.commands.trace import run
        case "probe":
            from autotune.commands.probe import run
        case _:
            raise AssertionError(name)
    return run


if __name__ == "__main__":
    entry()
