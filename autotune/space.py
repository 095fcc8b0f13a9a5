"""What is searched on this machine with this model: knobs, and how their values become settings.

The memory bound is part of the space.  How many slots a layer gets is searched as a fraction of the largest number
that fits beside everything else in the same proposal, so that nothing proposed can exceed the budget.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import optuna
from optuna.distributions import BaseDistribution

from autotune.facts import (
    BACKEND,
    GUESSED,
    POLICY,
    RESIDENT,
    SLOTS,
    SpaceFacts,
    guessed_share,
    largest_slots,
    most_resident,
    resident_count,
    slots_share,
)
from autotune.kernel_knobs import MAX_SEQ, kernel_knobs, kernel_settings, used_up_to
from autotune.knobs import AnyOf, Condition, Knob, Param, Params, Value
from streaming_core.layer_set import LayerSet
from streaming_core.settings import Settings

__all__ = ["RESIDENT", "SLOTS", "Objective", "Space", "SpaceFacts", "build_space"]

_SHARES = (0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0)
_GUESSED_SHARES = (0.25, 0.5, 0.75, 1.0)
_FRACTIONS = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0)


class Objective(Enum):
    """What is to be fast."""

    DECODE = "decode"  # tokens after the first
    PREFILL = "prefill"  # the time to the first token
    BALANCED = "balanced"  # the geometric mean of both


@dataclass(frozen=True, slots=True)
class Space:
    """Proposals in, settings out.  `base` gives every setting that no knob changes."""

    base: Settings
    facts: SpaceFacts
    knobs: tuple[Knob, ...]
    _largest: dict[Settings, int] = field(default_factory=dict, repr=False, compare=False)
    _default: dict[str, Value] = field(default_factory=dict, init=False, repr=False, compare=False)

    def suggest(self, trial: optuna.Trial) -> Params:
        """Asks Optuna for every knob that is in play."""
        return self._walk(lambda knob: knob.suggest(trial))

    def canonical(self, params: Mapping[str, Any]) -> Params:
        """Params with every value an option, knobs that came into play at their default and the others dropped."""
        default = self._default_values()
        return self._walk(
            lambda knob: knob.clamp(params[knob.name]) if knob.name in params else knob.param(default[knob.name])
        )

    def guessing_everywhere(self) -> Params | None:
        """The default with guesses for every layer; None if guesses or their layers are not searched."""
        backend = next((knob for knob in self.knobs if knob.name == BACKEND), None)
        layers = next((knob for knob in self.knobs if knob.name == GUESSED), None)
        if layers is None:
            return None
        wanted: dict[str, Param] = {**self.to_params(self.base), GUESSED: layers.param(1.0)}
        if backend is not None and wanted.get(BACKEND) == "none":
            wanted[BACKEND] = str(backend.options[1])
        params = self.canonical(wanted)
        return params if GUESSED in params else None

    def to_params(self, settings: Settings) -> Params:
        """The nearest proposal to any settings, from another machine's profile for example."""
        values = self._plain_values(settings)
        return self._walk(lambda knob: knob.param(values[knob.name]))

    def settings(self, params: Params) -> Settings:
        """The settings of a proposal.  They fit the budget whenever the base does.

        What comes to the same as "auto" stays "auto": it then follows the memory of the day, and reads better.
        """
        values = {knob.name: knob.value(params[knob.name]) for knob in self.knobs if knob.name in params}
        share = values.pop(SLOTS, None)
        count = values.pop(RESIDENT, None)
        guessed = values.pop(GUESSED, None)
        as_many_as_fit = share is None or (share == 1.0 and self.base.residency.slots == "auto")
        changed: dict[str, Any] = kernel_settings(values)
        if count is not None and not (as_many_as_fit and count == resident_count(self.base, self.facts)):
            changed[RESIDENT] = self._layer_text(int(count))
        settings = self.base.with_values(changed)
        if guessed is not None and guessed != guessed_share(self.base, self.facts):
            settings = settings.with_values({GUESSED: self._guessed_text(float(guessed), settings)})
        if share is None or as_many_as_fit:
            return settings
        slots = round(float(share) * self.largest_slots(settings))
        return settings.with_values({SLOTS: max(slots, self.facts.fewest_slots)})

    def distributions(self, params: Params) -> dict[str, BaseDistribution]:
        return {knob.name: knob.distribution() for knob in self.knobs if knob.name in params}

    def key(self, params: Params) -> str:
        """Equal for proposals that mean the same settings."""
        return json.dumps(self.settings(params).changes_from(self.base), sort_keys=True)

    def without(self, names: Collection[str]) -> Space:
        """The space in which these knobs keep the default."""
        return replace(self, knobs=tuple(knob for knob in self.knobs if knob.name not in names))

    @property
    def size(self) -> int:
        """How many proposals there are, conditions left aside."""
        size = 1
        for knob in self.knobs:
            size *= len(knob.options)
        return size

    @property
    def content_hash(self) -> str:
        """Equal for spaces whose trials can be compared.  The ranking is left out: it is measured, and kept."""
        plain = {
            "knobs": [knob.to_json() for knob in self.knobs],
            "base": self.base.to_mapping(),
            "layers": self.facts.layers,
            "experts": self.facts.experts,
            "top_k": self.facts.top_k,
        }
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:12]

    def largest_slots(self, settings: Settings) -> int:
        """The most slots a layer can have beside everything else in `settings`."""
        known = settings.with_values({SLOTS: 1})
        if known not in self._largest:
            self._largest[known] = largest_slots(known, self.facts)
        return self._largest[known]

    def _walk(self, choose: Callable[[Knob], Param]) -> dict[str, Param]:
        chosen: dict[str, Param] = {}
        values: dict[str, Value] = {}
        searched = {knob.name for knob in self.knobs}
        for knob in self.knobs:
            if knob.when is None or self._holds(knob.when, values, searched):
                chosen[knob.name] = choose(knob)
                values[knob.name] = knob.value(chosen[knob.name])
        return chosen

    def _holds(self, when: Condition | AnyOf, values: Mapping[str, Value], searched: set[str]) -> bool:
        if isinstance(when, AnyOf):
            return any(self._holds(each, values, searched) for each in when.conditions)
        if when.knob in searched:
            return when.knob in values and values[when.knob] in when.values
        if when.knob == RESIDENT:
            return self._default_values()[RESIDENT] in when.values
        name = MAX_SEQ.get(when.knob)
        return (self.base.get(when.knob) if name is None else used_up_to(self.base, name)) in when.values

    def _default_values(self) -> Mapping[str, Value]:
        """Of `base`, worked out once: a search asks for them thousands of times."""
        if not self._default:
            count = resident_count(self.base, self.facts)
            self._default.update({**self._plain_values(self.base), RESIDENT: count})
        return self._default

    def _plain_values(self, settings: Settings) -> dict[str, Value]:
        """The values of the knobs, with `auto` resolved as the runtime would and layer sets counted."""
        values: dict[str, Value] = {knob.name: settings.get(knob.name) for knob in self.knobs}
        values |= {key: used_up_to(settings, name) for key, name in MAX_SEQ.items() if key in values}
        count = resident_count(settings, self.facts)
        if RESIDENT in values:
            values[RESIDENT] = count
        if GUESSED in values:
            values[GUESSED] = guessed_share(settings, self.facts)
        if SLOTS in values:
            values[SLOTS] = slots_share(settings, self.largest_slots(settings.with_values({RESIDENT: count})))
        return values

    def _layer_text(self, count: int) -> str:
        if count >= len(self.facts.layers):
            return "all"
        return str(LayerSet.of(self.facts.ranking[:count]))

    def _guessed_text(self, share: float, settings: Settings) -> str:
        """The best layers to guess for, among those that `settings` stream."""
        if share >= 1.0:
            return "all"
        facts = self.facts
        named = settings.residency.resident_layers
        counted = LayerSet.of(facts.layers[: resident_count(settings, facts)])
        resident = LayerSet.parse(named) if isinstance(named, str) and named != "auto" else counted
        streamed = [layer for layer in facts.guess_ranking or facts.ranking if layer not in resident]
        return str(LayerSet.of(streamed[: max(1, round(share * len(streamed)))]))


def build_space(base: Settings, facts: SpaceFacts, objective: Objective, fixed: frozenset[str] = frozenset()) -> Space:
    """The knobs for this machine and model; settings in `fixed` keep the value they have in `base`."""
    knobs = [knob for knob in _knobs(base, facts, objective, fixed) if knob.name not in fixed and len(knob.options) > 1]
    return Space(base, facts, tuple(knobs))


def _knobs(base: Settings, facts: SpaceFacts, objective: Objective, fixed: frozenset[str]) -> list[Knob]:
    layers = len(facts.layers)
    most = most_resident(base, facts, fixed)
    default_count = resident_count(base, facts)
    counts = {round(share * layers) for share in _SHARES} | {most, default_count}
    offered = tuple(sorted(count for count in counts if count <= most))
    some_streamed = Condition(RESIDENT, tuple(count for count in offered if count < layers))
    default_share = slots_share(base, largest_slots(base.with_values({RESIDENT: default_count}), facts))
    knobs = [
        Knob(name=RESIDENT, options=offered, ordinal=True),
        Knob(name=SLOTS, options=_with(_FRACTIONS, default_share), ordinal=True, when=some_streamed),
        Knob(name=POLICY, options=("lru", "lfu"), ordinal=False, when=some_streamed),
        Knob(
            name="residency.half_life",
            options=_with((8, 16, 32, 64, 128, 256, 512), base.residency.half_life),
            ordinal=True,
            when=Condition(POLICY, ("lfu",)),
        ),
        Knob(
            name="reading.threads",
            options=_with((1, 2, 4, 8, 16, 32), base.reading.threads),
            ordinal=True,
            when=some_streamed,
        ),
        Knob(name="reading.page_cache", options=("keep", "bypass"), ordinal=False, when=some_streamed),
        Knob(name="reading.reader", options=facts.readers, ordinal=False, when=some_streamed),
        Knob(name="store.layout", options=("packed", "checkpoint"), ordinal=False, when=some_streamed),
    ]
    knobs += _guess_knobs(base, some_streamed, facts, fixed)
    # The chunk changes nothing after the first token, and a knob that does nothing costs trials: decode leaves it out.
    if objective is not Objective.DECODE:
        numbers = (64, 128, 256, 512, 1024, 2048)
        default = base.prefill.chunk
        chunks = ("auto", *numbers) if isinstance(default, str) else _with(numbers, default)
        knobs.append(Knob(name="prefill.chunk", options=chunks, ordinal=True))
    if facts.backend in ("metal", "cuda"):
        # From MLX's own choice down: smaller command buffers start the device sooner.
        limits = sorted({50, 20, 10, 5, 2} | ({base.process.max_ops_per_buffer} - {None}), key=lambda n: -(n or 0))
        knobs.append(Knob(name="process.max_ops_per_buffer", options=(None, *limits), ordinal=True))
        # A decoded token is a call of one token: how many more a kernel takes would change nothing.
        knobs += kernel_knobs(base, facts.kernels, fixed, decode_only=objective is Objective.DECODE)
    return knobs


def _guess_knobs(base: Settings, some_streamed: Condition, facts: SpaceFacts, fixed: frozenset[str]) -> list[Knob]:
    """What is done with guesses, then where they come from; without a backend no guess is made."""
    # Slots need memory that host and device share; hints are dead past the page cache, which is a knob of its own.
    backends = ("none", "stage") if facts.backend == "cuda" else ("none", "stage", "slots")
    acted_on = Condition(BACKEND, backends[1:])
    by_router = Condition("predict.kind", ("gate", "gate_input", "cascade"))
    k = facts.top_k
    knobs = [
        Knob(name=BACKEND, options=backends, ordinal=False, when=some_streamed),
        Knob(name="predict.kind", options=facts.guesses, ordinal=False, when=acted_on),
        Knob(
            name="predict.mult",
            options=_with((1.0, 1.5, 2.0, 3.0, 4.0), base.predict.mult),
            ordinal=True,
            when=acted_on,
        ),
        # The scores of a token's experts sum up to about one: what is unlikely depends on how many share it.
        Knob(
            name="predict.min_score",
            options=_with(tuple(round(share / k, 4) for share in (0.0, 0.1, 0.2, 0.3, 0.5)), base.predict.min_score),
            ordinal=True,
            when=by_router,
        ),
        Knob(name="prefetch.ahead", options=(1, 2, 3), ordinal=True, when=by_router),
        Knob(
            name="prefetch.per_layer",
            options=_with(tuple(sorted({max(1, k // 2), k, 2 * k, 3 * k})), base.prefetch.per_layer),
            ordinal=True,
            when=acted_on,
        ),
        Knob(
            name="prefetch.depth",
            options=_with((2, 4, 8, 16, 32, 64), base.prefetch.depth),
            ordinal=True,
            when=acted_on,
        ),
        Knob(
            name="reading.guess_threads",
            options=_with((1, 2, 4), base.reading.guess_threads),
            ordinal=True,
            when=acted_on,
        ),
    ]
    off = {BACKEND, "predict.kind"} & fixed
    if all(base.get(name) != "none" for name in off):
        shares = _with(_GUESSED_SHARES, guessed_share(base, facts))
        knobs.append(Knob(name=GUESSED, options=shares, ordinal=True, when=acted_on))
    return knobs


def _with(options: tuple[int | float, ...], value: int | float) -> tuple[int | float, ...]:
    """The default is always on the grid."""
    return tuple(sorted({*options, value}))
