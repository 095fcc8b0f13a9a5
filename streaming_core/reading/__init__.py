"""Bytes from files into memory that is already there."""

from streaming_core.reading.files import RecordFile
from streaming_core.reading.reader import NullReader, Read, Reader, Ticket
from streaming_core.reading.threads import ThreadReader

__all__ = ["NullReader", "Read", "Reader", "RecordFile", "ThreadReader", "Ticket"]
