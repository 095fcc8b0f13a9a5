"""Readings of a machine as plain values, and the protocol of whatever takes them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from streaming_core.errors import ProfileInvalid, SettingsError
from streaming_core.hardware._naming import chip_slug, gpu_slug, marketing_gib
from streaming_core.units import exact_size, format_size, parse_size

__all__ = [
    "Backend",
    "Conditions",
    "Hardware",
    "LargePages",
    "Machine",
    "MemoryState",
    "Power",
    "Pressure",
    "ProcessMemory",
    "System",
    "Thermal",
]

System = Literal["linux", "darwin"]
Backend = Literal["cpu", "metal", "cuda"]
Pressure = Literal["normal", "warn", "critical", "unknown"]
Power = Literal["ac", "battery", "unknown"]
Thermal = Literal["nominal", "fair", "serious", "critical", "unknown"]
LargePages = Literal["always", "madvise", "never", "not_needed", "unknown"]

_CHOICES = {"system": ("linux", "darwin"), "backend": ("cpu", "metal", "cuda")}
_COUNTS = ("cores", "gpu_cores")
_SAME_MEMORY = 0.10  # firmware and kernel keep a little of the installed memory, and how much varies by version


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What does not change while a process runs."""

    REQUIRED: ClassVar[tuple[str, ...]] = ("system", "chip", "cores", "memory", "page", "backend")  # of its mapping

    system: System
    chip: str  # "AMD EPYC", "Apple M3 Max"
    cores: int  # logical, usable by this process
    memory_bytes: int  # what this process may use: a container's limit counts
    page_bytes: int
    backend: Backend  # of MLX's default device
    model_id: str | None = None  # "Mac15,9"; the product name of a PC or server
    gpu: str | None = None
    gpu_cores: int | None = None
    gpu_memory_bytes: int | None = None  # Metal: the recommended working set; CUDA: device memory
    max_buffer_bytes: int | None = None  # the largest single MLX array
    os_version: str = ""

    def profile_name(self) -> str:
        """File name (without suffix) of this machine's profile: `m3max-64g`, `linux-epyc-2c-24g`.

        Letters, digits and dashes only.  Machines that differ in small ways may share a name; `difference`
        tells them apart when a profile is read.
        """
        memory = f"{marketing_gib(self.memory_bytes)}g"
        if self.system == "darwin":
            return f"{chip_slug(self.chip)}-{memory}"
        parts = ["linux", chip_slug(self.chip), f"{self.cores}c", memory]
        if self.backend == "cuda" and self.gpu:
            parts.append(gpu_slug(self.gpu))
        return "-".join(parts)

    def difference(self, other: Hardware) -> str | None:
        """Why settings measured on this hardware do not hold on `other`, in a few words; None when they do."""
        for name in ("chip", "backend"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                return f"{name} {mine!r} there, {theirs!r} here"
        if self.backend == "cuda" and self.gpu != other.gpu:
            return f"gpu {self.gpu!r} there, {other.gpu!r} here"
        if abs(self.memory_bytes - other.memory_bytes) > _SAME_MEMORY * max(self.memory_bytes, other.memory_bytes):
            return f"memory {format_size(self.memory_bytes)} there, {format_size(other.memory_bytes)} here"
        return None

    @staticmethod
    def key_of(name: str) -> str:
        """Of a field in `to_mapping`: sizes go without `_bytes`."""
        return name.removesuffix("_bytes")

    def to_mapping(self) -> dict[str, Any]:
        """Plain values for YAML; sizes are text under the name without `_bytes`, absent readings are left out."""
        plain: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if value is None or value == "":
                continue
            plain[self.key_of(f.name)] = exact_size(value) if f.name.endswith("_bytes") else value
        return plain

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], where: str = "hardware") -> Hardware:
        """The inverse of `to_mapping`.  Raises ProfileInvalid naming the key that is unknown, missing or wrong."""
        if not isinstance(mapping, Mapping):
            raise ProfileInvalid(f"{where} must be a mapping of names to values, got {type(mapping).__name__}")
        names = {cls.key_of(f.name): f.name for f in fields(cls)}
        for key in mapping:
            if key not in names:
                near = difflib.get_close_matches(str(key), names, n=1, cutoff=0.0)[0]
                known = ", ".join(names)
                raise ProfileInvalid(f"{where}: unknown key {key!r}; did you mean {near!r}? Known: {known}")
        for key in cls.REQUIRED:
            if key not in mapping:
                raise ProfileInvalid(f"{where}: {key} is missing; run `mlx-autotune run` to write a new profile")
        return cls(**{names[key]: _checked(names[key], value, f"{where}.{key}") for key, value in mapping.items()})


def _checked(name: str, value: Any, where: str) -> Any:
    if name.endswith("_bytes"):
        if not isinstance(value, str):
            raise ProfileInvalid(f'{where} must be a size in quotes such as "24GiB", got {value!r}')
        try:
            return parse_size(value, where)
        except SettingsError as err:
            raise ProfileInvalid(str(err)) from err
    if name in _COUNTS:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ProfileInvalid(f"{where} must be a whole number from 1, got {value!r}")
        return value
    if not isinstance(value, str):
        raise ProfileInvalid(f"{where} must be text in quotes, got {value!r}")
    if name in _CHOICES and value not in _CHOICES[name]:
        raise ProfileInvalid(f"{where} must be one of {', '.join(_CHOICES[name])}, got {value!r}")
    return value


@dataclass(frozen=True, slots=True)
class MemoryState:
    """Memory of the whole machine (or of the container) at one moment."""

    available_bytes: int | None  # could be used without swapping; None: the system did not say
    swap_used_bytes: int | None = None
    pressure: Pressure = "unknown"


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Memory of this process at one moment."""

    rss_bytes: int
    peak_rss_bytes: int
    footprint_bytes: int | None = None  # macOS: what the system holds against us, Metal buffers included
    peak_footprint_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Conditions:
    """What makes the same run slower or faster on the same machine."""

    power: Power = "unknown"
    low_power: bool | None = None
    thermal: Thermal = "unknown"  # "nominal" does not prove full speed: throttling often goes unreported
    load_1m: float = 0.0


class PinnedMemory(Protocol):
    """Pages that stay where they are; the device sees them at the same address."""

    view: memoryview
    address: int


class Machine(Protocol):
    """Takes readings of one machine, from any thread.  A reading the system refuses is None or "unknown"."""

    @property
    def direct_alignment(self) -> int:
        """What offset, length and address of a read must be multiples of when the page cache is bypassed."""
        ...

    def hardware(self) -> Hardware:
        """Read once, then remembered."""
        ...

    def memory(self) -> MemoryState: ...

    def process_memory(self) -> ProcessMemory: ...

    def physical_read_bytes(self) -> int | None:
        """Bytes this process caused to be read from storage since it started: the proof that a cold read was cold."""
        ...

    def swap_in_bytes(self) -> int | None:
        """Bytes the whole machine has read back from swap since it started; watch how it grows."""
        ...

    def conditions(self) -> Conditions: ...

    def free_disk_bytes(self, path: Path) -> int:
        """Room on the volume of `path`, which need not exist yet.  Raises ReadError when the volume cannot be asked."""
        ...

    def drop_cached(self, path: Path) -> bool:
        """Asks the system to forget the cached pages of a file; False when it cannot."""
        ...

    def advise(self, fd: int, offset: int, nbytes: int) -> None:
        """Hints that these bytes will be read soon.  Returns at once; a system that cannot take hints ignores it."""

    def large_pages(self) -> LargePages:
        """Whether memory may lie on large pages: always, or where `join_pages` asks; not_needed: all pages are."""
        ...

    def open_files(self) -> tuple[int, int]:
        """How many files this process may have open: the limit in force, and how far it may raise it."""
        ...

    def join_pages(self, address: int, nbytes: int) -> None:
        """Asks for large pages behind memory that is in use already, so that nothing more becomes resident.  What the
        system refuses stays as it is."""

    def pin(self, nbytes: int) -> PinnedMemory:
        """Memory of the host's that a device with memory of its own reads and writes.  Raises AutotuneError."""
        ...

    def open_for_read(self, path: Path, bypass: bool) -> int:
        """A file descriptor the caller must close; with `bypass`, reads go past the page cache.

        Raises:
            StoreInvalid: there is no such regular file.
            ReadError: it cannot be opened, or its file system cannot bypass the cache.
        """
        ...
