"""The memory plan: what a model needs under some settings, term by term, and what fits into a budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from streaming_core.errors import BudgetTooSmall, ContextExceeded, SettingsError
from streaming_core.layer_set import LayerSet
from streaming_core.settings import Settings
from streaming_core.units import exact_size, format_size, round_up

__all__ = ["MemoryDemand", "MemoryPlan", "check_context", "plan_memory", "stage_records"]

_KV_STEP = 256  # mlx-lm's caches grow by this many tokens at a time
# What a process grows by apart from MLX's arrays: tokenizer, reader threads, Python objects, allocator slack.  Measured
# on Linux as peak RSS less the RSS of importing mlx_lm less MLX's peak: 20 to 50 MiB.
_PROCESS_BYTES = 48 << 20
_AUTO_CHUNKS = (512, 256, 128, 64, 32, 16)
_ROWS_LIMIT = 32_768  # sorted gather_qmm calls over more rows are wrong on some MLX versions (mlx issue 3856)


@dataclass(frozen=True, slots=True)
class MemoryDemand:
    """What a model asks for, in bytes, before any setting is applied."""

    trunk_bytes: int
    slot_bytes: Mapping[int, int]  # MoE layer -> bytes of one expert in memory
    experts: int
    top_k: int
    kv_fixed_bytes: int  # recurrent states and the like, whatever the context
    kv_token_bytes: int  # keys and values of one token, over all layers
    row_bytes: int  # live at once per routed row (token x expert) of a forward pass
    token_bytes: int  # live at once per token of a forward pass, whatever the layer is doing
    score_bytes: int  # live at once per (token of the pass x token of the context): attention scores, if materialised
    scan_bytes: int  # live at once per token of a forward pass: recurrent states of a scan without a kernel
    staging_bytes: int = 0  # per bank batch, on devices with memory of their own
    kv_windows: tuple[tuple[int, int], ...] = ()  # of layers that keep the last tokens only: how many, bytes of one
    batch: int = 1  # sequences at once; all bytes above are those of one

    def kv_bytes(self, context: int) -> int:
        tokens = round_up(context, _KV_STEP)
        windows = sum(nbytes * min(tokens, kept) for kept, nbytes in self.kv_windows)
        return self.batch * (self.kv_fixed_bytes + self.kv_token_bytes * tokens + windows)

    def transient_bytes(self, chunk: int, context: int) -> int:
        """Peak of what a pass of `chunk` tokens allocates and frees; experts, scan and scores do not overlap."""
        chunk = min(chunk, context)
        widest = max(self.row_bytes * self.top_k, self.scan_bytes, self.score_bytes * context)
        windows = sum(nbytes for _, nbytes in self.kv_windows)  # a pass's tokens are kept until the next one
        states = 2 * self.kv_fixed_bytes  # new ones beside the old ones
        return self.batch * (chunk * (widest + self.token_bytes + windows) + states)

    def chunks(self, wanted: int | str) -> list[int]:
        """Tokens per prefill pass to be tried, the fastest first; routed rows stay below MLX's limit."""
        limit = max(1, _ROWS_LIMIT // (self.top_k * self.batch))
        candidates = [wanted] if isinstance(wanted, int) else _AUTO_CHUNKS
        return [min(chunk, limit) for chunk in candidates]


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Terms in bytes; their sum is within `budget_bytes` when there is one."""

    terms: Mapping[str, int]
    budget_bytes: int | None
    slots: int  # per streamed layer; 0 when every layer is resident
    chunk: int  # tokens per prefill pass
    resident: LayerSet
    streamed: tuple[int, ...]

    @property
    def total_bytes(self) -> int:
        return sum(self.terms.values())

    @property
    def fits(self) -> bool:
        return self.budget_bytes is None or self.total_bytes <= self.budget_bytes

    def text(self) -> str:
        """One line per term, sizes aligned."""
        rows = [*self.terms.items(), ("total", self.total_bytes)]
        if self.budget_bytes is not None:
            rows.append(("budget", self.budget_bytes))
        return "\n".join(f"{name:<16} {format_size(nbytes):>12}" for name, nbytes in rows)


def plan_memory(demand: MemoryDemand, settings: Settings, default_budget_bytes: int) -> MemoryPlan:
    """Decides slots and resident layers.

    `residency.slots` = "auto" takes what the budget leaves; explicit slots without a budget are taken as they are.
    `default_budget_bytes` stands in for `memory.budget` when slots are "auto" and no budget is set.

    Raises:
        BudgetTooSmall: the terms do not fit, with the smallest budget that works and the largest slots or context.
        SettingsError: slots below top-k or above the experts, or resident layers the model does not have.
    """
    budget = settings.memory.budget
    if budget is None and settings.residency.slots == "auto":
        budget = default_budget_bytes
    for chunk in demand.chunks(settings.prefill.chunk):
        plan = _plan_with(demand, settings, budget, chunk)
        # A large chunk that eats the room of the slots makes every token slower to make prompts faster.
        if plan.budget_bytes is None or (plan.fits and plan.terms["transients"] <= plan.budget_bytes // 8):
            return plan
    if not plan.fits:
        raise _too_small(demand, settings, plan)
    return plan


def _plan_with(demand: MemoryDemand, settings: Settings, budget: int | None, chunk: int) -> MemoryPlan:
    fixed = _fixed_terms(demand, settings, chunk)
    resident = _resident_layers(demand, settings, budget, sum(fixed.values()))
    streamed = tuple(n for n in demand.slot_bytes if n not in resident)
    kept = sum(size for n, size in demand.slot_bytes.items() if n in resident) * demand.experts
    per_slot = sum(demand.slot_bytes[n] for n in streamed)
    if streamed:
        fixed["staging"] = demand.staging_bytes
        fixed["stages"] = stage_records(settings) * max(demand.slot_bytes[n] for n in streamed)
    base = sum(fixed.values()) + kept
    slots = _slots(demand, settings, streamed, per_slot, base, budget)
    terms = {k: v for k, v in {**fixed, "resident layers": kept, "banks": per_slot * slots}.items() if v}
    return MemoryPlan(terms, budget, slots, chunk, resident, streamed)


def check_context(plan: MemoryPlan, context: int, held: int, prompt_tokens: int, max_tokens: int) -> None:
    """Raises ContextExceeded when a cache that holds so many tokens would outgrow what the plan made room for.

    `max_tokens` below 0 is an answer without end.  A plan without a budget promised nothing: anything goes.
    """
    used = held + prompt_tokens
    if plan.budget_bytes is None or (max_tokens >= 0 and used + max_tokens <= context):
        return
    before = f" after {held} in the cache" if held else ""
    answer = f" and max_tokens={max_tokens}" if max_tokens else ""
    advice = f"pass max_tokens of at most {context - used}" if used < context else "shorten the prompt"
    raise ContextExceeded(
        f"a prompt of {prompt_tokens} tokens{before}{answer} exceeds the {context} that memory.context makes room for; "
        f"{advice}, or load the model with a larger memory.context"
    )


def stage_records(settings: Settings) -> int:
    """Side buffers of the prefetch backend, in records."""
    prefetch = settings.prefetch
    return prefetch.window * prefetch.per_layer if prefetch.backend == "stage" else 0


def _fixed_terms(demand: MemoryDemand, settings: Settings, chunk: int) -> dict[str, int]:
    return {
        "process": _PROCESS_BYTES,
        "trunk": demand.trunk_bytes,
        "KV cache": demand.kv_bytes(settings.memory.context),
        "transients": demand.transient_bytes(chunk, settings.memory.context),
        "MLX cache": settings.memory.mlx_cache,
    }


def _resident_layers(demand: MemoryDemand, settings: Settings, budget: int | None, fixed_bytes: int) -> LayerSet:
    wanted = settings.residency.resident_layers
    layers = list(demand.slot_bytes)
    if wanted == "auto":
        everything = fixed_bytes + sum(demand.slot_bytes.values()) * demand.experts
        fits = settings.residency.slots == "auto" and budget is not None and everything <= budget
        return LayerSet.of(layers) if fits else LayerSet()
    if isinstance(wanted, int):
        # Without a measured ranking: a pass's first layers have the least time to read ahead in.
        return LayerSet.of(layers[:wanted])
    named = LayerSet.parse(wanted)
    if named.layers is None:
        return LayerSet.of(layers)
    if strangers := sorted(named.layers - set(layers)):
        raise SettingsError(
            f"residency.resident_layers names layer {strangers[0]}; the model's MoE layers are {LayerSet.of(layers)}"
        )
    return named


def _slots(
    demand: MemoryDemand, settings: Settings, streamed: Sequence[int], per_slot: int, base: int, budget: int | None
) -> int:
    wanted = settings.residency.slots
    if not streamed:
        return 0
    if wanted == "all":
        return demand.experts
    if wanted == "auto":
        assert budget is not None  # plan_memory put the default in its place
        return max(demand.top_k, min(demand.experts, (budget - base) // per_slot))
    assert isinstance(wanted, int)
    if not demand.top_k <= wanted <= demand.experts:
        raise SettingsError(
            f"residency.slots must be from {demand.top_k} (experts per token) to {demand.experts} (experts per layer), "
            f"got {wanted}"
        )
    return wanted


def _too_small(demand: MemoryDemand, settings: Settings, plan: MemoryPlan) -> BudgetTooSmall:
    budget, smallest = plan.budget_bytes, plan.total_bytes
    assert budget is not None
    hints = []
    per_slot = sum(demand.slot_bytes[n] for n in plan.streamed)
    if per_slot and (fitting := (budget - smallest) // per_slot + plan.slots) >= demand.top_k:
        hints.append(f"residency.slots up to {fitting} would fit")
    context = _largest_context(demand, plan, settings.memory.context)
    if context:
        hints.append(f"memory.context up to {context} would fit")
    if demand.batch > 1:
        hints.append("fewer sequences at once need less")
    advice = "; ".join(hints) if hints else "fewer resident layers, a smaller prefill.chunk or memory.context need less"
    return BudgetTooSmall(
        f"memory.budget {exact_size(budget)} is too small: the plan needs {format_size(plan.total_bytes)} "
        f"({', '.join(f'{k} {format_size(v)}' for k, v in plan.terms.items())}); "
        f"the smallest budget that works is {exact_size(_rounded_up(smallest))}; {advice}",
        needed_bytes=plan.total_bytes,
        budget_bytes=budget,
        smallest_bytes=smallest,
    )


def _largest_context(demand: MemoryDemand, plan: MemoryPlan, wanted: int) -> int:
    """The largest context below `wanted` with which the plan would fit; 0 if none would."""

    def needed(context: int) -> int:
        return demand.kv_bytes(context) + demand.transient_bytes(plan.chunk, context)

    assert plan.budget_bytes is not None
    room = plan.budget_bytes - (plan.total_bytes - needed(wanted))
    low, high = 0, wanted
    while low < high:
        middle = (low + high + 1) // 2
        if needed(middle) <= room:
            low = middle
        else:
            high = middle - 1
    return low


def _rounded_up(nbytes: int) -> int:
    """A size that prints with few digits and is not smaller: what a person can type."""
    step = 1 << max(10, nbytes.bit_length() - 8)
    return round_up(nbytes, step)
