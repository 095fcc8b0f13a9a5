"""The reader that the settings ask for, or why it cannot be had."""

from __future__ import annotations

from streaming_core.errors import SettingsError
from streaming_core.reading.native import NativeReader, native_missing
from streaming_core.reading.reader import Reader
from streaming_core.reading.threads import ThreadReader
from streaming_core.settings import ReadSettings

__all__ = ["check_reader", "make_reader", "reader_kind"]


def check_reader(reading: ReadSettings) -> None:
    """Raises SettingsError if this installation has no such reader.  Another one would hide a wrong profile."""
    missing = native_missing()
    if reading.reader == "native" and missing is not None:
        raise SettingsError(
            f"reading.reader=native needs an extension that is not here: {missing}; install a C compiler and install "
            "the package again, or set reading.reader=threads"
        )


def reader_kind(reading: ReadSettings) -> str:
    """threads or native."""
    if reading.reader == "auto":
        return "threads" if native_missing() else "native"
    return reading.reader


def make_reader(reading: ReadSettings) -> Reader:
    """Raises SettingsError as `check_reader` does."""
    check_reader(reading)
    kind = NativeReader if reader_kind(reading) == "native" else ThreadReader
    return kind(reading.threads, reading.guess_threads)
