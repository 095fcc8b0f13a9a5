"""A file of known bytes, and every reader there is to read it with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from reader_cases import (
    EVERY_READER,
    READERS,
    Make,
    make_file,
)

from streaming_core.hardware import Machine
from streaming_core.reading import Reader, RecordFile


@pytest.fixture
def data(tmp_path: Path) -> Path:
    make_file(tmp_path / "data.bin")
    return tmp_path / "data.bin"


@pytest.fixture(params=EVERY_READER)
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """`make(threads, guess_threads)` -> a reader that is closed when the test is over."""
    made: list[Reader] = []

    def make_reader(*threads: int) -> Reader:
        made.append(READERS[request.param](*threads))
        return made[-1]

    yield make_reader
    for reader in made:
        reader.close()


@pytest.fixture
def file(data: Path, machine: Machine, make: Make) -> Iterator[RecordFile]:
    opened = RecordFile(data, machine, bypass=False)
    yield opened
    opened.close()
