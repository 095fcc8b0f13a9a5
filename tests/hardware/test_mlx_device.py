"""What MLX and NVIDIA's tool say about a GPU, with keys that may be missing."""

from __future__ import annotations

import pytest

from streaming_core.hardware._mlx import Device, device_of, parse_nvidia_smi, read_device
from streaming_core.units import MIB


def test_metal_reports_its_working_set_and_largest_buffer() -> None:
    info = {
        "device_name": "Apple M4 Pro", "architecture": "applegpu_g16s", "memory_size": 51539607552,
        "max_recommended_working_set_size": 40200896512, "max_buffer_length": 30150672384, "resource_limit": 499000,
    }  # fmt: skip
    assert device_of("metal", info) == Device("metal", "Apple M4 Pro", 40200896512, 30150672384)


def test_metal_memory_is_never_guessed_from_the_machines() -> None:
    assert device_of("metal", {"device_name": "Apple Paravirtual device", "memory_size": 4 << 30}).memory_bytes is None


@pytest.mark.parametrize("key", ["total_memory", "memory_size"])
def test_cuda_memory_has_two_names(key: str) -> None:
    assert device_of("cuda", {"device_name": "NVIDIA H200", key: 150 << 30}) == Device("cuda", "NVIDIA H200", 150 << 30)


def test_a_device_that_says_nothing_is_unknown() -> None:
    assert device_of("cuda", {}) == Device("cuda", None, None, None)


@pytest.mark.parametrize(
    "text, name, mebibytes",
    [
        ("NVIDIA H200, 143771\n", "NVIDIA H200", 143771),
        ("NVIDIA H100 80GB HBM3, 81559\nNVIDIA H100 80GB HBM3, 81559\n", "NVIDIA H100 80GB HBM3", 81559),
        ("NVIDIA GB10, [N/A]\n", None, None),
        ("No devices were found\n", None, None),
        ("", None, None),
    ],
)
def test_the_drivers_tool_is_read(text: str, name: str | None, mebibytes: int | None) -> None:
    assert parse_nvidia_smi(text) == (name, None if mebibytes is None else mebibytes * MIB)


def test_this_process_has_a_backend() -> None:
    device = read_device()
    assert device.backend in ("cpu", "metal", "cuda")
    assert device.backend != "cpu" or device == Device()
