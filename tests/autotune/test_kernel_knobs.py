"""Kernels are searched only where they exist, and what belongs to one only while it runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tuner_fakes import facts, space

import autotune.subject
from autotune.kernel_knobs import FUSED, INDEXED
from autotune.prepare import Place, outline_of
from autotune.space import Objective, build_space
from autotune.subject import subject_of
from streaming_core.hardware import FakeMachine, Machine
from streaming_core.kernels.formats import ExpertFormat
from streaming_core.settings import KernelSettings, Settings

BOTH = {"backend": "metal", "kernels": ("fused", "indexed")}
SHAPE = {"kernels.tile", "kernels.lanes", "kernels.block"}


def kernel_names(**changes: object) -> set[str]:
    return {knob.name for knob in space(**changes).knobs if knob.name.startswith("kernels.")}  # type: ignore[arg-type]


def test_no_kernel_knob_without_a_kernel() -> None:
    assert kernel_names() == set()
    assert kernel_names(backend="cuda") == set()
    assert kernel_names(kernels=("fused", "indexed")) == set()  # on the CPU
    assert kernel_names(backend="cuda", kernels=("fused",)) == {FUSED, *SHAPE}
    assert kernel_names(**BOTH) == {FUSED, INDEXED, "kernels.targets", *SHAPE}


def test_the_default_is_off_and_survives_the_way_there_and_back() -> None:
    the_space = space(**BOTH)
    params = the_space.to_params(Settings())
    assert params[FUSED] == 0 and INDEXED in params
    assert not {*SHAPE, "kernels.targets"} & params.keys()
    assert the_space.settings(params) == Settings()


def test_a_step_turns_a_kernel_on_up_to_that_many_tokens() -> None:
    the_space = space(objective=Objective.BALANCED, **BOTH)
    knob = next(knob for knob in the_space.knobs if knob.name == FUSED)
    assert knob.options == ("off", 1, 2, 4, 8, 16, 32)
    params = the_space.canonical({FUSED: 5, "kernels.tile": 3, INDEXED: 2})
    assert INDEXED not in params and "kernels.targets" not in params
    found = the_space.settings(params)
    assert found.changes_from(Settings()) == {
        "kernels.fused": "on",
        "kernels.fused_max_seq": 16,
        "kernels.tile": 8,
    }
    assert the_space.to_params(found) == params
    indexed = the_space.settings(the_space.canonical({INDEXED: 1, "kernels.targets": "all"}))
    assert indexed.changes_from(Settings()) == {
        "kernels.indexed": "on",
        "kernels.indexed_max_seq": 1,
        "kernels.targets": "all",
    }


def test_decoding_alone_searches_whether_and_not_up_to_how_many() -> None:
    knobs = {knob.name: knob.options for knob in space(**BOTH).knobs}
    assert knobs[FUSED] == ("off", 8)
    assert knobs[INDEXED] == ("off", 8)


@pytest.mark.parametrize(
    "value, searched", [("off", {INDEXED, "kernels.targets", *SHAPE}), ("on", {INDEXED, "kernels.targets", *SHAPE})]
)
def test_a_kernel_that_the_user_switched_stays_so(value: str, searched: set[str]) -> None:
    base = Settings().with_values({"kernels.fused": value})
    the_space = build_space(base, facts(**BOTH), Objective.DECODE, frozenset({"kernels.fused"}))
    assert {knob.name for knob in the_space.knobs if knob.name.startswith("kernels.")} == searched
    params = the_space.canonical({INDEXED: 1})
    assert (INDEXED in params) == (value == "off")
    assert params.keys() > SHAPE
    assert the_space.settings(params).kernels.fused == value


@given(data=st.data())
def test_the_kernels_of_any_proposal_read_back_as_they_are(data: st.DataObject) -> None:
    the_space = space(objective=Objective.PREFILL, **BOTH)
    raw = {knob.name: data.draw(st.integers(0, 9)) for knob in the_space.knobs if knob.ordinal}
    params = the_space.canonical({**raw, "kernels.targets": data.draw(st.sampled_from(["all", "gate_up"]))})
    found = the_space.settings(params)
    assert the_space.settings(the_space.to_params(found)).kernels == found.kernels


class Maker:
    """A kernel for 4 bits."""

    name = "fused"

    def refusal(self, experts: ExpertFormat, settings: KernelSettings) -> str | None:
        return None if experts.gate.bits == 4 else "has 4 bits only"


@pytest.mark.parametrize("bits, expected", [(4, ("fused",)), (8, ())])
def test_a_model_whose_format_no_kernel_knows_has_no_kernel_knobs(
    tiny: Path,
    machine: Machine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    bits: int,
    expected: tuple[str, ...],
) -> None:
    monkeypatch.setattr(autotune.subject, "makers", lambda backend: (Maker(),) if backend == "metal" else ())
    hardware = dataclasses.replace(machine.hardware(), backend="metal")
    place = Place(FakeMachine(hardware_reading=hardware), tmp_path)
    outline = outline_of(str(tiny), place)
    experts = outline.formats[0]
    assert isinstance(experts, ExpertFormat)
    gate = dataclasses.replace(experts.gate, bits=bits)
    outline = dataclasses.replace(outline, formats=(dataclasses.replace(experts, gate=gate),))
    assert subject_of("tiny", outline, place).facts.kernels == expected
