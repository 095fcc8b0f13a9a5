"""The settings that the simulation thinks fastest: worth a trial each before the search begins."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from autotune.facts import BACKEND, GUESSED, POLICY, RESIDENT, SLOTS
from autotune.knobs import Knob, Param, Params
from autotune.runner import process_environment
from autotune.simulate.outlook import KINDS, Outlook
from autotune.space import Space
from streaming_core.errors import AutotuneError

__all__ = ["best_of", "candidates", "foreseen"]

_MOST = 400  # candidates
_BEST = 3  # of them worth a trial
_GAIN = 1.02  # predicted, over the default
_ANSWER_S = 300.0  # a process that takes longer hangs
# What the simulation takes into account; the other knobs stay where the default has them.
_SIMULATED = (
    RESIDENT, SLOTS, POLICY, BACKEND, GUESSED, "residency.half_life", "reading.page_cache", "reading.guess_threads",
    "predict.kind", "predict.min_score", "prefetch.per_layer", "prefetch.depth",
)  # fmt: skip


def candidates(space: Space, seed: int) -> list[Params]:
    """The default, every change of one simulated knob, and random combinations of them."""
    default = space.to_params(space.base)
    found = {space.key(params): params for params in _proposals(space, default, random.Random(seed))}
    found.pop(space.key(default), None)
    return [default, *list(found.values())[: _MOST - 1]]


def _proposals(space: Space, default: Params, rng: random.Random) -> Iterator[Params]:
    options = {knob.name: _options(knob) for knob in space.knobs if knob.name in _SIMULATED}
    for name, params in options.items():
        for param in params:
            yield space.canonical({**default, name: param})
    for _ in range(2 * _MOST):
        yield space.canonical({**default, **{name: rng.choice(params) for name, params in options.items()}})


def _options(knob: Knob) -> list[Param]:
    values = [value for value in knob.options if knob.name != "predict.kind" or value in KINDS]
    return [knob.param(value) for value in values]


def best_of(found: Mapping[int, float], proposals: Sequence[Params]) -> list[Params]:
    """The best few by predicted speed, number 0 being the default: faster than it, no two alike but for one knob."""
    chosen: list[Params] = []
    for number in sorted(found, key=lambda n: -found[n]):
        if len(chosen) == _BEST or found[number] < _GAIN * found.get(0, float("inf")):
            break
        params = proposals[number]
        if all(_differing(params, other) > 1 for other in chosen):
            chosen.append(params)
    return chosen


def _differing(one: Params, other: Params) -> int:
    return sum(one.get(name) != other.get(name) for name in {*one, *other})


def foreseen(asked: Outlook, environment: Mapping[str, str]) -> dict[int, float]:
    """Predicted tokens per second by candidate, those left out that could not be told.

    In a process of its own: the model it loads is out of memory again before the first trial, and whatever goes wrong
    there costs no more than the priors.  Raises AutotuneError with its reason.
    """
    read, write = os.pipe()  # open as long as the answer is wanted: the process ends when it closes
    with os.fdopen(write, "wb") as questions:
        popen = subprocess.Popen(
            [sys.executable, "-m", "autotune.simulate.outlook"],
            stdin=read,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=process_environment(environment, asked.base.get("process", {})),
            start_new_session=True,
        )
        os.close(read)
        try:
            with suppress(BrokenPipeError):  # its exit status says that it died
                questions.write(json.dumps(asked.to_json()).encode() + b"\n")
                questions.flush()
            answer, _ = popen.communicate(timeout=_ANSWER_S)
        except subprocess.TimeoutExpired:
            raise AutotuneError(f"no answer after {_ANSWER_S:.0f} s") from None
        finally:
            if popen.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(popen.pid, signal.SIGKILL)
                popen.wait()
    if popen.returncode != 0:
        raise AutotuneError(f"its process ended with exit status {popen.returncode}")
    found = json.loads(answer)
    if "error" in found:
        raise AutotuneError(found["error"])
    return {number: tps for number, tps in enumerate(found["tps"]) if tps is not None}
