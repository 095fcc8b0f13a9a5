"""How long each custom kernel and MLX's own take for a call of T tokens, on experts of a model's own shapes.

Legend: T tokens, K experts per token, S slots of a bank, D model width.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from streaming_core.kernels.formats import Activation, ExpertFormat
from streaming_core.kernels.kernel import KernelMaker
from streaming_core.kernels.offer import PLAIN
from streaming_core.kernels.reference import activation_of
from streaming_core.kernels.sample import random_parts, random_rows, random_slots, switch_of
from streaming_core.kernels.selftest import fault_of
from streaming_core.settings import KernelSettings

__all__ = ["TOKENS", "BenchPlan", "FormatTimes", "bench_format"]

TOKENS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_BANK_BYTES = 1 << 30  # far more than any cache holds
_DIFFERENT = 4  # experts that are random; the others are copies of them at places of their own
_Run = Callable[[mx.array, mx.array], mx.array]  # x [T, D], slots [T, K] -> [T, K, D]


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """`samples` of each kernel and T, in that many rounds of all kernels; `calls` in a graph of one sample."""

    top_k: int
    experts: int
    tokens: tuple[int, ...] = TOKENS
    samples: int = 9
    calls: int = 8
    seed: int = 0


@dataclass(slots=True)
class FormatTimes:
    """Of the experts of one format: seconds a call in `samples_s[name][T]`, and why a kernel is in `left_out`."""

    experts: ExpertFormat
    slots: int
    samples_s: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def median_s(self, name: str, tokens: int) -> float:
        return statistics.median(self.samples_s[name][tokens])

    def wins_up_to(self, name: str) -> int | None:
        """The largest measured T at which, as at all smaller ones, the kernel's median is below MLX's own."""
        best = None
        for tokens in sorted(self.samples_s[name]):
            if self.median_s(name, tokens) >= self.median_s(PLAIN, tokens):
                break
            best = tokens
        return best

    def to_json(self) -> dict[str, Any]:
        kernels = [name for name in self.samples_s if name != PLAIN]
        return {
            "format": str(self.experts),
            "slots": self.slots,
            "samples_s": {n: {str(t): s for t, s in by.items()} for n, by in self.samples_s.items()},
            "wins_up_to": {name: self.wins_up_to(name) for name in kernels},
            "left_out": self.left_out,
        }


def bench_format(
    experts: ExpertFormat,
    makers: Sequence[KernelMaker],
    settings: KernelSettings,
    plan: BenchPlan,
    on_point: Callable[[int, int], None] = lambda done, of: None,
    clock: Callable[[], float] = time.perf_counter,
) -> FormatTimes:
    """Measures all kernels in turn, in another order each round.  `on_point(done, of)` hears of each T."""
    # Times hardly depend on the activation: one that no kernel knows is stood for by the usual one.
    activation = activation_of(experts.activation or Activation("swiglu"))
    found = FormatTimes(experts, _bank_slots(experts, plan))
    parts = random_parts(experts, found.slots, plan.seed, different=_DIFFERENT)
    runs: dict[str, _Run] = {PLAIN: switch_of(parts, experts, activation)}
    for maker in makers:
        reason = maker.refusal(experts, settings)
        if reason is None:
            kernel = maker.make(experts, settings, activation)
            reason = fault_of(kernel, experts, activation, plan.top_k)
        if reason is not None:
            found.left_out[maker.name] = reason
            continue
        kernel.check(parts)
        runs[maker.name] = lambda x, slots, kernel=kernel: kernel(x, slots, parts)  # type: ignore[misc]
    order = random.Random(plan.seed)
    found.samples_s = {name: {tokens: [] for tokens in plan.tokens} for name in runs}
    for number, tokens in enumerate(plan.tokens):
        for run in runs.values():
            _sample(run, experts, found.slots, tokens, plan, -1, clock)  # compiles, and warms up
        for round_ in range(plan.samples):
            for name in order.sample(list(runs), len(runs)):
                seconds = _sample(runs[name], experts, found.slots, tokens, plan, round_, clock)
                found.samples_s[name][tokens].append(seconds)
        on_point(number + 1, len(plan.tokens))
    return found


def _bank_slots(experts: ExpertFormat, plan: BenchPlan) -> int:
    each = sum(form.rows * form.columns * form.bits // 8 for form in (experts.gate, experts.up, experts.down))
    return max(min(plan.experts, _BANK_BYTES // each), min(plan.experts, plan.top_k))


def _sample(
    run: _Run, experts: ExpertFormat, slots: int, tokens: int, plan: BenchPlan, round_: int, clock: Callable[[], float]
) -> float:
    """Seconds a call.  Each call's input is the output of the one before, and no two ask for the same experts."""
    seeds = [plan.seed + 1000 * (round_ + 1) + number for number in range(plan.calls)]
    chosen = [random_slots(tokens, plan.top_k, slots, seed) for seed in seeds]
    x = random_rows(experts, tokens, plan.seed)
    mx.eval(x, chosen)
    mx.synchronize()
    started = clock()
    for each in chosen:
        x = run(x, each)[:, 0]
    mx.eval(x)
    return (clock() - started) / plan.calls
