"""The native reader's own: that it compiles cleanly, is missed clearly, and holds what it writes to."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import weakref
from pathlib import Path

import numpy as np
import pytest
from reader_cases import NATIVE, READERS, Occupied, make_file, views, wait_until_done

from streaming_core.errors import ReadError, SettingsError
from streaming_core.hardware import Machine
from streaming_core.reading import Read, RecordFile, Urgency, make_reader, native, native_available
from streaming_core.settings import ReadSettings

SOURCES = sorted(Path(native.__file__).parent.glob("_*.c"))
COMPILER = shutil.which("cc")
HEADERS = Path(sysconfig.get_path("include"))


@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
@pytest.mark.skipif(not (HEADERS / "Python.h").exists(), reason="no Python.h")
@pytest.mark.parametrize("optimisation", ["-O0", "-O2"])
def test_the_sources_compile_without_a_warning(tmp_path: Path, optimisation: str) -> None:
    assert COMPILER is not None and SOURCES
    flags = ["-std=c11", optimisation, "-pthread", "-Wall", "-Wextra", "-Werror", "-fPIC", "-c", f"-I{HEADERS}"]
    done = subprocess.run([COMPILER, *flags, *SOURCES], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not native_available(), reason="not built")
def test_a_guess_under_way_is_given_up_between_two_pieces(tmp_path: Path, machine: Machine) -> None:
    path = tmp_path / "sparse.bin"
    path.touch()
    os.truncate(path, 1 << 30)
    file = RecordFile(path, machine, bypass=False)
    reader = native.NativeReader(2, 1)
    guess = reader.submit([Read(file, 0, views(8 << 20) * 128, "guess")], Urgency.GUESS)
    while not guess.batch.began_ns:  # type: ignore[attr-defined]
        pass
    reader.cancel(guess)
    wait_until_done(guess)
    assert guess.cancelled
    whole = reader.submit([Read(file, 0, views(8 << 20), "whole")], Urgency.GUESS)
    wait_until_done(whole)
    assert not whole.cancelled and whole.read_s > 0
    reader.close()
    file.close()


def test_where_it_is_not_built_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_missing", "it was not built when the package was installed")
    assert not native_available()
    with pytest.raises(ReadError, match=r"no native reader: it was not built .*; use reading.reader=threads"):
        native.NativeReader(2)
    with pytest.raises(
        SettingsError, match=r"^reading\.reader=native needs .*: it was not built .*; install a C compiler"
    ):
        make_reader(ReadSettings(reader="native"))
    make_reader(ReadSettings(reader="threads")).close()


@pytest.mark.parametrize("reader", [NATIVE])
def test_memory_that_is_read_into_stays_until_it_is_waited_for(reader: str, tmp_path: Path, machine: Machine) -> None:
    made = READERS[reader](2)
    make_file(tmp_path / "data.bin")
    file = RecordFile(tmp_path / "data.bin", machine, bypass=False)
    occupied = Occupied(tmp_path, machine, made)
    array = np.zeros(1000, np.uint8)
    gone = weakref.ref(array)
    ticket = made.submit([Read(file, 0, [memoryview(array)], "read")])
    del array, ticket
    assert gone() is not None
    made.wait(occupied.ticket)
    made.close()
    assert gone() is None
    file.close()


@pytest.mark.parametrize("reader", [NATIVE])
@pytest.mark.parametrize("view", [memoryview(b"read only"), memoryview(bytearray(9))[::2], "text"])
def test_a_view_that_cannot_be_written_to_is_refused(
    reader: str, view: memoryview, tmp_path: Path, machine: Machine
) -> None:
    made = READERS[reader](2)
    make_file(tmp_path / "data.bin")
    file = RecordFile(tmp_path / "data.bin", machine, bypass=False)
    good = bytearray(10)
    with pytest.raises((BufferError, TypeError)):
        made.submit([Read(file, 0, [memoryview(good), view], "read")])
    good.append(1)  # nothing holds it
    made.close()
    file.close()


@pytest.mark.parametrize("reader", [NATIVE])
def test_the_time_a_read_ended_is_known_whenever_it_is_looked_at(reader: str, tmp_path: Path, machine: Machine) -> None:
    from streaming_core.reading import _native

    made = READERS[reader](1)
    make_file(tmp_path / "data.bin")
    file = RecordFile(tmp_path / "data.bin", machine, bypass=False)
    before = _native.now_ns()
    ticket = made.submit([Read(file, 0, views(10), "read")])
    made.wait(ticket)
    assert isinstance(ticket, native.NativeTicket)
    assert before < ticket.ended_ns <= _native.now_ns()
    made.close()
    file.close()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells how many threads a process has")
@pytest.mark.parametrize("reader", [NATIVE])
def test_a_reader_nobody_closed_ends_with_its_last_reference(reader: str) -> None:
    from reader_cases import system_threads

    before = system_threads()
    made = READERS[reader](5)
    assert system_threads() == before + 4
    del made
    assert system_threads() <= before + 1  # the kernel may count the last one a moment longer
