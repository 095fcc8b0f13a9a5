"""What the system refuses in the middle of a command: memory, open files."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

import streaming_core
from autotune.cli import main

pytestmark = pytest.mark.usefixtures("elsewhere")

GENERATE = ["generate", "--model", "tiny", "--prompt", "one two", "--max-tokens", "3", "--profile", "none"]


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[malloc] Unable to allocate 8589934592 bytes."),
        RuntimeError("[metal::malloc] Attempting to allocate 9 bytes, more than\nthe maximum allowed buffer size"),
        RuntimeError("[METAL] Command buffer execution failed: Insufficient Memory (00000008:...)"),
        RuntimeError("cudaMallocAsync(&data, size, stream) failed: out of memory"),
        RuntimeError("std::bad_alloc"),
        MemoryError("std::bad_alloc"),
        MemoryError(),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("moment", ["load", "stream"])
def test_memory_that_runs_out_is_one_line_and_exit_status_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, moment: str, error: Exception
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise error

    place = streaming_core if moment == "load" else streaming_core.StreamedModel
    monkeypatch.setattr(place, moment, fail, raising=False)
    assert main(GENERATE) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    reason = " ".join(str(error).split()) or "MemoryError"
    assert last.startswith(f"mlx-autotune: error: out of memory: {reason}; close other programs")


def test_any_other_error_of_mlx_is_not_taken_for_one_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise RuntimeError("[matmul] Last dimension of first input must match")

    monkeypatch.setattr(streaming_core.StreamedModel, "stream", fail)
    with pytest.raises(RuntimeError, match="matmul"):
        main(GENERATE)


# The limit is real; who may raise it nevertheless, as root may, is answered as anybody else is.
FEW_FILES = textwrap.dedent("""
    import resource, sys
    set_limit = resource.setrlimit
    set_limit(resource.RLIMIT_NOFILE, (512, 1024))
    def setrlimit(kind, limits):
        if limits[1] > resource.getrlimit(kind)[1]:
            raise ValueError("not allowed to raise maximum limit")
        set_limit(kind, limits)
    resource.setrlimit = setrlimit
    from autotune.cli import main
    sys.exit(main(sys.argv[1:]))
""")


@pytest.mark.parametrize(
    "words", [GENERATE, *([name, "--model", "tiny"] for name in ("run", "bench", "pack", "trace", "probe"))], ids=str
)
def test_a_hard_limit_of_open_files_below_that_of_mlx_lm_is_one_line(words: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", FEW_FILES, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        "mlx-autotune: error: mlx_lm asks for a hard limit of 4096 open files, this shell has 1024; "
    )
    assert "`ulimit -n 4096`" in last and "Traceback" not in done.stderr


def test_what_needs_no_model_runs_with_few_open_files() -> None:
    command = [sys.executable, "-c", FEW_FILES, "show"]
    assert subprocess.run(command, capture_output=True, timeout=60).returncode == 0


def test_any_other_wrong_value_is_not_taken_for_that_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise ValueError("something else")

    monkeypatch.setattr(streaming_core.StreamedModel, "stream", fail)
    with pytest.raises(ValueError, match="something else"):
        main(GENERATE)


def test_a_cache_folder_without_a_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pack", "--model", "tiny", "--cache-dir", ""]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "argument --cache-dir: the name is empty; give a folder" in line
