"""From what a user calls a model to a folder that holds it."""

from __future__ import annotations

import difflib
import errno
import json
import os
import re
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from streaming_core.errors import DiskFull, ModelNotFound, ModelNotSupported, SettingsError
from streaming_core.lfs import check_not_pointer
from streaming_core.models._hub import fetch, what_is_missing
from streaming_core.progress import OnProgress, Progress, ignore

__all__ = ["ALIASES", "ModelSource", "default_cache_dir", "model_names", "resolve_model"]

ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "demo": "demo",
        "qwen3-next": "mlx-community/Qwen3-Next-80B-A3B-Instruct-4bit",
        "qwen3-coder-next": "mlx-community/Qwen3-Coder-Next-4bit",
        "qwen3-30b-a3b": "mlx-community/Qwen3-30B-A3B-4bit",
    }
)
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_PATTERN = re.compile(r"[*?\[]")
_MADE = re.compile(r"demo|tiny|layers:.*")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A checkpoint on this disk."""

    name: str  # a hub id, `demo`, `layers:2`, or the name of a folder: the key of its entry in a profile
    folder: Path
    alias: str | None = None  # what the user typed, when that was an alias


def default_cache_dir() -> Path:
    """Where stores, made checkpoints and the user's profiles go unless told otherwise.

    Raises SettingsError when nobody says where this user's home folder is.
    """
    try:
        home = Path.home()
    except RuntimeError as err:
        raise SettingsError("this user has no home folder; set HOME to one") from err
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "mlx-autotune"


def resolve_model(
    name: str | Path,
    *,
    cache_dir: Path,
    hub_cache: Path | None = None,
    on_progress: OnProgress = ignore,
    download: bool = True,
) -> ModelSource:
    """The checkpoint called `name`: an alias, `tiny`, `demo`, `layers:N`, a folder or a hub id, tried in that order.

    A folder called like an alias is written `./demo`.  Hub ids come from the hub's cache (`hub_cache`; None: the hub
    library's own) and, unless `download` is off, from the network when files are missing there.  `demo` and its kin are
    made once, under `cache_dir`.

    Raises:
        ModelNotFound: nothing has this name, or it is not on this disk and cannot be fetched.
        ModelNotSupported: its config.json cannot be read.
        StoreInvalid: its config.json is a git-lfs pointer.
        DiskFull: no room to download or make it.
    """
    text = str(name).strip()
    if not text:
        raise ModelNotFound(f"the model name is empty; give a folder, a hub id or one of {', '.join(ALIASES)}")
    alias = text if isinstance(name, str) and text in ALIASES else None
    target = ALIASES[alias] if alias else text
    if isinstance(name, str) and _MADE.fullmatch(target):
        return ModelSource(target, _make(target, cache_dir, on_progress), alias)
    folder = _expanded(target)
    if alias is None and os.path.exists(folder):  # not Path.exists, which raises where nothing may be looked up
        return ModelSource(_name_of(folder), _checked(folder))
    if isinstance(name, Path) or not _is_hub_id(target):
        raise ModelNotFound(_nothing_there(target, isinstance(name, Path)))
    return ModelSource(target, _checked(fetch(target, hub_cache, on_progress, download=download)), alias)


def model_names(name: str | Path) -> tuple[str, ...]:
    """Names under which a profile may know a model, best first.  A folder has its own name and no owner."""
    text = str(name).strip()
    if isinstance(name, str) and (text in ALIASES or _MADE.fullmatch(text)):
        return tuple(dict.fromkeys((ALIASES.get(text, text), text)))
    path = _expanded(text)
    if isinstance(name, str) and _is_hub_id(text) and not os.path.exists(path):
        return (text, *(alias for alias, target in ALIASES.items() if target == text))
    return tuple(dict.fromkeys((text, _name_of(path), path.name or text)))


def _expanded(text: str) -> Path:
    """A path whose `~` is a folder, if there is such a user."""
    return Path(os.path.expanduser(text))


def _name_of(folder: Path) -> str:
    """The hub id of a snapshot in a hub cache (`models--owner--name/snapshots/<commit>`), else the folder's name."""
    place = folder if folder.name not in ("", "..") else folder.resolve()
    if place.parent.name == "snapshots" and place.parent.parent.name.startswith("models--"):
        return "/".join(place.parent.parent.name.removeprefix("models--").split("--", 1))
    return place.name


def _is_hub_id(text: str) -> bool:
    return _HUB_ID.fullmatch(text) is not None and "--" not in text and ".." not in text and len(text) <= 96


def _nothing_there(text: str, is_path: bool) -> str:
    if is_path or text.startswith(("/", "./", "../", "~")):
        return f"there is no folder {text}; check the path"
    near = difflib.get_close_matches(text.lower(), [*ALIASES, "tiny"], n=1, cutoff=0.5)
    advice = f"did you mean {near[0]!r}?" if near else "check its spelling."
    return f"{text!r} is no folder, no hub id (owner/name) and no alias; {advice} Aliases: {', '.join(ALIASES)}"


def _make(name: str, cache_dir: Path, on_progress: OnProgress) -> Path:
    """Makes the checkpoint, or finds it made.  Imports its recipe only now: a run of a real model never needs it."""
    from streaming_core.testing import make_checkpoint, parse_size

    try:
        size = parse_size(name)
    except ValueError as err:
        raise ModelNotFound(str(err)) from err
    folder = cache_dir / "models" / name.replace(":", "-")

    def report(done: int, total: int) -> None:
        on_progress(Progress(f"making {name}", done, total))

    try:
        return Path(make_checkpoint(folder, size, report))
    except OSError as err:
        if err.errno == errno.ENOSPC:
            raise DiskFull(f"no room left for {name} in {folder}; free space or use another cache folder") from err
        raise ModelNotFound(
            f"{name} cannot be made in {folder}: {err.strerror or err}; remove that folder or use another cache folder"
        ) from err


def _is_utf8(path: Path) -> bool:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_special(path: Path) -> bool:
    """Whether opening it could wait forever, as mlx-lm and the tokenizer's libraries would."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # a link to nowhere or to itself: whoever needs the file says so
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _checked(folder: Path) -> Path:
    """The folder, once its config reads as JSON.  Whether the model can be streamed is for others to say."""
    if not folder.is_dir():
        raise ModelNotFound(f"{folder} is a file; give the folder that holds config.json and model*.safetensors")
    if not os.access(folder, os.R_OK | os.X_OK):
        raise ModelNotFound(f"{folder} cannot be looked into; check its permissions")
    if _PATTERN.search(str(folder)):
        raise ModelNotFound(f"{folder}: mlx-lm takes *, ? and [ in a path for a pattern; rename the folder")
    if not _is_utf8(folder):
        raise ModelNotFound(f"{folder}: its path is not UTF-8, which mlx needs; rename the folder")
    if special := next((p for p in sorted(folder.iterdir()) if _is_special(p)), None):
        raise ModelNotFound(f"{special} is a pipe, a socket or a device; remove it or download the model again")
    if missing := what_is_missing(folder):
        raise ModelNotFound(f"{folder} is no whole checkpoint: {missing}; give the folder of an mlx-lm model")
    config = folder / "config.json"
    try:
        raw = config.read_bytes()
        check_not_pointer(config, raw)
        parsed = json.loads(raw.decode("utf-8"))
    except OSError as err:
        raise ModelNotSupported(f"{config} cannot be read: {err.strerror or err}; check its permissions") from err
    except (ValueError, RecursionError) as err:
        reason = str(err).splitlines()[0]
        raise ModelNotSupported(f"{config} is not JSON ({reason}); download the model again") from err
    if not isinstance(parsed, dict):
        raise ModelNotSupported(f"{config} holds no settings but a {type(parsed).__name__}; download the model again")
    return folder
