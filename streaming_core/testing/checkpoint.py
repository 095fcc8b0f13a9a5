"""Write a synthetic checkpoint, once, whole or not at all."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from .plan import build_config, build_groups
from .shards import fsync_folder, write_file, write_shards
from .spec import CheckpointSpec, parse_size
from .tokenizer import build_vocabulary, tokenizer_files

__all__ = ["CheckpointSpec", "ignore", "make_checkpoint", "parse_size"]

REVISION = 1  # raise it whenever the same spec gives other bytes: folders made before are then not reused
MARKER = "synthetic.json"


def ignore(done: int, total: int) -> None:
    """Progress nobody wants to see."""


def make_checkpoint(folder: Path, spec: CheckpointSpec, on_progress: Callable[[int, int], None] = ignore) -> Path:
    """Write the checkpoint of `spec` to `folder` and return `folder`; at once if it is there already.

    It is written beside `folder` and renamed, so a kill leaves no half checkpoint; what a killed call left is removed.
    Processes that make the same folder wait for each other.  Raises FileExistsError if `folder` holds anything else.
    `on_progress(written, total)` counts bytes of tensor data.
    """
    folder = Path(folder).absolute()
    if _is_complete(folder, spec):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _only_writer(folder):
        if _is_complete(folder, spec):
            return folder
        if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
            problem = f"{folder} exists and is not the {spec.name!r} checkpoint asked for"
            raise FileExistsError(f"{problem}; remove it or name another folder")
        for stale in folder.parent.glob(f"{_partial_prefix(folder)}*"):
            shutil.rmtree(stale)
        partial = Path(tempfile.mkdtemp(prefix=_partial_prefix(folder), dir=folder.parent))
        try:
            partial.chmod(0o755)
            _write(partial, spec, on_progress)
            partial.rename(folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        fsync_folder(folder.parent)
    return folder


def _write(folder: Path, spec: CheckpointSpec, on_progress: Callable[[int, int], None]) -> None:
    vocabulary = build_vocabulary(spec.max_vocab)
    for name, text in tokenizer_files(vocabulary).items():
        write_file(folder / name, text)
    write_file(folder / "config.json", json.dumps(build_config(spec, vocabulary), indent=2))
    write_shards(folder, build_groups(spec, vocabulary), spec.shard_bytes, on_progress)
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    marker = {"fingerprint": _fingerprint(spec), "spec": asdict(spec), "files": sizes}
    write_file(folder / MARKER, json.dumps(marker, indent=2))
    fsync_folder(folder)


def _fingerprint(spec: CheckpointSpec) -> str:
    return hashlib.sha256(json.dumps([REVISION, asdict(spec)], sort_keys=True).encode()).hexdigest()


def _is_complete(folder: Path, spec: CheckpointSpec) -> bool:
    """The marker is of this spec and every file it lists is there with its size."""
    try:
        marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        return marker["fingerprint"] == _fingerprint(spec) and all(
            (folder / name).stat().st_size == size for name, size in marker["files"].items()
        )
    except (OSError, ValueError, KeyError):
        return False


def _partial_prefix(folder: Path) -> str:
    return f".{folder.name}.partial-"


@contextmanager
def _only_writer(folder: Path) -> Iterator[None]:
    """Hold a lock beside `folder`.  The system drops it when its holder dies, so partial folders seen now are stale."""
    path = folder.parent / f".{folder.name}.lock"
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if _is_at(path, descriptor):
            break
        os.close(descriptor)  # the holder we waited for removed the file: lock the new one
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
