"""`mlx-autotune report`: a study as one page of HTML."""

from __future__ import annotations

import argparse
import errno
from pathlib import Path

import optuna
from rich.console import Console
from rich.text import Text

from autotune.context import Context, set_values
from autotune.errors import RequestInvalid
from autotune.report import Study, facts_of, find_study, page, read_study
from streaming_core.errors import DiskFull, ProfileInvalid
from streaming_core.hardware import detect
from streaming_core.profile import Entry, Profile, default_folders
from streaming_core.whole_file import replace_file

__all__ = ["run"]


def run(args: argparse.Namespace, context: Context) -> int:
    set_values(args)
    if (args.study is None) == (args.model is None):
        raise RequestInvalid("name a study, or a model with --model for its newest one; not both")
    folder = find_study(args.cache_dir / "studies", args.study, args.model)
    study = read_study(folder)
    path = args.output or Path(f"report-{folder.resolve().name}.html")
    if path.suffix not in (".html", ".htm"):
        raise RequestInvalid(f"--output {path}: a .html file is expected")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    entry, source = _entry(args.profile, study, context)
    facts = facts_of(study, entry, source)
    _replace(path, page(facts).encode())
    verdict = facts["verdict"]

    def show(console: Console) -> None:
        console.print(Text(f"{verdict['status']}: {verdict['reason']}"))
        console.print(Text(f"report: {path}"), soft_wrap=True)

    context.screen.result({"path": str(path), **facts}, str(path), show)
    return 0


def _entry(named: str | None, study: Study, context: Context) -> tuple[Entry | None, Path | None]:
    """The profile's entry that was written from this very study, and the file."""
    if named == "none":
        return None, None
    if named is not None:
        if not named.endswith((".yaml", ".yml")):
            raise RequestInvalid(f'--profile {named}: a .yaml file or "none" is expected')
        found = _in_profile(Profile.read(named), study)
        if found is None:
            context.screen.notice(f"{named}: no entry of it was written from this study; the journal alone is shown")
        return found, Path(named)
    name = f"{detect().hardware().profile_name()}.yaml"
    for path in (folder / name for folder in default_folders()):
        if path.is_file():
            try:
                found = _in_profile(Profile.read(path), study)
            except ProfileInvalid as err:
                context.screen.notice(f"passed over: {err}")
                continue
            if found is not None:
                return found, path
    return None, None


def _in_profile(profile: Profile, study: Study) -> Entry | None:
    for entry in profile.entries.values():
        search = entry.evidence.get("search")
        written = search.get("study") if isinstance(search, dict) else None
        if written == study.folder.resolve().name and entry.fingerprint == study.identity["fingerprint"]:
            return entry
    return None


def _replace(path: Path, content: bytes) -> None:
    """In one step: what was there stays whole until then.  Raises RequestInvalid, DiskFull."""
    try:
        replace_file(path, content)
    except OSError as err:
        if err.errno == errno.ENOSPC:
            raise DiskFull(f"{path}: no room to write the report; free space there and run again") from err
        raise RequestInvalid(
            f"--output {path}: cannot be written: {err.strerror or err}; name a file in another folder"
        ) from err
