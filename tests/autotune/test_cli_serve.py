"""`mlx-autotune serve`, asked by OpenAI's own client."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx
import openai
import pytest
from openai import OpenAI

import streaming_core
from autotune.cli import main
from autotune.serving import Server, StreamedGenerator, bind
from streaming_core import Settings, StreamedModel
from streaming_core.errors import ReadError
from streaming_core.recording import NullRecorder

TEXT = "A pan of onions, a star and a judge walk into the garden."
CHAT: Any = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "Why is the sky blue?"}]
VALUES = {"residency.slots": 4, "memory.context": 1024, "prefill.chunk": 16}


class Running:
    """A server in this process, and what it says."""

    def __init__(self, server: Server, generator: StreamedGenerator, streamed: StreamedModel) -> None:
        self.server, self.generator, self.streamed = server, generator, streamed
        self.said: list[str] = []
        self.client = OpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=60)

    def complete(self, prompt: str = TEXT, **options: Any) -> str:
        options = {"model": "tiny", "max_tokens": 10, "temperature": 0.0, **options}
        return self.client.completions.create(prompt=prompt, **options).choices[0].text

    def chat(self, **options: Any) -> Any:
        return self.client.chat.completions.create(model="tiny", messages=CHAT, max_tokens=10, **options)


@contextmanager
def serving(tiny: Path, cache: Path, **changes: Any) -> Iterator[Running]:
    settings = Settings().with_values({**VALUES, **changes})
    with bind("127.0.0.1", 0) as server, streaming_core.load(tiny, settings, cache_dir=cache) as streamed:
        generator = StreamedGenerator(streamed, "tiny", 12)
        generator._time_budget._budget = 0.02  # after so long mlx_lm looks who has gone
        running, ready = Running(server, generator, streamed), threading.Event()
        thread = threading.Thread(target=server.serve, args=[generator, ready.set, running.said.append])
        thread.start()
        try:
            assert ready.wait(60)
            yield running
        finally:
            running.client.close()
            generator.stop()
            thread.join()


@pytest.fixture(scope="module")
def running(tiny: Path, shared_cache: Path) -> Iterator[Running]:
    with serving(tiny, shared_cache) as running:
        yield running


@pytest.fixture(scope="module")
def expected(tiny: Path, shared_cache: Path) -> dict[str, str]:
    with streaming_core.load(tiny, Settings().with_values(VALUES), cache_dir=shared_cache) as streamed:
        chat = streamed.tokenizer.apply_chat_template(CHAT, add_generation_prompt=True)
        return {
            "chat": streamed.generate(chat, 10),
            TEXT: streamed.generate(streamed.tokenizer.encode(TEXT), 10),
            "Rain.": streamed.generate(streamed.tokenizer.encode("Rain."), 10),
        }


def test_answers_streamed_or_not_are_the_models(running: Running, expected: dict[str, str]) -> None:
    assert running.complete() == expected[TEXT]
    whole = running.chat()
    assert whole.choices[0].message.content == expected["chat"]
    pieces = list(running.chat(stream=True, stream_options={"include_usage": True}))
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices) == expected["chat"]
    assert pieces[-1].usage.completion_tokens == whole.usage.completion_tokens == 10
    assert running.complete(seed=3) == expected[TEXT]  # served outside of batches
    assert [model.id for model in running.client.models.list()] == ["tiny"]
    assert running.said[0] == "127.0.0.1 POST /v1/completions HTTP/1.1 200"


def test_clients_in_turn_and_at_once(running: Running, expected: dict[str, str]) -> None:
    prompts = [TEXT, "Rain."] * 2
    wanted = [expected[prompt] for prompt in prompts]
    assert [running.complete(prompt) for prompt in prompts] == wanted
    with ThreadPoolExecutor(4) as clients:
        assert list(clients.map(running.complete, prompts)) == wanted


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        ({"max_tokens": 5000}, 400, "exceeds the 1024 that memory.context makes room for; ask for at most"),
        ({"prompt": "a garden " * 3000}, 400, "shorten the prompt, or start the server with a larger memory.context"),
        ({"prompt": ""}, 400, "no tokens"),
        ({"prompt": ["a", "b"]}, 400, "prompt must be a text"),
        ({"stop": 5}, 400, "stop must be"),
        ({"stop": ["a", 1]}, 400, "stop must be"),
        ({"temperature": -1.0}, 400, "temperature must be at least 0"),
        ({"temperature": 1.0, "extra_body": {"top_k": 1 << 40}}, 400, "top_k"),
        ({"stream": True, "stream_options": 5}, 400, "stream_options must be"),
        ({"logit_bias": {"99999999": 2}}, 400, "logit_bias names token 99999999"),
        ({"seed": -1}, 400, "seed must be from 0"),
        ({"logit_bias": {"-1": 2}}, 400, "logit_bias names token -1"),
        ({"model": "another"}, 404, "'another' is not served here, 'tiny' is"),
        ({"extra_body": {"adapters": "x"}}, 400, "adapters"),
    ],
    ids=str,
)  # fmt: skip
def test_a_bad_request_is_told_in_a_line_and_the_next_is_served(
    running: Running, expected: dict[str, str], options: dict[str, Any], status: int, message: str
) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        running.complete(**{"prompt": TEXT, **options})
    assert caught.value.status_code == status
    assert message in str(caught.value) and len(str(caught.value).splitlines()) == 1
    assert running.complete() == expected[TEXT]


@pytest.mark.parametrize("messages", [[], "hello", [{"content": "x"}], ["x"]], ids=str)
def test_messages_that_are_none_are_refused(running: Running, messages: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="messages must be"):
        running.client.chat.completions.create(model="tiny", messages=messages)


def test_a_body_that_is_not_text_is_refused(running: Running) -> None:
    assert b" 400 " in raw(running, b"\xff\xfe")
    assert b" 400 " in raw(running, b"{")


def test_an_answer_whose_length_is_not_named_has_the_usual_one_or_what_there_is_room_for(running: Running) -> None:
    ask = running.client.completions.create
    answer = ask(model="tiny", prompt=TEXT, temperature=0)
    assert answer.usage is not None and answer.usage.completion_tokens == 12
    prompt = running.streamed.tokenizer.decode(running.streamed.tokenizer.encode("garden " * 3000)[:1016])
    tokens = len(running.streamed.tokenizer.encode(prompt))
    assert 1012 < tokens < 1024
    answer = ask(model="tiny", prompt=prompt, temperature=0)
    assert answer.usage is not None and answer.usage.completion_tokens == 1024 - tokens


def raw(running: Running, body: bytes, *, wait: bool = True) -> bytes:
    """The answer's first line to a request that no client would send; without waiting: hangs up at once."""
    with socket.create_connection(running.server.server_address[:2], timeout=60) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        return connection.makefile("rb").readline() if wait else b""


@pytest.mark.parametrize("seed", [None, 3], ids=["batch", "seeded"])
@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_hangs_up_ends_its_answer(
    running: Running, expected: dict[str, str], streamed: bool, seed: int | None
) -> None:
    running.streamed.reset_stats()
    length = 900
    if streamed:
        pieces = running.client.completions.create(
            model="tiny", prompt=TEXT, max_tokens=length, temperature=0.0, stream=True, seed=seed
        )
        assert next(iter(pieces)).choices
        pieces.close()
    else:
        body = {"prompt": TEXT, "max_tokens": length, "temperature": 0.0, "seed": seed}
        raw(running, json.dumps(body).encode(), wait=False)
    assert running.complete() == expected[TEXT]  # one at a time: served once the other has ended
    assert running.streamed.stats().tokens < length


def test_passes_are_no_longer_than_the_plan_and_only_what_is_new_is_computed(running: Running) -> None:
    lengths: list[int] = []

    class Passes(NullRecorder):
        def begins_pass(self, tokens: int) -> None:
            lengths.append(tokens)

    prompt = "An onion and a judge. " * 8
    running.complete("Clouds.")
    running.streamed.record(Passes())
    answer = running.client.completions.create(model="tiny", prompt=prompt, max_tokens=5, temperature=0)
    running.streamed.record(NullRecorder())
    assert answer.usage is not None
    assert sum(lengths) >= answer.usage.prompt_tokens > 3 * 16
    assert max(lengths) == 16


def test_memory_is_back_at_its_level_after_requests(tiny: Path, shared_cache: Path) -> None:
    with serving(tiny, shared_cache, **{"memory.context": 512, "prefill.chunk": 128}) as running:
        kept, taken = running.generator.prompt_cache, running.streamed.memory_plan.terms["KV cache"]
        running.complete("One.")
        level = mx.get_active_memory() - kept.nbytes
        for number in range(4):
            running.complete(f"{number} " + "gardens " * 60, max_tokens=5)
            assert kept.nbytes <= taken
        running.complete("x", max_tokens=300)  # takes nearly all of the room that kept ones had
        assert len(kept) <= 2
        assert mx.get_active_memory() - kept.nbytes <= level + (1 << 16)


def test_what_ends_the_generation_ends_the_server(
    tiny: Path, shared_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ReadError("layer 3: the disk is gone")

    settings = Settings().with_values(VALUES)
    with bind("127.0.0.1", 0) as server, streaming_core.load(tiny, settings, cache_dir=shared_cache) as streamed:
        generator = StreamedGenerator(streamed, "tiny", 12)
        monkeypatch.setattr("mlx_lm.server.BatchGenerator.next", fail)
        client = OpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=60)

        def ask() -> None:
            with pytest.raises(openai.APIError):
                client.completions.create(model="tiny", prompt=TEXT)

        with ThreadPoolExecutor(1) as clients:
            asking: list[Any] = []
            with pytest.raises(ReadError, match="the disk is gone"):
                server.serve(generator, lambda: asking.append(clients.submit(ask)), lambda _: None)
            asking[0].result()


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_says_where_it_is_and_ends_with_0(
    tiny: Path, shared_cache: Path, expected: dict[str, str], number: signal.Signals
) -> None:
    words = ["serve", "--model", str(tiny), "--port", "0", "--json", "--profile", "none", "--set", "residency.slots=4"]
    command = [sys.executable, "-m", "autotune", *words, "--cache-dir", str(shared_cache)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        ready = next(event for event in map(json.loads, process.stdout) if event["event"] == "ready")
        assert ready["url"] == f"http://127.0.0.1:{ready['port']}/v1"
        assert (ready["slots"], ready["experts"], ready["layout"]) == (4, 16, "packed")
        assert "no profile was wanted" in ready["settings"]
        with OpenAI(base_url=ready["url"], api_key="none", max_retries=0) as client:
            answer = client.completions.create(model=str(tiny), prompt=TEXT, max_tokens=10, temperature=0, seed=1)
            assert answer.choices[0].text == expected[TEXT]
            endless = client.completions.create(model=str(tiny), prompt=TEXT, max_tokens=4000, seed=1, stream=True)
            assert next(iter(endless)).choices
            process.send_signal(number)
            assert process.wait(60) == 0
        assert [json.loads(line) for line in process.stdout][-1] == {"event": "notice", "text": "stopped"}


@pytest.mark.usefixtures("elsewhere")
def test_addresses_that_cannot_be_had_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for flags, message in (
            (["--port", port], f"--port {port} is in use at 127.0.0.1"),
            (["--port", "65536"], "--port must be from 0"),
            (["--host", "256.1.1.1"], "--host 256.1.1.1: "),
            (["--host", "192.0.2.1"], "--host 192.0.2.1: "),
            (["--host", "a" * 70 + ".example"], "--host aaa"),
            (["--max-tokens", "0"], "--max-tokens must be at least 1"),
        ):
            assert main(["serve", "--model", "tiny", "--profile", "none", "--port", "0", *flags]) == 2
            out, err = capsys.readouterr()
            assert out == "" and err.splitlines()[-1].startswith(f"mlx-autotune: error: {message}")
