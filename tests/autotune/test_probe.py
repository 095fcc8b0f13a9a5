from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.probe import DiskRow, ProbePlan, best_bandwidth, probe_disk
from streaming_core.hardware import detect


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("probe") / "records"
    path.write_bytes(os.urandom(4 << 20))
    return path


def test_every_point_is_measured_and_reread_when_the_cache_is_kept(data: Path) -> None:
    plan = ProbePlan(read_bytes=(1 << 16,), threads=(1, 4), seconds=0.05)
    points: list[tuple[int, int]] = []
    rows = probe_disk([data], detect(), plan, lambda done, of: points.append((done, of)))
    assert [(row.threads, row.page_cache) for row in rows] == [
        (1, "bypass"),
        (4, "bypass"),
        (1, "keep"),
        (1, "keep"),
        (4, "keep"),
        (4, "keep"),
    ]
    assert plan.points == len(rows)
    assert points[-1] == (6, 6)
    assert all(row.bytes_per_s > 0 and 0 < row.read_count <= 64 for row in rows)


def test_bytes_that_did_not_come_from_the_device_are_not_called_cold(data: Path) -> None:
    rows = probe_disk([data], detect(), ProbePlan(read_bytes=(1 << 16,), threads=(1,), seconds=0.05))
    again = rows[-1]
    if again.physical_share is None:
        pytest.skip("this system does not count physical reads")
    assert again.state == "cached"


def test_a_record_larger_than_the_file_is_cut_to_it(data: Path) -> None:
    plan = ProbePlan(read_bytes=(64 << 20,), threads=(1,), page_caches=("keep",), seconds=0.05)
    assert probe_disk([data], detect(), plan)[0].read_count == 1


def test_state_and_best_bandwidth_believe_the_counter_only() -> None:
    cold, cached = DiskRow(1, 1, "bypass", 5.0, 0.99, 1), DiskRow(1, 1, "bypass", 9.0, 0.9, 1)
    unknown = DiskRow(1, 1, "keep", 7.0, None, 1)
    assert [row.state for row in (cold, cached, unknown)] == ["cold", "cached", "unverified"]
    assert best_bandwidth([cold, cached, unknown], cold=True) == 5.0
    assert best_bandwidth([cold, cached, unknown], cold=False) == 9.0
    assert best_bandwidth([cached], cold=True) is None
