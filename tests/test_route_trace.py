"""A file of a recorded run is read strictly, whoever wrote it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from streaming_core.errors import TraceInvalid
from streaming_core.route_trace import Asked, Guessed, PassRecord, RouteTrace, read_routes, read_trace, save_trace

MARK = "c" * 16


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.gz"


def trace() -> RouteTrace:
    steps = [
        PassRecord(3, False, [Asked(1, (4, 2), (2, 4))]),
        PassRecord(1, True, [Asked(1, (0, 3)), Asked(2, (1,))], [Guessed(1, 2, ((1, 0.75), (3, -0.5)))]),
    ]
    return RouteTrace(
        fingerprint=MARK, experts=5, top_k=2, chunk=64, predict_kind="gate", predict_mult=1.5, ahead=1, passes=steps
    )


def write(path: Path, document: Any) -> None:
    path.write_bytes(gzip.compress(json.dumps(document).encode()))


def saved(path: Path) -> dict[str, Any]:
    save_trace(path, trace())
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return found


def test_what_was_saved_is_read_back(path: Path) -> None:
    save_trace(path, trace())
    found = read_trace(path, MARK)
    assert found == trace()
    assert found.layers == {1, 2}
    assert read_routes(path, MARK) == [{1: [4, 2]}, {1: [0, 3], 2: [1]}] == found.routes


def test_of_the_first_version_the_routes_can_be_read_and_nothing_else(path: Path) -> None:
    write(path, {"version": 1, "fingerprint": MARK, "experts": 4, "passes": [{"0": [3, 1]}]})
    assert read_routes(path, MARK) == [{0: [3, 1]}]
    with pytest.raises(TraceInvalid, match="record it again"):
        read_trace(path, MARK)


def passes(*steps: Any) -> dict[str, Any]:
    return {"passes": list(steps)}


@pytest.mark.parametrize(
    "changed",
    [
        {"version": 3},
        {"version": None},
        {"version": [1]},
        {"experts": -1},
        {"experts": 1 << 40},
        {"experts": True},
        {"top_k": 6},
        {"chunk": 0},
        {"predict": ["gate", 1.5]},
        {"predict": [1, 1.5, 1]},
        {"predict": ["gate", float("nan"), 1]},
        {"predict": ["gate", 1e300, 1]},
        {"passes": {"0": []}},
        passes([0, 1, [], []]),
        passes([1, 2, [], []]),
        passes([1, 1, []]),
        passes([1, 1, [[0, [5], []]], []]),
        passes([1, 1, [[0, [-1], []]], []]),
        passes([1, 1, [[0, [1.0], []]], []]),
        passes([1, 1, [[0, [1, 1], []]], []]),
        passes([1, 1, [[0, [1, 2], [1]]], []]),
        passes([1, 1, [[0, [1], [0]]], []]),
        passes([1, 1, [[0, [1], [1 << 60]]], []]),
        passes([1, 1, [[-1, [1], []]], []]),
        passes([1, 1, [[99999, [1], []]], []]),
        passes([1, 1, [[0, "12", []]], []]),
        passes([1, 1, [], [[0, 1, [1, 2], [0.5]]]]),
        passes([1, 1, [], [[0, 1, [9], [0.5]]]]),
        passes([1, 1, [], [[0, 1, [1], ["x"]]]]),
        passes([1, 1, [], [[0, 1, [1], [float("inf")]]]]),
    ],
    ids=str,
)
def test_anything_that_no_run_can_have_written_is_refused_in_one_line(path: Path, changed: dict[str, Any]) -> None:
    write(path, saved(path) | changed)
    for read in (read_trace, read_routes):
        with pytest.raises(TraceInvalid, match=r"run\.gz: not a trace") as caught:
            read(path, MARK)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["[]", "7", "null", "[" * 100_000, '{"version": 2}', "9" * 5000])
def test_json_that_is_no_document_is_refused(path: Path, content: str) -> None:
    path.write_bytes(gzip.compress(content.encode()))
    with pytest.raises(TraceInvalid, match=r"run\.gz"):
        read_trace(path, MARK)


def test_a_file_cut_short_is_refused(path: Path) -> None:
    save_trace(path, trace())
    whole = path.read_bytes()
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        with pytest.raises(TraceInvalid):
            read_trace(path, MARK)


def test_a_file_that_unpacks_to_more_than_any_trace_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming_core.route_trace._LARGEST", 1000)
    path.write_bytes(gzip.compress(b" " * 1001))
    with pytest.raises(TraceInvalid, match="larger than any trace"):
        read_trace(path, MARK)
