"""Readers when their process forks, ends or is interrupted while reads are under way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from reader_cases import EVERY_READER

_START = """
import os, signal, sys, time
from pathlib import Path
from reader_cases import READERS, Occupied
from streaming_core.errors import ReadError
from streaming_core.hardware import detect
from streaming_core.reading import Read, Urgency
reader = READERS[sys.argv[1]](4)
occupied = Occupied(Path(sys.argv[2]), detect(), reader, int(sys.argv[3]))
ticket = occupied.ticket
"""

EXIT = "assert not ticket.done"

FORK = """
def refused(call):
    try:
        call()
    except ReadError as err:
        return "forked this one" in str(err)

def child():
    started = time.monotonic()
    assert refused(lambda: reader.submit([])) and refused(lambda: reader.wait(ticket))
    reader.cancel(ticket)
    reader.close()
    reader.close()
    assert time.monotonic() - started < 1

for leave in (os._exit, sys.exit):
    assert not ticket.done
    pid = os.fork()
    if pid == 0:
        child()
        leave(0)
    assert os.waitpid(pid, 0)[1] == 0
reader.wait(ticket)
reader.wait(reader.submit([Read(occupied.file, 0, [memoryview(bytearray(10))], "after")]))
reader.close()
"""

INTERRUPT = """
print("ready", flush=True)
try:
    reader.wait(ticket)
except KeyboardInterrupt:
    reader.cancel(ticket)
    try:
        reader.wait(ticket)
    except ReadError as err:  # the read that the main thread was in
        assert "KeyboardInterrupt" in str(err), err
    assert ticket.done and ticket.cancelled
    reader.wait(reader.submit([Read(occupied.file, 0, [memoryview(bytearray(10))], "after")]))
    reader.close()
    print("interrupted", flush=True)
"""

INTERRUPT_UNCAUGHT = 'print("ready", flush=True); reader.wait(ticket)'


def start(program: str, reader: str, folder: Path, reads: int) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    command = [sys.executable, "-W", "error::ResourceWarning", "-c", _START + program, reader, str(folder), str(reads)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env={**os.environ, "PYTHONPATH": path})


@pytest.mark.parametrize("reader", EVERY_READER)
def test_the_interpreter_ends_with_reads_under_way(reader: str, tmp_path: Path) -> None:
    process = start(EXIT, reader, tmp_path, reads=1000)
    _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (0, "")


@pytest.mark.parametrize("reader", EVERY_READER)
def test_a_forked_child_has_no_reader_and_its_parent_keeps_it(reader: str, tmp_path: Path) -> None:
    process = start(FORK, reader, tmp_path, reads=300)
    _, errors = process.communicate(timeout=20)
    lines = [line for line in errors.splitlines() if "fork" not in line]  # from 3.12 on Python warns of forking
    assert (process.returncode, lines) == (0, [])


@pytest.mark.parametrize("program", [INTERRUPT, INTERRUPT_UNCAUGHT], ids=["caught", "uncaught"])
@pytest.mark.parametrize("reader", EVERY_READER)
def test_an_interrupt_ends_the_wait(reader: str, program: str, tmp_path: Path) -> None:
    process = start(program, reader, tmp_path, reads=20_000)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.1)
    asked = time.monotonic()
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=20)
    assert time.monotonic() - asked < 5
    if program is INTERRUPT:
        assert (process.returncode, output, errors) == (0, "interrupted\n", "")
    else:
        assert process.returncode == -signal.SIGINT
        assert errors.rstrip().endswith("KeyboardInterrupt")
