"""`mlx-autotune`: reads the arguments and the environment, runs one command, and turns errors into one line."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import resource
import shlex
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from autotune.errors import RequestInvalid
from autotune.options import build_parser
from streaming_core.errors import AutotuneError

if TYPE_CHECKING:
    import argparse
    from types import FrameType

    from autotune.context import Context

__all__ = ["entry", "main"]

_INTERRUPTED = 130
# What `resource.setrlimit` says where a limit is too low.  Only mlx_lm calls it, with 4096 files, while it is imported:
# which happens in the middle of whatever first needs it.
_LIMIT_REFUSED = ("current limit exceeds maximum limit", "not allowed to raise maximum limit")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `mlx-autotune argv` and returns its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        args = build_parser(_default_cache(), _version).parse_args(words)
        command, context = _command(args.command), _context(args, words)
        from autotune.context import warnings_as_notices

        with warnings_as_notices(context.screen):
            status = command(args, context)
        sys.stdout.flush()  # here, where a full disk or a closed pipe is still caught
        return status
    except AutotuneError as err:
        return _complain(str(err))
    except SystemExit as end:  # --help
        return int(end.code or 0)
    except KeyboardInterrupt:
        sys.stderr.write("mlx-autotune: interrupted\n")
        return _INTERRUPTED
    except BrokenPipeError:  # `mlx-autotune show | head`
        _silence(sys.stdout)
        return 1
    except (MemoryError, RuntimeError) as err:
        from streaming_core.hardware import is_out_of_memory

        if not is_out_of_memory(err):
            raise
        return _complain(
            f"out of memory: {str(err) or type(err).__name__}; close other programs, or ask for less: "
            "a smaller --budget or memory.context, fewer residency.slots"
        )
    except ValueError as err:
        if str(err) not in _LIMIT_REFUSED:
            raise
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        return _complain(
            f"mlx_lm asks for a hard limit of 4096 open files, this shell has {hard}; raise it (`ulimit -n 4096`, "
            "by a user who may, or the system's own limits), then start again"
        )
    except OSError as err:  # whatever the system refuses where no command expected it
        if err.errno == errno.ENOSPC:
            _silence(sys.stdout)  # the end of the process would try, and complain, once more
        where = f"{err.filename}: " if err.filename is not None else ""
        return _complain(f"{where}{err.strerror or err}; check the disk, its permissions and where the output goes")


def entry() -> None:
    """The console script."""
    _open_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that lacks a letter shows its number
            stream.reconfigure(errors="backslashreplace")
    signal.signal(signal.SIGTERM, _interrupt)  # as Ctrl-C: run then writes the best so far
    sys.exit(main())


def _complain(message: str) -> int:
    sys.stderr.write(f"mlx-autotune: error: {' '.join(message.split())}\n")
    return 2


def _silence(stream: TextIO) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _open_standard_streams() -> None:
    """Those that were closed lead nowhere: else the next file opened takes their number, and what is printed."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
            setattr(sys, name, os.fdopen(null, "w" if fd else "r", encoding="utf-8"))


def _default_cache() -> Path:
    named = os.environ.get("MLX_AUTOTUNE_CACHE_DIR")
    if named:
        return Path(named)
    from streaming_core.models.resolve import default_cache_dir

    return default_cache_dir()


def _version() -> str:
    from autotune.versions import program_version

    return program_version()


def _context(args: argparse.Namespace, words: Sequence[str]) -> Context:
    from autotune.context import Context
    from autotune.screen import make_screen

    try:
        os.getcwd()
    except FileNotFoundError as err:
        raise RequestInvalid("the current folder was removed; change to one that exists") from err

    def restart(environment: Mapping[str, str]) -> None:
        os.execve(sys.executable, [sys.executable, "-m", "autotune", *words], dict(environment))

    return Context(
        screen=make_screen(json_lines=args.json, quiet=args.quiet, out=sys.stdout, err=sys.stderr),
        environment=dict(os.environ),
        restart=restart,
        read_input=lambda: sys.stdin.buffer.read().decode("utf-8", "surrogateescape"),
        read_line=_next_line,
        command_line=os.fsencode(shlex.join(["mlx-autotune", *words])).decode("utf-8", "backslashreplace"),
    )


def _next_line() -> str | None:
    if not sys.stdin.isatty():
        line = sys.stdin.buffer.readline().decode("utf-8", "surrogateescape")
        return line.rstrip("\r\n") if line else None
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # arrow keys and earlier lines, where Python was built with them
    try:
        return input("> ")
    except EOFError:
        sys.stdout.write("\n")
        return None


def _command(name: str) -> Callable[[argparse.Namespace, Context], int]:
    """Imported only now, so that help and wrong arguments do not wait for MLX."""
    match name:
        case "run":
            from autotune.commands.run import run
        case "bench":
            from autotune.commands.bench import run
        case "generate":
            from autotune.commands.generate import run
        case "chat":
            from autotune.commands.chat import run
        case "serve":
            from autotune.commands.serve import run
        case "show":
            from autotune.commands.show import run
        case "report":
            from autotune.commands.report import run
        case "plan":
            from autotune.commands.plan import run
        case "pack":
            from autotune.commands.pack import run
        case "trace":
            from autotune.commands.trace import run
        case "verify":
            from autotune.commands.verify import run
        case "doctor":
            from autotune.commands.doctor import run
        case "predict":
            from autotune.commands.predict import run
        case "profile":
            from autotune.commands.profile import run
        case "probe":
            from autotune.commands.probe import run
        case _:
            raise AssertionError(name)
    return run


if __name__ == "__main__":
    entry()
