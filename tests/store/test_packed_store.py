"""Packing and reading back: every byte, every fault."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from streaming_core.errors import DiskFull, StoreInvalid
from streaming_core.geometry import RecordGeometry
from streaming_core.hardware import FakeMachine, Machine
from streaming_core.reading import ThreadReader
from streaming_core.residency.bank import SlotBank
from streaming_core.store import PackedStore, layer_file, pack, verify

# Odd sizes on purpose: one part of 3 bytes, one of a page and a bit, one bfloat16, one a single number.
GEOMETRY = RecordGeometry.of(
    [
        ("a.weight", "uint32", (7, 150)),
        ("a.bias", "bfloat16", (5,)),
        ("b.weight", "uint8", (3,)),
        ("b.scale", "float32", ()),
    ]
)
EXPERTS = 5
FINGERPRINT = "0123456789abcdef"


class Source:
    geometry = GEOMETRY
    experts = EXPERTS

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.bytes = {p.name: rng.integers(0, 256, (EXPERTS, p.nbytes), dtype=np.uint8) for p in GEOMETRY.parts}

    def take(self, name: str) -> mx.array:
        part = next(p for p in GEOMETRY.parts if p.name == name)
        raw = mx.array(self.bytes[name])
        dtype = getattr(mx, part.dtype)
        return (raw if dtype == mx.uint8 else raw.view(dtype)).reshape(EXPERTS, *part.shape)


@pytest.fixture
def sources() -> dict[int, Source]:
    return {layer: Source(layer) for layer in (0, 3)}


@pytest.fixture
def store(tmp_path: Path, sources: dict[int, Source], machine: Machine) -> Path:
    assert pack(tmp_path, FINGERPRINT, sources, machine) == [0, 3]
    return tmp_path


def contents(folder: Path, layer: int, expert: int, machine: Machine, *, bypass: bool) -> list[bytes]:
    opened = PackedStore(folder, FINGERPRINT, {layer: GEOMETRY}, machine, bypass=bypass)
    bank = SlotBank(GEOMETRY, 2)
    reader = ThreadReader(2)
    views = bank.destinations([1])[0]
    reader.wait(reader.submit(opened.reads(layer, expert, views)))
    reader.close()
    opened.close()
    return [bytes(view) for view in views]


@pytest.mark.parametrize("bypass", [False, True])
def test_every_record_comes_back_as_it_was_packed(
    store: Path, sources: dict[int, Source], machine: Machine, bypass: bool
) -> None:
    for layer, source in sources.items():
        for expert in range(EXPERTS):
            expected = [source.bytes[p.name][expert].tobytes() for p in GEOMETRY.parts]
            assert contents(store, layer, expert, machine, bypass=bypass) == expected


def test_records_start_on_pages(store: Path, machine: Machine) -> None:
    opened = PackedStore(store, FINGERPRINT, {0: GEOMETRY}, machine, bypass=False)
    bank = SlotBank(GEOMETRY, 1)
    offsets = [opened.reads(0, e, bank.destinations([0])[0])[0].offset for e in range(EXPERTS)]
    opened.close()
    assert all(offset % 16384 == 0 for offset in offsets)


def test_a_second_pack_writes_nothing(store: Path, sources: dict[int, Source], machine: Machine) -> None:
    before = layer_file(store, 0).stat().st_mtime_ns
    assert pack(store, FINGERPRINT, sources, machine) == []
    assert layer_file(store, 0).stat().st_mtime_ns == before


def test_a_whole_store_verifies_clean(store: Path) -> None:
    assert list(verify(store, [0, 3], FINGERPRINT)) == []


@pytest.mark.parametrize("expert", range(EXPERTS))
def test_a_flipped_byte_is_named(store: Path, expert: int) -> None:
    path = layer_file(store, 3)
    data = bytearray(path.read_bytes())
    first = len(data) - EXPERTS * GEOMETRY.stride
    data[first + expert * GEOMETRY.stride + 100] ^= 1
    path.write_bytes(data)
    faults = list(verify(store, [0, 3], FINGERPRINT))
    assert [(f.layer, f.expert) for f in faults] == [(3, expert)]
    assert f"expert {expert} of layer 3" in str(faults[0])


def test_a_record_that_the_disk_refuses_is_a_fault_and_the_others_are_verified(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, calls = os.lseek, iter(range(2 * EXPERTS))

    def refuse_one(fd: int, offset: int, how: int) -> int:
        if next(calls) == 3:
            raise OSError(5, "Input/output error")
        return whole(fd, offset, how)

    monkeypatch.setattr(os, "lseek", refuse_one)
    faults = list(verify(store, [0, 3], FINGERPRINT))
    assert [(f.layer, f.expert) for f in faults] == [(0, 3)]
    assert str(layer_file(store, 0)) in str(faults[0]) and "Input/output error; check the disk" in str(faults[0])


@pytest.mark.parametrize("cut", [1, 5000, 60_000])
def test_a_truncated_file_is_refused_when_opened(store: Path, machine: Machine, cut: int) -> None:
    path = layer_file(store, 3)
    os.truncate(path, path.stat().st_size - cut)
    with pytest.raises(StoreInvalid, match=r"layer-0003.*bytes where its header promises"):
        PackedStore(store, FINGERPRINT, {0: GEOMETRY, 3: GEOMETRY}, machine, bypass=False)


@pytest.mark.parametrize("position", ["magic", "length", "text", "checksums"])
def test_a_damaged_header_is_refused_and_packed_anew(
    store: Path, sources: dict[int, Source], machine: Machine, position: str
) -> None:
    path = layer_file(store, 0)
    data = bytearray(path.read_bytes())
    text = int.from_bytes(data[8:12], "little")
    data[{"magic": 0, "length": 9, "text": 40, "checksums": 16 + text + 5}[position]] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(StoreInvalid, match="layer-0000"):
        PackedStore(store, FINGERPRINT, {0: GEOMETRY}, machine, bypass=False)
    assert pack(store, FINGERPRINT, sources, machine) == [0]
    assert list(verify(store, [0, 3], FINGERPRINT)) == []


@pytest.mark.parametrize("text", [b"", b"x", b"\0" * 4000, b"MLXRECS\x01" + b"\xff" * 100])
def test_anything_else_in_the_place_of_a_layer_file_is_refused(tmp_path: Path, machine: Machine, text: bytes) -> None:
    layer_file(tmp_path, 0).write_bytes(text)
    with pytest.raises(StoreInvalid, match="layer-0000"):
        PackedStore(tmp_path, FINGERPRINT, {0: GEOMETRY}, machine, bypass=False)


def test_a_file_of_another_layer_is_refused_and_named(store: Path, machine: Machine) -> None:
    shutil.copy(store / "layer-0000.records", store / "layer-0003.records")
    with pytest.raises(StoreInvalid, match=r"layer-0003.records: it holds layer 0, so it was renamed or copied"):
        PackedStore(store, FINGERPRINT, {0: GEOMETRY, 3: GEOMETRY}, machine, bypass=False)
    assert ["it holds layer 0" in str(fault) for fault in verify(store, [0, 3], FINGERPRINT)] == [True]


def test_a_pipe_or_folder_in_the_place_of_a_layer_file_is_refused_at_once(store: Path, machine: Machine) -> None:
    path = store / "layer-0003.records"
    for make in (os.mkfifo, os.mkdir):
        path.rmdir() if path.is_dir() else path.unlink()
        make(path)
        with pytest.raises(StoreInvalid, match="not a regular file"):
            PackedStore(store, FINGERPRINT, {3: GEOMETRY}, machine, bypass=False)
        assert ["not a regular file" in str(fault) for fault in verify(store, [0, 3], FINGERPRINT)] == [True]


def test_a_store_of_another_checkpoint_is_refused(store: Path, machine: Machine) -> None:
    with pytest.raises(StoreInvalid, match="another checkpoint"):
        PackedStore(store, "f" * 16, {0: GEOMETRY}, machine, bypass=False)


def test_a_full_disk_is_noticed_before_a_byte_is_written(tmp_path: Path, sources: dict[int, Source]) -> None:
    with pytest.raises(DiskFull, match=r"needs .* are free"):
        pack(tmp_path, FINGERPRINT, sources, FakeMachine(free_disk=1 << 20))
    assert [p.name for p in tmp_path.iterdir()] == [".lock"]


def test_two_packers_do_not_write_into_each_other(tmp_path: Path, sources: dict[int, Source], machine: Machine) -> None:
    def second(done: int, total: int) -> None:
        with pytest.raises(StoreInvalid, match="another process is packing"):
            pack(tmp_path, FINGERPRINT, sources, machine)

    pack(tmp_path, FINGERPRINT, sources, machine, second)


def test_a_killed_pack_leaves_nothing_half_written_and_the_next_one_carries_on(
    tiny: Path, tmp_path: Path, checkpoints: Callable[..., Path]
) -> None:
    program = textwrap.dedent("""
        import sys, time
        from pathlib import Path
        import streaming_core
        from streaming_core import Settings
        def slow(progress):
            print("layer", progress.done, flush=True)
            time.sleep(0.02)
        settings = Settings().with_values({"residency.slots": 4})
        streaming_core.load(sys.argv[1], settings, cache_dir=Path(sys.argv[2]), on_progress=slow).close()
    """)
    command = [sys.executable, "-c", program, str(tiny), str(tmp_path)]
    for lines in (2, 5, 9):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(lines):
                process.stdout.readline()
            time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert finished.returncode == 0, finished.stderr
    folder = next((tmp_path / "stores").iterdir())
    assert not list(folder.glob(".*.tmp"))
    fingerprint = folder.name.rpartition("-")[2]
    assert list(verify(folder, range(4), fingerprint)) == []
