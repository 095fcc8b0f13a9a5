"""`mlx-autotune plan`: terms that add up, from config and headers alone."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

import streaming_core
from autotune.cli import main
from streaming_core import Settings
from streaming_core.units import GIB

pytestmark = pytest.mark.usefixtures("elsewhere")


def planned(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> dict[str, Any]:
    assert main(["plan", "--model", str(folder), "--json", "--profile", "none", *words]) == 0
    last: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return last


def test_the_terms_add_up_and_the_rest_is_left(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, tiny, "--budget", "1GiB", "--context", "32768")
    assert found["total_bytes"] == sum(found["terms"].values())
    assert found["left_bytes"] == GIB - found["total_bytes"] > 0
    assert found["context"] == 32768 and found["budget_bytes"] == GIB
    assert found["terms"]["KV cache"] == found["state_bytes"] + 32768 * found["kv_token_bytes"]


def test_a_batch_costs_caches_and_passes_and_nothing_else(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--budget", "4GiB", "--context", "4096", "--set", "prefill.chunk=32")
    one, three = planned(capsys, tiny, *words), planned(capsys, tiny, *words, "--batch", "3")
    scaled = {"KV cache", "transients"}
    for name, nbytes in one["terms"].items():
        assert three["terms"][name] == (3 if name in scaled else 1) * nbytes


def test_side_buffers_and_slots_are_terms(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stage = ["prefetch.backend=stage", "prefetch.window=2", "prefetch.per_layer=3"]
    words = [word for value in ["residency.slots=5", *stage] for word in ("--set", value)]
    found = planned(capsys, tiny, *words)
    assert found["terms"]["stages"] == 2 * 3 * found["record_bytes"]
    assert found["terms"]["banks"] == 5 * found["streamed_layers"] * found["record_bytes"]


def test_the_plan_is_the_one_that_loading_follows(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = planned(capsys, tiny, "--budget", "512MiB", "--context", "1024", "--set", "residency.resident_layers=1")
    values = {"memory.budget": "512MiB", "memory.context": 1024, "residency.resident_layers": 1}
    with streaming_core.load(tiny, Settings().with_values(values), cache_dir=tmp_path) as model:
        assert dict(model.memory_plan.terms) == found["terms"]


def test_no_weight_is_read_and_nothing_is_written(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files that have their headers and holes after them: a model of 64 GiB that takes no room."""
    folder = Path(shutil.copytree(tiny, tmp_path / "model"))
    for path in folder.glob("*.safetensors"):
        size, header = path.stat().st_size, path.read_bytes()
        os.truncate(path, 8 + int.from_bytes(header[:8], "little"))
        os.truncate(path, size)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    found = planned(capsys, folder, "--cache-dir", str(tmp_path / "cache"))
    assert mx.get_peak_memory() - before < found["terms"]["trunk"]
    assert not (tmp_path / "cache").exists()


def test_people_read_every_term_and_the_reasons(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--model", str(tiny), "--budget", "1GiB", "--set", "residency.slots=6", "--batch", "2"]
    assert main([*words, "--set", "store.layout=checkpoint"]) == 0
    said = capsys.readouterr()
    for term in ("trunk", "KV cache and state", "a prefill pass", "slots", "total", "budget", "left"):
        assert any(line.startswith(term) for line in said.out.splitlines()), term
    assert "6 slots (at least 4) in each of 4 layers" in said.out and "each of 2 sequences" in said.out
    assert "experts are read from the checkpoint as it is (store.layout=checkpoint): stacked tensors" in said.err


def test_quiet_is_one_line(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", str(tiny), "--budget", "1GiB", "--quiet"]) == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 1 and "of 1GiB" in said.out and said.err == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--budget", "1MiB"], "the smallest budget that works is"),
        (["--batch", "0"], "--batch must be at least 1, got 0"),
        (["--context", "-5"], "--context must be at least 1, got -5"),
    ],
    ids=str,
)
def test_what_cannot_be_planned_is_one_line(
    tiny: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["plan", "--model", str(tiny), "--profile", "none", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_model_that_is_not_here_is_not_downloaded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    asked: list[bool] = []

    def snapshot(repo: str, *, local_files_only: bool = False, **options: object) -> str:
        asked.append(local_files_only)
        raise FileNotFoundError(repo)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert main(["plan", "--model", "owner/name", "--profile", "none"]) == 2
    assert "run `hf download owner/name`, or give a folder" in capsys.readouterr().err
    assert asked == [True]
