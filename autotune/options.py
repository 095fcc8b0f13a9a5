"""The command line as a grammar: commands, flags, their types and help.  Imports nothing heavy."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from autotune.errors import RequestInvalid
from autotune.exits import exit_status

__all__ = ["PARETO", "build_parser", "duration_s"]

PARETO = "pareto"  # of --objective: not one search but one for each of several budgets

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smh])+|\d+(?:\.\d+)?")


def duration_s(text: str) -> float:
    """Seconds of `90`, `90s`, `5m` or `1h30m`.  Raises RequestInvalid."""
    if not _DURATION.fullmatch(text):
        raise RequestInvalid(f'a time such as "90s", "5m" or "1h30m" is expected, got {text!r}')
    if text[-1] not in _UNITS:
        return float(text)
    return sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+(?:\.\d+)?)([smh])", text))


class _Version(argparse.Action):
    """Prints the version; it is looked up only when it is asked for."""

    def __init__(self, *args: Any, look_up: Callable[[], str], **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "nargs": 0})
        self._look_up = look_up

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        sys.stdout.write(f"{parser.prog} {self._look_up()}\n")
        parser.exit()


class _Parser(argparse.ArgumentParser):
    """Complains like the rest of the program: by an exception whose message is one line."""

    def error(self, message: str) -> NoReturn:
        raise RequestInvalid(f"{message}; `{self.prog} --help` explains")


def _folder(text: str) -> Path:
    """An empty text, of a variable that is not set, would be the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("the name is empty; give a folder")
    return Path(text)


def build_parser(default_cache: Path, version: Callable[[], str]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="mlx-autotune",
        description="Runs Mixture-of-Experts models bigger than memory, and finds this machine's settings for them.",
        epilog=exit_status(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, look_up=version, help="show the version and exit")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, help: str, example: str, add: Callable[[argparse.ArgumentParser], None]) -> None:
        child = _child(commands, name, help, example)
        _add_common(child, default_cache)
        add(child)

    command("run", "search settings, prove the best and write a profile", "mlx-autotune run --model demo", _run)
    command("bench", "measure settings, default and resident side by side", "mlx-autotune bench --model demo", _bench)
    command("generate", "answer a prompt", 'mlx-autotune generate --model demo --prompt "Why is it blue?"', _generate)
    command("chat", "talk to a model, turn by turn", 'mlx-autotune chat --model demo --system "Be brief."', _chat)
    command("serve", "answer over HTTP as OpenAI's API does", "mlx-autotune serve --model demo --port 8080", _serve)
    command("show", "explain the profile in use", "mlx-autotune show --model demo --explain", _show)
    command(
        "report",
        "write what a search did and found as one page of HTML",
        "mlx-autotune report --model demo --output demo.html",
        _report,
    )
    command(
        "plan",
        "say what a model will need, and what fits into a budget",
        "mlx-autotune plan --model demo --budget 1GiB --context 8192",
        _plan,
    )
    command("pack", "copy the experts into files of their own", "mlx-autotune pack --model demo --verify", _pack)
    command(
        "trace",
        "show where a token's time goes, what was asked for and guessed",
        "mlx-autotune trace --model demo --save routes.gz",
        _trace,
    )
    command("verify", "check that the profile still holds here", "mlx-autotune verify --model demo", _verify)
    command("doctor", "show what is wrong with this machine, and what to do", "mlx-autotune doctor", _doctor)
    command(
        "predict",
        "say what settings would do to a recorded run, without running it",
        "mlx-autotune predict --model demo --trace routes.gz --set residency.slots=24",
        _predict,
    )
    command("probe", "measure memory and disk", "mlx-autotune probe --model demo", _probe)
    _profile(_child(commands, "profile", "check, compare and share profiles", "mlx-autotune profile validate my.yaml"))
    return parser


def _child(commands: Any, name: str, help: str, example: str, parent: str = "") -> argparse.ArgumentParser:
    child: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help,
        description=help[0].upper() + help[1:] + ".",
        epilog=f"example:\n  {example}\n\n{exit_status(parent + name)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return child


def _add_common(parser: argparse.ArgumentParser, default_cache: Path) -> None:
    common = parser.add_argument_group("common options")
    _add_model(common)
    common.add_argument(
        "--cache-dir",
        type=_folder,
        default=default_cache,
        metavar="DIR",
        help="stores, made checkpoints and studies (MLX_AUTOTUNE_CACHE_DIR; default: %(default)s)",
    )
    common.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="fix a setting, for example residency.slots=32; may be repeated",
    )
    common.add_argument("--budget", metavar="SIZE", help='memory for the model, for example "8GiB"')
    common.add_argument(
        "--profile", metavar="FILE", help='use this profile; "none" for none (default: this machine\'s)'
    )
    _add_volume(common)


def _add_model(group: argparse._ActionsContainer) -> None:
    group.add_argument("--model", metavar="NAME", help="a folder, a hub id (owner/name) or an alias such as demo")


def _add_volume(group: argparse._ActionsContainer) -> None:
    volume = group.add_mutually_exclusive_group()
    volume.add_argument("--json", action="store_true", help="JSON lines on standard output instead of text")
    volume.add_argument("--quiet", action="store_true", help="no progress, only the result")


def _add_workload(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--repeats", type=int, metavar="N", help="passages a trial replays (default: 3; 2 or 1 with a short --time)"
    )
    parser.add_argument(
        "--prompt-tokens", type=int, metavar="N", help="of each passage (default: 64; 32 with a short --time)"
    )
    parser.add_argument(
        "--context",
        type=int,
        metavar="N",
        help="time decoding behind N tokens: prompts become as long as that takes (instead of --prompt-tokens)",
    )
    parser.add_argument(
        "--warmup-tokens", type=int, metavar="N", help="decoded but not timed (default: 16; 8 likewise)"
    )
    parser.add_argument("--decode-tokens", type=int, metavar="N", help="timed (default: 48; 32 likewise)")
    parser.add_argument("--cold", action="store_true", help="drop the system's cache of the store before each passage")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of texts, order and search (default: %(default)s)"
    )


def _run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trials",
        type=int,
        metavar="N",
        help="of the search, over all runs of it; the race comes on top (default: 40; pareto: 20 for each budget)",
    )
    parser.add_argument("--time", metavar="TIME", help='for everything, for example "5m" (default: no limit)')
    parser.add_argument(
        "--objective",
        choices=("decode", "prefill", "balanced", PARETO),
        default="decode",
        help="what is to be fast; pareto: decoding, under several budgets up to the one given; the profile gets that "
        "beyond which memory buys little (default: %(default)s)",
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="the profile (default: profiles/<this machine>.yaml)"
    )
    parser.add_argument("--fresh", action="store_true", help="do not carry on an earlier run")
    parser.add_argument(
        "--storage",
        metavar="URL",
        help="a database through which several machines of one kind share the search, for example "
        '"sqlite:////shared/study.db" (default: none)',
    )
    parser.add_argument("--dry-run", action="store_true", help="show plan, space and a time estimate, run nothing")
    _add_workload(parser)


def _bench(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rounds", type=int, default=3, metavar="N", help="of all contestants, shuffled (default: %(default)s)"
    )
    parser.add_argument("--skip-resident", action="store_true", help="do not measure the model wholly in memory")
    parser.add_argument(
        "--always-default",
        action="store_true",
        help="measure the default also where the profile keeps it: what the same settings differ by",
    )
    parser.add_argument(
        "--kernels",
        action="store_true",
        help="instead: up to how many tokens of a call each custom kernel is faster (Metal and CUDA)",
    )
    _add_workload(parser)


def _generate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompt", required=True, metavar="TEXT", help='what to answer; "-" reads standard input')
    _add_max_tokens(parser, 256, "of the answer")
    parser.add_argument("--raw", action="store_true", help="do not apply the model's chat template")


def _chat(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--system", metavar="TEXT", help="what the model is told before the first turn")
    _add_max_tokens(parser, 512, "of an answer")
    parser.add_argument(
        "--temp",
        type=float,
        default=0.0,
        metavar="T",
        help="temperature; 0: the likeliest token (%(default)s)",
    )


def _serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", metavar="NAME", help="address to listen at (%(default)s)")
    parser.add_argument("--port", type=int, default=8080, metavar="N", help="0 takes a free one (%(default)s)")
    _add_max_tokens(parser, 512, "of an answer where the request does not say")


def _add_max_tokens(parser: argparse.ArgumentParser, default: int, what: str) -> None:
    parser.add_argument(
        "--max-tokens", type=int, default=default, metavar="N", help=f"length {what} (default: %(default)s)"
    )


def _pack(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--verify", action="store_true", help="then read every record and compare its checksum")


def _plan(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--context", type=int, metavar="N", help="tokens of prompt and answer together (default: memory.context)"
    )
    parser.add_argument(
        "--batch", type=int, default=1, metavar="N", help="sequences at once, each of that length (%(default)s)"
    )


def _probe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seconds", type=float, default=0.5, metavar="S", help="per point of the table (default: %(default)s)"
    )


def _trace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompts", type=int, default=4, metavar="N", help="passages of text (%(default)s)")
    parser.add_argument("--tokens", type=int, default=60, metavar="N", help="decoded of each (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the texts (%(default)s)")
    parser.add_argument("--save", type=Path, metavar="FILE", help="keep what was asked for, compressed")
    parser.add_argument(
        "--guess-only", action="store_true", help="guess, fetch nothing, and show what guessing adds to a token"
    )
    parser.add_argument("--oracle", type=Path, metavar="FILE", help="a saved trace for predict.kind=oracle to replay")


def _verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rounds", type=int, default=8, metavar="N", help="of profile and default, at most (default: %(default)s)"
    )
    parser.add_argument(
        "--time", default="5m", metavar="TIME", help="no round begins that would end later (default: %(default)s)"
    )
    _add_workload(parser)


def _doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seconds", type=float, default=0.2, metavar="S", help="per point of the disk's table (default: %(default)s)"
    )


def _predict(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trace", type=Path, required=True, metavar="FILE", help="what `trace --save` wrote")
    parser.add_argument(
        "--counts-only", action="store_true", help="hits and bytes; measures nothing and tells no speed"
    )
    parser.add_argument(
        "--hardware", type=Path, metavar="FILE", help="a machine that is not here: memory, disk, share of compute time"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="with --hardware: write a profile marked modelled")


def _show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--explain", action="store_true", help="every profile that was looked at, and why not that one")


def _profile(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def action(name: str, help: str, example: str) -> argparse.ArgumentParser:
        child = _child(actions, name, help, f"mlx-autotune profile {example}", "profile ")
        _add_volume(child)
        return child

    validate = action("validate", "check that files can be used as profiles", "validate profiles/*.yaml")
    validate.add_argument("files", type=Path, nargs="+", metavar="FILE")
    diff = action("diff", "show in what two profiles differ, and what speaks for each", "diff old.yaml new.yaml")
    diff.add_argument("first", type=Path, metavar="A")
    diff.add_argument("second", type=Path, metavar="B")
    _add_model(diff)
    export = action(
        "export",
        "write this machine's entry of one model as a file to commit",
        "export --model demo --output demo.yaml",
    )
    _add_model(export)
    export.add_argument("--profile", metavar="FILE", help="of which the entry is taken (default: this machine's)")
    export.add_argument(
        "--output", type=Path, metavar="FILE", help="a file that is not there yet (default: standard output)"
    )


def _report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "study",
        nargs="?",
        metavar="STUDY",
        help="a study's folder, or its name under <cache-dir>/studies (with --model instead: that model's newest)",
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="the page, a .html file (default: report-<study>.html here)"
    )
