"""What every command gets beside its arguments, and how its arguments become settings."""

from __future__ import annotations

import argparse
import difflib
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from autotune.errors import RequestInvalid
from autotune.findings import Level, load_finding
from autotune.runner import process_environment
from autotune.screen import Screen
from streaming_core.errors import KernelWarning, SettingsError
from streaming_core.hardware import Hardware, Machine
from streaming_core.kernels.offer import missing
from streaming_core.profile import Explanation, Profile, explain_profile, load_profile
from streaming_core.reading import native_missing
from streaming_core.settings import Settings
from streaming_core.units import format_size

if TYPE_CHECKING:  # it imports MLX
    from streaming_core.models.outline import ModelOutline

__all__ = [
    "Choice",
    "Context",
    "chosen_settings",
    "decoded",
    "explanation_for",
    "model_name",
    "profile_for",
    "restarted_for",
    "say_budget",
    "say_busy",
    "say_checkpoint",
    "say_kernels",
    "say_reader",
    "say_settings",
    "say_unused",
    "set_values",
    "warnings_as_notices",
]


@dataclass(frozen=True, slots=True)
class Context:
    """The edge of the program, as commands see it."""

    screen: Screen
    environment: Mapping[str, str]  # for workers
    restart: Callable[[Mapping[str, str]], None]  # starts this command again with another environment
    read_input: Callable[[], str]  # standard input
    read_line: Callable[[], str | None]  # its next line, asked for on a terminal; None at its end
    command_line: str  # as it was typed


@dataclass(frozen=True, slots=True)
class Choice:
    """Settings, where they come from, and which of them the user named."""

    settings: Settings
    reason: str
    fixed: frozenset[str]
    profile: Profile | None

    def check(self, model: str, outline: ModelOutline) -> None:
        """Raises ProfileInvalid when they were measured on another checkpoint."""
        if self.profile is not None:
            self.profile.check_checkpoint(model, outline.fingerprint, outline.folder)


@contextmanager
def warnings_as_notices(screen: Screen) -> Iterator[None]:
    """Within it the library's warnings about kernels are notices, each said once."""
    said: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("always", KernelWarning)
        plain = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if not issubclass(category, KernelWarning):
                plain(message, category, filename, lineno, file, line)
            elif str(message) not in said:
                said.add(str(message))
                screen.notice(str(message))

        warnings.showwarning = show
        yield


def model_name(args: argparse.Namespace) -> str:
    """Raises RequestInvalid when the command needs a model and none was given."""
    if not args.model:
        raise RequestInvalid("--model is missing; give a folder, a hub id or an alias such as demo")
    return str(args.model)


def set_values(args: argparse.Namespace) -> dict[str, Any]:
    """`--set` and `--budget`.  Raises SettingsError."""
    values: dict[str, Any] = {}
    for text in args.set:
        key, equals, value = text.partition("=")
        if not equals:
            raise SettingsError(f"--set {text}: expected KEY=VALUE, for example residency.slots=32")
        _check_section(key.strip())
        values[key.strip()] = _value(value.strip())
    if args.budget is not None:
        values["memory.budget"] = args.budget
    checked = Settings().with_values(values, "--set")  # so that a wrong name or value is told before anything is loaded
    _check_oracle(checked, args)
    return values


def _check_oracle(settings: Settings, args: argparse.Namespace) -> None:
    """Raises RequestInvalid where there is no recorded run for an oracle to replay."""
    if settings.predict.kind == "oracle" and args.command != "predict" and getattr(args, "oracle", None) is None:
        raise RequestInvalid(
            "predict.kind=oracle replays a recorded run, as only `trace --oracle FILE` and `predict --trace FILE` do; "
            "`trace --save FILE` records one"
        )


def _check_section(key: str) -> None:
    """Only a near name is suggested: from a far one, nobody learns what there is."""
    keys = Settings.keys()
    sections = list(dict.fromkeys(each.partition(".")[0] for each in keys))
    if key.partition(".")[0] not in sections:
        near = difflib.get_close_matches(key, keys, n=1, cutoff=0.75)
        meant = f"did you mean {near[0]!r}? " if near else ""
        raise SettingsError(f"--set {key}: no such setting; {meant}Sections: {', '.join(sections)}")


def _value(text: str) -> int | str | None:
    if re.fullmatch(r"-?[0-9]+", text):
        return int(text)
    return None if text in ("null", "None") else text


def chosen_settings(args: argparse.Namespace, machine: Machine, fingerprint: str | None = None) -> Choice:
    """The profile's settings with the user's on top.  Raises ProfileInvalid, SettingsError.

    With the checkpoint's fingerprint, more of another machine's profile can be taken over.
    """
    values = set_values(args)
    profile = profile_for(args, machine, fingerprint)
    settings = Settings() if profile is None else profile.for_model(model_name(args))
    reason = "built-in default: no profile was wanted" if profile is None else profile.reason
    settings = settings.with_values(values, "--set")
    _check_oracle(settings, args)
    return Choice(settings, reason, frozenset(values), profile)


def restarted_for(settings: Settings, context: Context) -> None:
    """MLX reads some of its environment once: settings of `process` need a process that starts with them."""
    wanted = process_environment(context.environment, settings.to_mapping()["process"])
    if wanted != dict(context.environment):
        context.restart(wanted)


def decoded(text: str, where: str) -> str:
    """Text whose bytes a system without UTF-8 has passed on as they are.  Raises RequestInvalid."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8")
    except UnicodeError as err:
        raise RequestInvalid(f"{where} is not UTF-8; give it as such text") from err


def say_settings(choice: Choice, hardware: Hardware, screen: Screen) -> None:
    """Where the settings come from, and what of this machine and installation they have to do without."""
    screen.notice(f"settings: {choice.reason}")
    say_reader(choice.settings, screen)
    say_budget(choice.settings, hardware, screen)


def say_budget(settings: Settings, hardware: Hardware, screen: Screen) -> None:
    """Not an error: there may be swap, and the model need not take all of its budget."""
    device = hardware.gpu_memory_bytes if hardware.backend == "cuda" else None
    total, budget = device or hardware.memory_bytes, settings.memory.budget
    if budget is not None and budget > total:
        screen.notice(
            f"a budget of {format_size(budget)} is more than the {format_size(total)} of memory that this machine has; "
            "what does not fit is swapped, which is slower than reading experts, or ends the process"
        )


def say_checkpoint(outline: ModelOutline, settings: Settings, screen: Screen) -> None:
    """Where experts are read from and why, and what of the checkpoint is left out."""
    screen.notice(outline.layout_text(settings.store.layout))
    say_unused(outline, screen)


def say_unused(outline: ModelOutline, screen: Screen) -> None:
    if outline.unused:
        count = len(outline.unused)
        screen.notice(f"{count} tensors of the checkpoint have no place in the model: {outline.unused[0]} ...")


def say_reader(settings: Settings, screen: Screen) -> None:
    missing = native_missing()
    if settings.reading.reader == "auto" and missing is not None:
        screen.notice(f"reads are carried out by Python's threads, the reader in C is not here: {missing}")


def say_busy(machine: Machine, screen: Screen) -> None:
    """Before anything is measured: what else computes here would be measured too."""
    found = load_finding(machine.conditions().load_1m, machine.hardware().cores)
    if found.level is not Level.OK:
        screen.notice(f"this machine is busy: {found.text}; {found.remedy}")


def say_kernels(settings: Settings, machine: Machine, screen: Screen) -> None:
    """For commands whose models are loaded by workers."""
    reason = missing(settings.kernels, machine.hardware().backend)
    if reason is not None:
        screen.notice(reason)


def profile_for(args: argparse.Namespace, machine: Machine, fingerprint: str | None = None) -> Profile | None:
    if args.profile == "none":
        return None
    return load_profile(_asked_for(args), machine=machine, fingerprint=fingerprint)


def explanation_for(args: argparse.Namespace, machine: Machine) -> Explanation | None:
    """`profile_for` with everything that was passed over."""
    return None if args.profile == "none" else explain_profile(_asked_for(args), machine=machine)


def _asked_for(args: argparse.Namespace) -> str | Path | None:
    """The file that --profile names, else the model."""
    if args.profile is None:
        model: str | None = args.model
        return model
    path = Path(args.profile)
    if path.suffix not in (".yaml", ".yml"):
        raise RequestInvalid(f'--profile {path}: a .yaml file or "none" is expected')
    return path
