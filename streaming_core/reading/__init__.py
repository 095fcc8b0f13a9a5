"""Bytes from files into memory that is already there."""

from streaming_core.reading.choose import check_reader, make_reader, reader_kind
from streaming_core.reading.files import RecordFile
from streaming_core.reading.native import NativeReader, native_available, native_missing
from streaming_core.reading.reader import NothingToRead, NullReader, Read, Reader, Ticket, Urgency
from streaming_core.reading.threads import ThreadReader
from streaming_core.reading.watched import WatchedReader

__all__ = [
    "NativeReader",
    "NothingToRead",
    "NullReader",
    "Read",
    "Reader",
    "RecordFile",
    "ThreadReader",
    "Ticket",
    "Urgency",
    "WatchedReader",
    "check_reader",
    "make_reader",
    "native_available",
    "native_missing",
    "reader_kind",
]
