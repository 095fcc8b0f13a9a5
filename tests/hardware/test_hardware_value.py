"""The value that says what a machine is: its name, its text form, and when two are the same."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming_core.errors import ProfileInvalid
from streaming_core.hardware import FakeMachine, Hardware
from streaming_core.units import GIB

LINUX = FakeMachine().hardware()
MAC = FakeMachine.mac().hardware()


def linux(chip: str, cores: int, memory_gib: float, gpu: str | None = None) -> Hardware:
    return dataclasses.replace(
        LINUX, chip=chip, cores=cores, memory_bytes=int(memory_gib * GIB), backend="cuda" if gpu else "cpu", gpu=gpu
    )


@pytest.mark.parametrize(
    "chip, memory_gib, name",
    [
        ("Apple M3 Max", 64, "m3max-64g"),
        ("Apple M1", 8, "m1-8g"),
        ("Apple M2 Ultra", 192, "m2ultra-192g"),
        ("Apple M6 Pro", 48, "m6pro-48g"),
        ("Apple A18 Pro", 8, "a18pro-8g"),
        ("Apple M1 (Virtual)", 4, "m1-virtual-4g"),
        ("Apple processor", 4, "apple-processor-4g"),
        ("Intel(R) Core(TM) i7-9750H CPU @ 2.60GHz", 16, "intel-core-i7-9750h-16g"),
    ],
)
def test_a_mac_is_called_by_chip_and_memory(chip: str, memory_gib: int, name: str) -> None:
    assert dataclasses.replace(MAC, chip=chip, memory_bytes=memory_gib * GIB).profile_name() == name


@pytest.mark.parametrize(
    "hardware, name",
    [
        (linux("AMD EPYC", 2, 23.54), "linux-epyc-2c-24g"),
        (linux("AMD EPYC 7B13 64-Core Processor", 16, 125.8, "NVIDIA H200"), "linux-epyc-16c-128g-h200"),
        (linux("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", 16, 128, "NVIDIA H200"), "linux-xeon-16c-128g-h200"),
        (linux("AMD Ryzen 9 7950X", 32, 62.7, "NVIDIA GeForce RTX 4090"), "linux-ryzen-32c-64g-rtx-4090"),
        (linux("Neoverse-N1", 4, 10), "linux-neoverse-4c-10g"),
        (linux("aarch64", 8, 15.3), "linux-aarch64-8c-16g"),
        (linux("", 1, 0.4), "linux-unknown-1c-1g"),
        (linux("龍芯", 1, 7.6, "NVIDIA H100 80GB HBM3"), "linux-unknown-1c-8g-h100"),
        (linux("Some CPU", 1, 8, "NVIDIA A100-SXM4-80GB"), "linux-some-1c-8g-a100"),
    ],
)  # fmt: skip
def test_a_linux_machine_is_called_by_chip_cores_memory_and_gpu(hardware: Hardware, name: str) -> None:
    assert hardware.profile_name() == name


@given(st.text(), st.sampled_from(["linux", "darwin"]), st.text(), st.integers(1, 1 << 45))
def test_every_name_is_safe_as_a_file_name(chip: str, system: str, gpu: str, memory_bytes: int) -> None:
    hardware = dataclasses.replace(LINUX, system=system, chip=chip, backend="cuda", gpu=gpu, memory_bytes=memory_bytes)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", hardware.profile_name())


def sizes() -> st.SearchStrategy[int]:
    return st.integers(1, 1 << 48)


@given(
    st.builds(
        Hardware,
        system=st.sampled_from(["linux", "darwin"]), backend=st.sampled_from(["cpu", "metal", "cuda"]),
        chip=st.text(min_size=1), cores=st.integers(1, 999), memory_bytes=sizes(), page_bytes=sizes(),
        model_id=st.none() | st.text(min_size=1),
        gpu=st.none() | st.text(min_size=1), gpu_cores=st.none() | st.integers(1, 999),
        gpu_memory_bytes=st.none() | sizes(), max_buffer_bytes=st.none() | sizes(), os_version=st.text(),
    )
)  # fmt: skip
def test_the_text_form_reads_back_equal(hardware: Hardware) -> None:
    assert Hardware.from_mapping(hardware.to_mapping()) == hardware


@pytest.mark.parametrize(
    "key, value, message",
    [
        ("chips", "x", "m.yaml: hardware: unknown key 'chips'; did you mean 'chip'? Known: system, chip, cores, "),
        ("memory", 64, """m.yaml: hardware.memory must be a size in quotes such as "24GiB", got 64"""),
        ("memory", "64GB", "m.yaml: hardware.memory needs a binary unit, got '64GB'; write \"64GiB\""),
        ("cores", "8", "m.yaml: hardware.cores must be a whole number from 1, got '8'"),
        ("cores", True, "m.yaml: hardware.cores must be a whole number from 1, got True"),
        ("os_version", 26.1, "m.yaml: hardware.os_version must be text in quotes, got 26.1"),
        ("backend", "rocm", "m.yaml: hardware.backend must be one of cpu, metal, cuda, got 'rocm'"),
        ("page", None, 'm.yaml: hardware.page must be a size in quotes such as "24GiB", got None'),
    ],
)
def test_a_wrong_value_is_named_with_its_place(key: str, value: object, message: str) -> None:
    with pytest.raises(ProfileInvalid) as caught:
        Hardware.from_mapping({**MAC.to_mapping(), key: value}, "m.yaml: hardware")
    assert str(caught.value).startswith(message)


def test_a_missing_key_is_named() -> None:
    mapping = MAC.to_mapping()
    del mapping["chip"]
    with pytest.raises(ProfileInvalid, match="hardware: chip is missing"):
        Hardware.from_mapping(mapping)


@pytest.mark.parametrize(
    "change, words",
    [
        ({}, None),
        ({"memory_bytes": 60 * GIB, "os_version": "27.0", "cores": 4}, None),
        ({"memory_bytes": 48 * GIB}, "memory 64GiB there, 48GiB here"),
        ({"chip": "Apple M4 Max"}, "chip 'Apple M3 Max' there, 'Apple M4 Max' here"),
        ({"backend": "cpu"}, "backend 'metal' there, 'cpu' here"),
    ],
)
def test_settings_move_only_to_the_same_chip_backend_and_memory(change: dict[str, object], words: str | None) -> None:
    assert MAC.difference(dataclasses.replace(MAC, **change)) == words  # type: ignore[arg-type]


def test_settings_do_not_move_to_another_cuda_device() -> None:
    first, second = linux("Xeon", 16, 128, "NVIDIA H200"), linux("Xeon", 16, 128, "NVIDIA A100")
    assert first.difference(second) == "gpu 'NVIDIA H200' there, 'NVIDIA A100' here"
