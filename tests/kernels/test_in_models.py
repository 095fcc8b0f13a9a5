"""Kernels in a whole model: who runs them, and what stays as it was."""

from __future__ import annotations

import gc
import re
import warnings
import weakref
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import pytest
from cuda_stand_ins import with_backend, without_kernels
from kernel_cases import FakeMaker

import streaming_core
import streaming_core.assemble
import streaming_core.banks
from streaming_core import KernelWarning, Settings
from streaming_core.hardware import Machine
from streaming_core.kernels.select import KernelSwitch

ON = {"kernels.fused": "on", "kernels.fused_max_seq": 4, "residency.slots": 8, "residency.resident_layers": "1"}


def logits(model: nn.Module, tokens: int) -> mx.array:
    return model(mx.arange(1, tokens + 1)[None])


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeMaker:
    fused = FakeMaker()
    monkeypatch.setattr(streaming_core.assemble, "makers", lambda backend: (fused,))
    return fused


@pytest.fixture(autouse=True)
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    without_kernels(monkeypatch)


@pytest.mark.parametrize("backend", ["metal", "cuda"])
def test_streamed_and_resident_layers_run_the_kernel_up_to_its_tokens(
    tiny: Path, shared_cache: Path, machine: Machine, fake: FakeMaker, backend: str
) -> None:
    settings = Settings().with_values(ON)
    resident = mlx_lm.load(str(tiny))[0]
    with streaming_core.load(tiny, settings, cache_dir=shared_cache, machine=with_backend(machine, backend)) as model:
        layers = [choice.layer for choice in model.kernels()]
        assert mx.array_equal(logits(model.model, 5), logits(resident, 5))
        assert fake.calls == []
        assert {choice.kernel for choice in model.kernels(5)} == {"gather_qmm"}
        assert mx.array_equal(logits(model.model, 1), logits(resident, 1))
        top_k = model.outline.top_k
        assert fake.calls.count((1, top_k)) == len(layers) + 1  # and the test
        assert {choice.kernel for choice in model.kernels()} == {"fused"}
        assert set(layers) == set(model.outline.layers) and 1 in layers and len(layers) > 1


def test_named_layers_only(tiny: Path, shared_cache: Path, machine: Machine, fake: FakeMaker) -> None:
    settings = Settings().with_values({**ON, "kernels.layers": "1"})
    with streaming_core.load(tiny, settings, cache_dir=shared_cache, machine=with_backend(machine, "metal")) as model:
        wrapped = [path for path, module in model.model.named_modules() if isinstance(module, KernelSwitch)]
        assert len(wrapped) == 1 and ".1." in wrapped[0]
        assert {choice.layer: choice.kernel for choice in model.kernels()}[1] == "fused"


def tree(model: nn.Module) -> list[tuple[str, str]]:
    return [(path, type(module).__name__) for path, module in model.named_modules()]


def test_the_cpu_runs_the_plain_path_bit_for_bit_and_says_so_once(tiny: Path, shared_cache: Path) -> None:
    with_kernels = Settings().with_values({**ON, "kernels.indexed": "on"})
    without = with_kernels.with_values({"kernels.fused": "off", "kernels.indexed": "off"})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with (
            streaming_core.load(tiny, with_kernels, cache_dir=shared_cache) as asked,
            streaming_core.load(tiny, without, cache_dir=shared_cache) as plain,
        ):
            assert tree(asked.model) == tree(plain.model)
            assert asked.settings == plain.settings
            for tokens in (1, 4, 30):
                assert mx.array_equal(logits(asked.model, tokens), logits(plain.model, tokens))
            assert all("kernels need Metal or CUDA" in choice.reason for choice in asked.kernels())
            assert {choice.reason for choice in plain.kernels()} == {"kernels are off"}
    assert len([each for each in caught if each.category is KernelWarning]) == 1


def test_off_is_the_module_tree_of_before_on_a_gpu_too(
    tiny: Path, shared_cache: Path, machine: Machine, fake: FakeMaker
) -> None:
    elsewhere = with_backend(machine, "metal")
    with streaming_core.load(tiny, Settings(), cache_dir=shared_cache, machine=elsewhere) as model:
        assert not any(isinstance(module, KernelSwitch) for _, module in model.model.named_modules())
        mx.eval(logits(model.model, 1))
    assert fake.calls == []


def test_a_closed_model_gives_its_banks_back_without_a_collection(
    tiny: Path, shared_cache: Path, machine: Machine, fake: FakeMaker
) -> None:
    gc.collect()
    gc.disable()
    try:
        model: Any = streaming_core.load(
            tiny, Settings().with_values(ON), cache_dir=shared_cache, machine=with_backend(machine, "metal")
        )
        mx.eval(logits(model.model, 1))
        switches = [weakref.ref(m) for _, m in model.model.named_modules() if isinstance(m, KernelSwitch)]
        model.close()
        del model
        assert switches and [ref() for ref in switches] == [None] * len(switches)
    finally:
        gc.enable()


def test_only_this_package_makes_custom_kernels() -> None:
    root = Path(streaming_core.__file__).parent
    sources = [*root.rglob("*.py"), *(root.parent / "autotune").rglob("*.py")]
    assert len(sources) > 50
    makes = re.compile(r"metal_kernel|cuda_kernel")
    found = {path.parent for path in sources if makes.search(path.read_text(encoding="utf-8"))}
    assert found <= {root / "kernels"}
