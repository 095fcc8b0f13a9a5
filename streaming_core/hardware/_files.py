"""Opening files and asking volumes, the parts that are the same everywhere."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

from streaming_core.errors import ReadError, StoreInvalid

__all__ = ["cannot_bypass", "cannot_open", "drop_cached", "free_disk_bytes", "open_regular"]

_NOT_THERE = (errno.ENOENT, errno.ENOTDIR)


def open_regular(path: Path, flags: int = 0) -> int:
    """Opens a regular file for reading.  Raises StoreInvalid when it is none, OSError when it cannot be opened."""
    # O_NONBLOCK: without it, opening a pipe that has no writer never returns.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | flags)
    try:
        regular = stat.S_ISREG(os.fstat(fd).st_mode)
    except OSError:
        os.close(fd)
        raise
    if not regular:
        os.close(fd)
        raise StoreInvalid(f"{path} is not a regular file; give the path of a file that holds expert records")
    return fd


def cannot_open(path: Path, err: OSError) -> StoreInvalid | ReadError:
    """The error to raise for a failed open."""
    if err.errno in _NOT_THERE:
        return StoreInvalid(f"{path} does not exist; load the model again to make its store anew")
    if err.errno == errno.EMFILE:
        return ReadError(f"{path} cannot be opened: too many open files in this process; raise `ulimit -n`")
    return ReadError(f"{path} cannot be opened: {err.strerror or err}; check that this user may read it")


def cannot_bypass(path: Path, err: OSError) -> ReadError:
    """The error for a file system that only reads through the page cache.  Falling back would hide a wrong profile."""
    reason = err.strerror or str(err)
    return ReadError(
        f"{path}: its file system cannot bypass the page cache ({reason}); set reading.page_cache=keep, or move the "
        f"store to another volume"
    )


def drop_cached(path: Path, drop: Callable[[int], bool]) -> bool:
    """Whether `drop(fd)` made the page cache give up a file.

    Raises StoreInvalid or ReadError when it cannot be opened.
    """
    try:
        fd = open_regular(path)
    except OSError as err:
        raise cannot_open(path, err) from err
    try:
        os.fsync(fd)  # dirty pages are not dropped
        return drop(fd)
    except OSError:
        return False
    finally:
        os.close(fd)


def free_disk_bytes(path: Path) -> int:
    """Room on the volume of the nearest folder above `path` that exists."""
    place = Path(os.path.abspath(path))
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        return shutil.disk_usage(place).free
    except OSError as err:
        raise ReadError(f"cannot ask how much room {place} has: {err.strerror or err}; use another folder") from err
