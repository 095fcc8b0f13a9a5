"""How much memory a run takes when nobody said."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming_core.hardware import FakeMachine, MemoryState, default_budget_bytes
from streaming_core.units import GIB, MIB


def on_cpu(total_gib: float, available_gib: float | None = None) -> float:
    hardware = dataclasses.replace(FakeMachine().hardware(), memory_bytes=int(total_gib * GIB))
    available = None if available_gib is None else int(available_gib * GIB)
    return default_budget_bytes(hardware, MemoryState(available)) / GIB


@pytest.mark.parametrize(
    "total_gib, budget_gib",
    [(8, 4), (16, 8), (24, 15.6), (32, 20.8), (36, 28), (64, 54.4), (128, 108.8), (512, 435.2)],
)
def test_the_system_keeps_a_third_of_a_small_machine_and_a_seventh_of_a_large_one(
    total_gib: int, budget_gib: float
) -> None:
    assert on_cpu(total_gib) == pytest.approx(budget_gib, abs=0.002)


def test_memory_that_others_use_is_not_planned_with() -> None:
    assert on_cpu(64, available_gib=10) == pytest.approx(8, abs=0.001)
    assert on_cpu(8, available_gib=3) == pytest.approx(2.6, abs=0.001)


def test_nothing_available_is_a_budget_of_nothing() -> None:
    assert on_cpu(64, available_gib=0.5) == 0


def test_metal_never_gets_more_than_its_working_set() -> None:
    machine = FakeMachine.mac(memory_bytes=64 * GIB)
    limited = dataclasses.replace(machine.hardware(), gpu_memory_bytes=30 * GIB)
    assert default_budget_bytes(limited, MemoryState(60 * GIB)) == 30 * GIB
    smaller = dataclasses.replace(machine.hardware(), memory_bytes=8 * GIB, gpu_memory_bytes=int(5.3 * GIB))
    assert default_budget_bytes(smaller, MemoryState(8 * GIB)) == 4 * GIB


def test_cuda_plans_with_the_memory_of_the_device() -> None:
    server = dataclasses.replace(
        FakeMachine().hardware(), backend="cuda", gpu="NVIDIA H200", memory_bytes=16 * GIB, gpu_memory_bytes=140 * GIB
    )
    assert default_budget_bytes(server, MemoryState(2 * GIB)) == 133 * GIB
    unknown = dataclasses.replace(server, gpu_memory_bytes=None)
    assert default_budget_bytes(unknown, MemoryState(None)) == 8 * GIB


@given(st.integers(1, 1 << 42), st.none() | st.integers(0, 1 << 42), st.integers(1, 1 << 42))
def test_no_limit_is_ever_exceeded(total: int, available: int | None, working_set: int) -> None:
    mac = dataclasses.replace(FakeMachine.mac().hardware(), memory_bytes=total, gpu_memory_bytes=working_set)
    budget = default_budget_bytes(mac, MemoryState(available))
    assert 0 <= budget <= min(total, working_set) and budget % MIB == 0
    if available is not None:
        assert budget <= available
