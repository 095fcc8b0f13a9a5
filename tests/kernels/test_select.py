"""Which kernel runs, why not another, and what a wrong one comes to."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from kernel_cases import FakeMaker, TanhOfGate, call, make_switch
from mlx_lm.models.switch_layers import SwitchMLP
from mlx_lm.tuner.lora import LoRASwitchLinear

from streaming_core.errors import KernelWarning
from streaming_core.geometry import RecordGeometry
from streaming_core.kernels.formats import geometry_of
from streaming_core.kernels.offer import missing
from streaming_core.kernels.select import (
    KernelSwitch,
    LayerChoice,
    NoKernels,
    SelectedKernels,
    make_kernels,
)
from streaming_core.settings import KernelSettings

MODE = ("affine", 4, 64)
BOTH = KernelSettings(fused="on", indexed="on", fused_max_seq=2, indexed_max_seq=4)
TESTS = [(1, 2), (3, 2), (5, 1)]  # slots of the self-test's calls, for top-2


def wrapped(kernels: Any, layer: int = 3, **switch: Any) -> Any:
    module = make_switch(MODE, **switch)
    return kernels.wrap(layer, module, geometry_of(module))


def reasons(kernels: Any, tokens: int) -> list[str]:
    return [str(choice) for choice in kernels.choices(tokens)]


def test_the_kernel_follows_the_tokens_of_the_call() -> None:
    fused, indexed = FakeMaker("fused"), FakeMaker("indexed")
    module = wrapped(SelectedKernels(BOTH, [indexed, fused]))
    wanted = {1: fused, 2: fused, 3: indexed, 4: indexed, 5: None}
    for tokens, maker in wanted.items():
        x, indices = call(tokens, 2)
        before = {each: len(each.calls) for each in (fused, indexed)}
        assert mx.array_equal(module(x, indices), make_switch(MODE)(x, indices))
        ran = [each for each in (fused, indexed) if each.calls[before[each] :]]
        assert ran == ([maker] if maker else [])
        assert maker is None or maker.calls[-1] == (tokens, 2)


def test_leading_axes_are_kept_and_their_product_counts() -> None:
    fused = FakeMaker()
    module = wrapped(SelectedKernels(KernelSettings(fused="on", fused_max_seq=4), [fused]))
    x, indices = call(4, 2)
    out = module(x.reshape(2, 2, -1), indices.reshape(2, 2, 2).astype(mx.int32))
    assert out.shape == (2, 2, 2, x.shape[-1])
    assert mx.array_equal(out.reshape(4, 2, -1), make_switch(MODE)(x, indices))
    assert fused.calls[-1] == (4, 2)


def test_every_refusal_has_a_reason() -> None:
    kernels = SelectedKernels(BOTH, [FakeMaker("fused"), FakeMaker("indexed", refuses="has no 4 bits")])
    wrapped(kernels)
    assert reasons(kernels, 2) == ["layer 3: fused: 2 of at most 2 tokens"]
    assert reasons(kernels, 3) == [
        "layer 3: gather_qmm: 3 tokens > kernels.fused_max_seq 2; indexed has no 4 bits",
    ]
    assert reasons(kernels, 65) == [
        "layer 3: gather_qmm: 65 tokens > kernels.fused_max_seq 2; 65 tokens > kernels.indexed_max_seq 4",
    ]


def test_layers_that_are_not_named_and_formats_that_no_kernel_knows_stay_as_they_are() -> None:
    settings = KernelSettings(fused="on", layers="4-5")
    kernels = SelectedKernels(settings, [FakeMaker("fused"), FakeMaker("indexed")])
    module = make_switch(MODE)
    assert kernels.wrap(3, module, geometry_of(module)) is module
    two = SwitchMLP(64, 64, 2)
    assert kernels.wrap(4, two, RecordGeometry.of([("fc1.weight", "float32", (64, 64))])) is two
    assert isinstance(kernels.wrap(5, module, geometry_of(module)), KernelSwitch)
    assert reasons(kernels, 1) == [
        "layer 3: gather_qmm: not in kernels.layers 4-5; kernels.indexed is off",
        "layer 4: gather_qmm: SwitchMLP is not gate, up and down; kernels.indexed is off",
        "layer 5: fused: 1 of at most 8 tokens",
    ]


def test_a_kernel_is_tested_once_for_all_layers_of_a_format_and_for_each_type() -> None:
    fused = FakeMaker()
    kernels = SelectedKernels(KernelSettings(fused="on"), [fused])
    first, second = wrapped(kernels, 1), wrapped(kernels, 2)
    assert fused.calls == []  # not before it is used
    for module in (first, second, first):
        mx.eval(module(*call(1, 2)))
    assert fused.calls == [*TESTS, (1, 2), (1, 2), (1, 2)]
    x, indices = call(1, 2)
    mx.eval(first(x.astype(mx.bfloat16), indices))
    assert fused.calls[6:] == [*TESTS, (1, 2)]
    assert [each.gate.dtype for each in fused.made] == ["float32", "float32", "bfloat16"]


def raises(out: mx.array) -> mx.array:
    raise RuntimeError("[metal_kernel] error: no such\n  function")


WRONG: list[tuple[str, Callable[[mx.array], mx.array], str]] = [
    ("one row", lambda out: out * mx.where(mx.arange(out.shape[-1]) == 7, 1.2, 1.0), "is off by "),
    ("shifted", lambda out: mx.roll(out, 1, axis=-1), "is off by "),
    ("nan", lambda out: mx.where(mx.arange(out.shape[-1]) == 0, float("nan"), out), "is off by nan"),
    ("type", lambda out: out.astype(mx.float16), "gives mlx.core.float16 (1, 2, 128) where mlx.core.float32"),
    ("shape", lambda out: out[:, :1], "gives mlx.core.float32 (1, 1, 128) where"),
    ("raises", raises, "does not run: [metal_kernel] error: no such function"),
]


@pytest.mark.parametrize("wrong, said", [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_a_wrong_kernel_is_turned_off_with_one_warning_that_names_it(
    wrong: Callable[[mx.array], mx.array], said: str
) -> None:
    fused, indexed = FakeMaker("fused", wrong=wrong), FakeMaker("indexed")
    kernels = SelectedKernels(BOTH, [fused, indexed])
    layers = [wrapped(kernels, number) for number in (1, 2)]
    x, indices = call(1, 2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for module in (*layers, *layers):
            assert mx.array_equal(module(x, indices), make_switch(MODE)(x, indices))
    assert [each.category for each in caught] == [KernelWarning]
    text = str(caught[0].message)
    assert text.startswith(f"kernel fused {said}")
    assert "turned off for gate 256x128 affine 4 bits, groups of 64, down 128x256" in text and "\n" not in text
    tested = len(fused.calls)
    mx.eval(layers[0](*call(1, 2)))
    assert len(fused.calls) == tested
    assert all(choice.kernel == "indexed" for choice in kernels.choices(1))
    plain = kernels.choices(5)[0]
    assert plain.kernel == "gather_qmm"


def test_without_another_kernel_the_plain_one_runs_and_the_fault_is_the_reason() -> None:
    kernels = SelectedKernels(KernelSettings(fused="on"), [FakeMaker("fused", wrong=lambda out: -out)])
    module = wrapped(kernels)
    x, indices = call(1, 2)
    with pytest.warns(KernelWarning, match="kernel fused is off by 2"):
        assert mx.array_equal(module(x, indices), make_switch(MODE)(x, indices))
    assert kernels.choices(1)[0].kernel == "gather_qmm"
    assert "fused is off by 2" in kernels.choices(1)[0].reason


def test_memory_that_runs_out_in_the_test_is_not_the_kernels_fault() -> None:
    def greedy(out: mx.array) -> mx.array:
        raise RuntimeError("[malloc] Unable to allocate 8589934592 bytes.")

    module = wrapped(SelectedKernels(KernelSettings(fused="on"), [FakeMaker("fused", wrong=greedy)]))
    with pytest.raises(RuntimeError, match="allocate"):
        module(*call(1, 2))


def test_the_tensors_are_those_that_the_module_has_when_it_is_called() -> None:
    fused = FakeMaker()
    module = wrapped(SelectedKernels(KernelSettings(fused="on"), [fused]))
    x, indices = call(1, 2)
    before = module(x, indices)
    checked = fused.checked
    mx.eval(module(x, indices))
    assert fused.checked == checked
    module.switch.down_proj.scales = 2 * module.switch.down_proj.scales
    module.switch.down_proj.biases = 2 * module.switch.down_proj.biases
    assert mx.allclose(module(x, indices), 2 * before)
    assert fused.checked == checked + 1


def test_an_adapter_around_a_projection_is_computed_by_the_module_itself() -> None:
    module = wrapped(SelectedKernels(KernelSettings(fused="on"), [FakeMaker()]))
    x, indices = call(1, 2)
    before = module(x, indices)
    adapter = LoRASwitchLinear.from_base(module.switch.down_proj, r=2)
    adapter.lora_b = mx.ones_like(adapter.lora_b)
    module.switch.down_proj = adapter
    with pytest.warns(
        KernelWarning, match="kernels are turned off in layer .*: no kernel computes a .*LoRASwitchLinear"
    ):
        adapted = module(x, indices)
    assert mx.array_equal(adapted, module.switch(x, indices)) and not mx.allclose(adapted, before)


def test_the_modules_own_activation_reaches_the_kernel() -> None:
    activation = TanhOfGate()
    kernels = SelectedKernels(KernelSettings(indexed="on"), [FakeMaker("indexed")])
    module = wrapped(kernels, activation=activation)
    x, indices = call(1, 2)
    assert mx.array_equal(module(x, indices), make_switch(MODE, activation=activation)(x, indices))
    assert kernels.choices(1)[0].kernel == "indexed"


def test_no_call_of_no_tokens_reaches_a_kernel() -> None:
    fused = FakeMaker()
    module = wrapped(SelectedKernels(KernelSettings(fused="on"), [fused]))
    x, indices = call(1, 2)
    assert module(x[:0], indices[:0]).shape == (0, 2, x.shape[-1])
    assert fused.calls == []


def test_what_is_off_changes_no_module() -> None:
    kernels = make_kernels(KernelSettings(), "metal", [FakeMaker()])
    module = make_switch(MODE)
    assert isinstance(kernels, NoKernels)
    assert kernels.wrap(3, module, geometry_of(module)) is module
    assert kernels.choices(1) == (LayerChoice(3, "gather_qmm", "kernels are off"),)


def test_on_the_cpu_kernels_are_not_offered_and_that_is_said() -> None:
    settings = KernelSettings(fused="on", indexed="on")
    with pytest.warns(KernelWarning, match="kernels.fused and kernels.indexed: kernels need Metal or CUDA") as caught:
        kernels = make_kernels(settings, "cpu", [])
    assert len(caught) == 1
    module = make_switch(MODE)
    assert kernels.wrap(3, module, geometry_of(module)) is module
    assert "kernels need Metal or CUDA" in kernels.choices(1)[0].reason
    assert missing(KernelSettings(), "cpu") is None
    assert missing(settings, "cuda") is None


def test_a_bank_that_no_kernel_can_read_is_computed_by_mlx_and_said_once() -> None:
    fused = FakeMaker()
    fused.unreadable = "up_proj.scales"
    kernels = SelectedKernels(KernelSettings(fused="on"), [fused])
    module = wrapped(kernels)
    x, indices = call(1, 2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            assert mx.array_equal(module(x, indices), make_switch(MODE)(x, indices))
    assert [str(each.message) for each in caught] == [
        "kernels are turned off in layer 3: up_proj.scales: not contiguous; gather_qmm runs in their place"
    ]
    assert fused.calls == TESTS
    assert reasons(kernels, 1) == ["layer 3: gather_qmm: up_proj.scales: not contiguous"]


def test_a_backend_without_kernels_says_so() -> None:
    kernels = SelectedKernels(KernelSettings(fused="on"), [])
    wrapped(kernels)
    assert reasons(kernels, 1) == ["layer 3: gather_qmm: no kernel exists here"]
