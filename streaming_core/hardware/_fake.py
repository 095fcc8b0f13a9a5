"""A machine whose every reading can be set: plans for other machines, tests of scarce memory."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from pathlib import Path

from streaming_core.hardware._files import cannot_bypass, cannot_open, open_regular
from streaming_core.hardware._types import Conditions, Hardware, LargePages, MemoryState, PinnedMemory, ProcessMemory
from streaming_core.units import GIB

__all__ = ["FakeMachine"]


def _small_server() -> Hardware:
    return Hardware(
        system="linux", chip="AMD EPYC", cores=2, memory_bytes=24 * GIB, page_bytes=4096, backend="cpu",
        model_id="fake", os_version="fake",
    )  # fmt: skip


class OrdinaryMemory:
    """No device sees it."""

    def __init__(self, nbytes: int) -> None:
        self._bytes = bytearray(nbytes)
        self.view = memoryview(self._bytes)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._bytes))


@dataclass(kw_only=True)
class FakeMachine:
    """Gives back what its fields hold; change a field and the next reading changes.  Files are opened for real."""

    hardware_reading: Hardware = field(default_factory=_small_server)
    memory_reading: MemoryState = field(default_factory=lambda: MemoryState(20 * GIB, 0, "normal"))
    process_reading: ProcessMemory = field(default_factory=lambda: ProcessMemory(1 * GIB, 1 * GIB))
    conditions_reading: Conditions = field(default_factory=lambda: Conditions("ac", False, "nominal", 0.0))
    physical_read: int | None = 0
    swap_in: int | None = 0
    free_disk: int = 1 << 40
    large_pages_reading: LargePages = "madvise"
    open_files_reading: tuple[int, int] = (1024, 1 << 20)
    can_drop: bool = True
    can_bypass: bool = True
    direct_alignment: int = 4096
    dropped: list[Path] = field(default_factory=list)  # files passed to `drop_cached`
    advised: list[tuple[int, int, int]] = field(default_factory=list)
    joined: list[tuple[int, int]] = field(default_factory=list)  # (address, bytes) passed to `join_pages`

    @classmethod
    def mac(cls, chip: str = "Apple M3 Max", memory_bytes: int = 64 * GIB, gpu_cores: int | None = None) -> FakeMachine:
        """A Mac with most of its memory free.  Its GPU limit is the usual part of memory; real ones must be asked."""
        part = 0.74 if memory_bytes <= 24 * GIB else 0.78 if memory_bytes <= 48 * GIB else 0.81
        working_set = int(part * memory_bytes)
        hardware = Hardware(
            system="darwin", chip=chip, cores=12, memory_bytes=memory_bytes, page_bytes=16384, backend="metal",
            model_id="Mac0,0", gpu=chip, gpu_cores=gpu_cores, gpu_memory_bytes=working_set,
            max_buffer_bytes=int(0.75 * working_set), os_version="26.0",
        )  # fmt: skip
        memory = MemoryState(int(0.8 * memory_bytes), 0, "normal")
        process = ProcessMemory(1 * GIB, 1 * GIB, 1 * GIB, 1 * GIB)
        return cls(
            hardware_reading=hardware, memory_reading=memory, process_reading=process, direct_alignment=1,
            large_pages_reading="not_needed", open_files_reading=(256, (1 << 63) - 1),
        )  # fmt: skip

    def hardware(self) -> Hardware:
        return self.hardware_reading

    def memory(self) -> MemoryState:
        return self.memory_reading

    def process_memory(self) -> ProcessMemory:
        return self.process_reading

    def physical_read_bytes(self) -> int | None:
        return self.physical_read

    def swap_in_bytes(self) -> int | None:
        return self.swap_in

    def conditions(self) -> Conditions:
        return self.conditions_reading

    def free_disk_bytes(self, path: Path) -> int:
        return self.free_disk

    def drop_cached(self, path: Path) -> bool:
        self.dropped.append(path)
        return self.can_drop

    def advise(self, fd: int, offset: int, nbytes: int) -> None:
        self.advised.append((fd, offset, nbytes))

    def large_pages(self) -> LargePages:
        return self.large_pages_reading

    def open_files(self) -> tuple[int, int]:
        return self.open_files_reading

    def join_pages(self, address: int, nbytes: int) -> None:
        self.joined.append((address, nbytes))

    def pin(self, nbytes: int) -> PinnedMemory:
        return OrdinaryMemory(nbytes)

    def open_for_read(self, path: Path, bypass: bool) -> int:
        """Opens the file through the page cache in any case; refuses `bypass` when `can_bypass` is off."""
        if bypass and not self.can_bypass:
            raise cannot_bypass(path, OSError("the fake machine was told so"))
        try:
            return open_regular(path)
        except OSError as err:
            raise cannot_open(path, err) from err
