"""A failing disk, a closed store, Ctrl-C anywhere: one clear error, no hang, no thread left, no wrong bit after."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import mlx.core as mx
import mlx_lm
import pytest
from prefetch_cases import READERS, Call, Manners, PutIn, assert_no_reader_threads, run, settings

import streaming_core
from streaming_core.errors import ModelClosed, ReadError
from streaming_core.store.header import layer_file

CALLS: list[Call] = [(1, 512, 1), (20, 16, 1)]
PACKAGE = str(Path(streaming_core.__file__).parent)
pytestmark = pytest.mark.parametrize("reader", READERS)


@pytest.fixture(scope="module")
def expected(tiny: Path) -> dict[Call, mx.array]:
    reference, _ = mlx_lm.load(str(tiny))
    return {call: run(reference, *call) for call in CALLS}


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert_no_reader_threads()


def guessing(reader: str, backend: str, **values: Any) -> streaming_core.Settings:
    return settings(
        residency__slots=9, predict__kind="gate", predict__mult=3.0, prefetch__backend=backend,
        reading__reader=reader, **values,
    )  # fmt: skip


@pytest.mark.parametrize("backend", ["stage", "slots"])
def test_a_file_cut_short_while_decoding_is_one_error_and_whole_again_it_is_read(
    tiny: Path, tmp_path: Path, expected: dict[Call, mx.array], reader: str, backend: str
) -> None:
    with streaming_core.load(tiny, guessing(reader, backend), cache_dir=tmp_path) as model:
        mx.eval(model.model(mx.array([[1]])))
        folder = next((tmp_path / "stores").iterdir())
        for layer in range(4):
            path = layer_file(folder, layer)
            shutil.copy(path, tmp_path / path.name)
            os.truncate(path, 20_000)
        for _ in range(2):
            with pytest.raises(ReadError, match=r"^expert \d+ of layer \d: .*the file ends at 20000; check the disk"):
                run(model.model, 20, 16, 1)
        for layer in range(4):
            path = layer_file(folder, layer)
            path.write_bytes((tmp_path / path.name).read_bytes())  # the same file, not another in its place
        for call in CALLS:
            assert mx.array_equal(run(model.model, *call), expected[call])


@pytest.mark.parametrize("layout", ["packed", "checkpoint"])
@pytest.mark.parametrize("backend", ["advise", "stage", "slots"])
def test_a_store_closed_between_two_tokens_is_one_clear_error(
    tiny: Path, shared_cache: Path, reader: str, backend: str, layout: str
) -> None:
    wanted = guessing(reader, backend, store__layout=layout)
    with streaming_core.load(tiny, wanted, cache_dir=shared_cache) as model:
        mx.eval(model.model(mx.array([[1]])))
        model._engine.store.close()
        with pytest.raises(
            ReadError, match=r"expert \d+ of layer \d: (the store is closed; load the model again|read)"
        ):
            for token in range(50):
                mx.eval(model.model(mx.array([[token]])))


def test_a_model_closed_between_two_tokens_says_so(tiny: Path, shared_cache: Path, reader: str) -> None:
    with streaming_core.load(tiny, guessing(reader, "slots"), cache_dir=shared_cache) as model:
        answer = model.stream("hello there", 50)
        next(answer)
        model.close()
        assert_no_reader_threads()
        with pytest.raises(ModelClosed):
            list(answer)


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("backend", ["stage", "slots"])
def test_closing_with_64_guesses_queued_ends_at_once(
    tiny: Path, shared_cache: Path, reader: str, backend: str, threads: int
) -> None:
    oracle = [{layer: list(range(16)) for layer in range(4)}] * 9
    wanted = settings(
        residency__slots=15, predict__kind="oracle", prefetch__backend=backend, prefetch__per_layer=64,
        prefetch__depth=64, prefetch__window=4, reading__reader=reader, reading__threads=threads,
    )  # fmt: skip
    model = streaming_core.load(tiny, wanted, cache_dir=shared_cache, oracle=oracle)
    mx.eval(model.model(mx.array([[1]])))
    model.close()
    model.close()
    assert model.stats().guessed > 0


# ---- Ctrl-C ----------------------------------------------------------------------------------------------------------


def interrupted(after: int, what: Callable[[], object]) -> int:
    """Runs it and raises KeyboardInterrupt at the n-th line that this thread executes in the package.

    Returns the lines it executed.
    """
    lines = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal lines
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            lines += 1
            if lines == after:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        what()
    finally:
        sys.settrace(before)
    return lines


def run_for_ever(model: streaming_core.StreamedModel, length: int) -> None:
    while True:
        for first in range(0, 200, length):
            mx.eval(model.model(mx.array([list(range(first, first + length))])))


@pytest.mark.parametrize("backend", ["none", "advise", "stage", "slots"])
@pytest.mark.parametrize("threads", [1, 3])
def test_ctrl_c_at_any_line_neither_hangs_nor_spoils_what_follows(
    tiny: Path, shared_cache: Path, expected: dict[Call, mx.array], put_in: PutIn, reader: str, backend: str,
    threads: int,
) -> None:  # fmt: skip
    rng = random.Random(f"{reader} {backend} {threads}")
    put_in(Manners(polls=2))
    wanted = guessing(reader, backend, reading__threads=threads)
    with streaming_core.load(tiny, wanted, cache_dir=shared_cache) as model:
        mx.eval(model.model(mx.array([[1]])))
        for length in (1, 1, 1, 1, 20):  # one wave, several waves
            tokens = rng.sample(range(200), length)
            total = interrupted(0, lambda some=tokens: mx.eval(model.model(mx.array([some]))))
            point = rng.randrange(1, total)
            with pytest.raises(KeyboardInterrupt):
                interrupted(point, lambda n=length: run_for_ever(model, n))
            assert mx.array_equal(run(model.model, *CALLS[0]), expected[CALLS[0]]), (length, point)
        assert mx.array_equal(run(model.model, *CALLS[1]), expected[CALLS[1]])


def test_ctrl_c_in_the_sampler_leaves_a_model_that_answers_and_closes(
    tiny: Path, shared_cache: Path, reader: str
) -> None:
    def sampler(logits: mx.array) -> mx.array:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt
        return mx.argmax(logits, axis=-1)

    with streaming_core.load(tiny, guessing(reader, "slots"), cache_dir=shared_cache) as model:
        left = -1
        whole = model.generate("hello there", 8, sampler=sampler)
        left = 4
        with pytest.raises(KeyboardInterrupt):
            model.generate("hello there", 8, sampler=sampler)
        assert model.generate("hello there", 8, sampler=sampler) == whole


def test_a_signal_while_decoding_closes_the_model_and_ends_the_process(
    tiny: Path, shared_cache: Path, reader: str
) -> None:
    script = f"""
        import sys, threading
        from pathlib import Path
        import streaming_core
        values = {{"residency.slots": 9, "predict.kind": "gate", "prefetch.backend": "slots",
                  "reading.reader": {reader!r}}}
        wanted = streaming_core.Settings().with_values(values)
        try:
            with streaming_core.load(Path({str(tiny)!r}), wanted, cache_dir=Path({str(shared_cache)!r})) as model:
                while True:
                    for n, _ in enumerate(model.stream("hello there", 200)):
                        if n == 3:
                            print("decoding", flush=True)
        except KeyboardInterrupt:
            print("left", threading.active_count(), flush=True)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "decoding\n"
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=20)[0]
    finally:
        process.kill()
        process.wait()
    assert rest.splitlines()[-1].startswith("left ")
    assert process.returncode == 0
