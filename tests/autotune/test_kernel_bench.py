"""Where kernels stop winning, by a clock that tests wind."""

from __future__ import annotations

import json
from collections.abc import Callable

import mlx.core as mx
import pytest
from mlx_lm.models.switch_layers import SwitchGLU

import autotune.commands.bench_kernels
import autotune.kernel_bench
from autotune.cli import main
from autotune.kernel_bench import BenchPlan, FormatTimes, bench_format
from streaming_core.kernels.formats import Activation, ExpertFormat, ProjectionFormat
from streaming_core.kernels.reference import ActivationOf, Parts, expert_mlp
from streaming_core.kernels.sample import switch_of
from streaming_core.settings import KernelSettings

WIDE = ProjectionFormat(64, 32, 4, 32, "affine", "float32", "float32", False)
EXPERTS = ExpertFormat(WIDE, WIDE, ProjectionFormat(32, 64, 4, 32, "affine", "float32", "float32", False), None)
PLAN = BenchPlan(top_k=2, experts=6, tokens=(1, 2, 4, 8), samples=3, calls=2)
Cost = Callable[[int], float]  # seconds of a call of T tokens


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Timed:
    """Computes the reference, and winds the clock."""

    def __init__(self, name: str, clock: Clock, cost: Cost, order: list[str], sign: int = 1) -> None:
        self.name = name
        self.clock = clock
        self.cost = cost
        self.order = order
        self.sign = sign
        self.asked: list[list[list[int]]] = []

    def refusal(self, experts: ExpertFormat, settings: KernelSettings) -> str | None:
        return None

    def make(self, experts: ExpertFormat, settings: KernelSettings, activation: ActivationOf) -> Timed:
        self.mlp = lambda x, slots, parts: expert_mlp(x, slots, parts, experts, activation)
        return self

    def check(self, parts: Parts) -> None:
        return

    def __call__(self, x: mx.array, slots: mx.array, parts: Parts) -> mx.array:
        self.clock.now += self.cost(x.shape[0])
        self.order.append(self.name)
        self.asked.append(slots.tolist())
        return self.sign * self.mlp(x, slots, parts)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> list[str]:
    """Who ran; mlx-lm's own takes 10 us a token and 5 more."""
    ran: list[str] = []

    def plain(parts: Parts, experts: ExpertFormat, activation: ActivationOf) -> Callable[..., mx.array]:
        switch: SwitchGLU = switch_of(parts, experts, activation)

        def run(x: mx.array, slots: mx.array) -> mx.array:
            clock.now += 1e-6 * (5 + 10 * x.shape[0])
            ran.append("gather_qmm")
            return switch(x, slots)

        return run

    monkeypatch.setattr(autotune.kernel_bench, "switch_of", plain)
    return ran


def quick(tokens: int) -> float:
    return 1e-6 * 12 * tokens  # wins up to two tokens


def slow(tokens: int) -> float:
    return 1e-6 * (16 if tokens == 1 else 1)  # loses at one token, and that counts


def test_the_threshold_is_the_last_call_before_the_kernel_stops_winning(clock: Clock, order: list[str]) -> None:
    makers = [Timed("fused", clock, quick, order), Timed("indexed", clock, slow, order)]
    found = bench_format(EXPERTS, makers, KernelSettings(), PLAN, clock=clock)
    assert found.slots == 6
    assert found.wins_up_to("fused") == 2
    assert found.wins_up_to("indexed") is None
    assert found.samples_s["fused"][4] == pytest.approx([48e-6] * 3)
    assert found.samples_s["gather_qmm"][8] == pytest.approx([85e-6] * 3)


def test_kernels_take_turns_and_ask_for_other_experts_each_time(clock: Clock, order: list[str]) -> None:
    fused = Timed("fused", clock, quick, order)
    bench_format(EXPERTS, [fused], KernelSettings(), BenchPlan(2, 6, tokens=(3,), samples=8, calls=1), clock=clock)
    rounds = order[-16:]
    pairs = [tuple(rounds[n : n + 2]) for n in range(0, 16, 2)]
    assert set(pairs) == {("fused", "gather_qmm"), ("gather_qmm", "fused")}
    assert len({str(slots) for slots in fused.asked[-8:]}) == 8


def test_a_kernel_that_is_wrong_or_refuses_is_left_out_with_its_reason(clock: Clock, order: list[str]) -> None:
    class Refusing(Timed):
        def refusal(self, experts: ExpertFormat, settings: KernelSettings) -> str | None:
            return "has no 4 bits"

    makers = [Timed("fused", clock, quick, order, sign=-1), Refusing("indexed", clock, quick, order)]
    found = bench_format(EXPERTS, makers, KernelSettings(), PLAN, clock=clock)
    assert set(found.samples_s) == {"gather_qmm"}
    assert found.left_out["indexed"] == "has no 4 bits"
    assert "is off by 2" in found.left_out["fused"]


def test_a_bank_is_as_large_as_the_layer_or_larger_than_caches() -> None:
    slots = autotune.kernel_bench._bank_slots
    large = ProjectionFormat(2048, 7168, 4, 64, "affine", "bfloat16", "bfloat16", False)
    deep = ExpertFormat(large, large, large, Activation("swiglu"))
    assert slots(deep, BenchPlan(top_k=8, experts=256)) == (1 << 30) // (3 * 2048 * 7168 // 2)
    assert slots(EXPERTS, BenchPlan(top_k=8, experts=256)) == 256


@pytest.mark.usefixtures("elsewhere")
def test_on_the_cpu_there_is_nothing_to_measure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--kernels", "--model", "tiny"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "mlx-autotune: error: --kernels: kernels need Metal or CUDA, MLX computes on cpu here\n"


@pytest.mark.usefixtures("elsewhere")
def test_the_command_says_where_each_kernel_stops_winning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(
        experts: ExpertFormat, makers: object, settings: object, plan: BenchPlan, report: object
    ) -> FormatTimes:
        assert (plan.top_k, plan.samples) == (4, 6)
        times = {"gather_qmm": [10e-6, 20e-6, 30e-6], "fused": [5e-6, 15e-6, 35e-6], "indexed": [11e-6, 12e-6, 13e-6]}
        samples = {name: {2**n: [at] for n, at in enumerate(row)} for name, row in times.items()}
        return FormatTimes(experts, 16, samples, {"other": "has no 4 bits"})

    monkeypatch.setattr(autotune.commands.bench_kernels, "makers", lambda backend: (object(),))
    monkeypatch.setattr(autotune.commands.bench_kernels, "bench_format", measured)
    words = ["bench", "--kernels", "--model", "tiny", "--rounds", "2", "--profile", "none"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "fused wins up to 2 tokens: kernels.fused=on, kernels.fused_max_seq=2" in out
    assert "indexed does not win: leave kernels.indexed off" in out
    assert "other was not measured: has no 4 bits" in out
    assert "35.0 (35.0-35.0)" in out
    assert main([*words, "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["formats"][0]["wins_up_to"] == {"fused": 2, "indexed": None}
