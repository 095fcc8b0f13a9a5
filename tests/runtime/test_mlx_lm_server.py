"""mlx_lm.server over a streamed model: the same answers as over the resident one, also to two clients at once."""

from __future__ import annotations

import argparse
import json
import sys
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import mlx_lm.server
import pytest
from mlx_lm.models.cache import LRUPromptCache
from mlx_lm.server import APIHandler, ModelProvider, ResponseGenerator

import streaming_core
from streaming_core import Settings

TEXT = "A pan of onions, a star and a judge walk into the garden."
CHAT = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "Why is the sky blue?"}]
STREAMED = {"residency.slots": 4}
GUESSING = {**STREAMED, "predict.kind": "gate", "predict.mult": 2.0, "prefetch.backend": "stage"}


class StreamedProvider(ModelProvider):  # type: ignore[misc]
    """mlx-lm's, with a streamed model in place of the one it would load."""

    def __init__(self, args: argparse.Namespace, cache: Path, values: dict[str, Any]) -> None:
        super().__init__(args)
        self.cache, self.values = cache, values
        self.streamed: streaming_core.StreamedModel | None = None

    def _load(self, model_path: str, adapter_path: str | None = None, draft_model_path: str | None = None) -> None:
        self.streamed = streaming_core.load(model_path, Settings().with_values(self.values), cache_dir=self.cache)
        self.model, self.tokenizer = self.streamed.model, self.streamed.tokenizer
        self.model_key = (model_path, adapter_path, draft_model_path)
        self.is_batchable = True  # all of its caches can be merged


class Server:
    def __init__(self, url: str, provider: ModelProvider) -> None:
        self.url, self.provider = url, provider

    def post(self, path: str, **body: Any) -> bytes:
        body = {"max_tokens": 10, "temperature": 0.0, **body}
        request = urllib.request.Request(f"{self.url}{path}", json.dumps(body).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bytes(answer.read())

    def completion(self, prompt: str, **body: Any) -> str:
        answer = json.loads(self.post("/v1/completions", prompt=prompt, **body))
        return str(answer["choices"][0]["text"])

    def chat(self, **body: Any) -> str:
        answer = json.loads(self.post("/v1/chat/completions", messages=CHAT, **body))
        return str(answer["choices"][0]["message"]["content"])

    def streamed_chat(self) -> list[str]:
        lines = self.post("/v1/chat/completions", messages=CHAT, stream=True).decode().splitlines()
        events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        assert events.pop() == "[DONE]"
        return [json.loads(event)["choices"][0]["delta"].get("content", "") for event in events]


def arguments(folder: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> argparse.Namespace:
    """As mlx_lm.server's own main parses them."""
    taken: list[ModelProvider] = []
    with monkeypatch.context() as patch:
        patch.setattr(sys, "argv", ["mlx_lm.server", "--model", str(folder), *more])
        patch.setattr(mlx_lm.server, "run", lambda host, port, provider: taken.append(provider))
        patch.setattr(mlx_lm.server, "maybe_set_recommended_wired_limit", lambda: None)
        patch.setattr(mlx_lm.server.logging, "basicConfig", lambda **_: None)
        mlx_lm.server.main()
    return taken[0].cli_args


@contextmanager
def serving(provider: ModelProvider) -> Iterator[Server]:
    """What mlx_lm.server.run does, on a free port and with an end."""
    generator = ResponseGenerator(provider, LRUPromptCache(provider.cli_args.prompt_cache_size))
    with ThreadingHTTPServer(("127.0.0.1", 0), lambda *args: APIHandler(generator, *args)) as httpd:
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        try:
            yield Server(f"http://127.0.0.1:{httpd.server_port}", provider)
        finally:
            httpd.shutdown()
            thread.join()
            generator.stop_and_join()


def answers(server: Server) -> list[Any]:
    return [
        server.completion(TEXT),
        server.completion(TEXT, seed=3, temperature=0.9),  # a seed is served outside of batches
        server.chat(),
        server.streamed_chat(),
        server.chat(),  # from the prompt cache
        server.completion(TEXT + " They eat."),
    ]


@pytest.mark.parametrize("values", [STREAMED, GUESSING], ids=["streamed", "guessing"])
@pytest.mark.parametrize("more", [(), ("--kv-bits", "8", "--kv-group-size", "32", "--quantized-kv-start", "0")],
                         ids=["batches", "one at a time"])  # fmt: skip
def test_the_server_answers_as_over_the_resident_model(
    tiny: Path, shared_cache: Path, monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], more: tuple[str, ...]
) -> None:
    args = arguments(tiny, monkeypatch, *more)
    with serving(ModelProvider(args)) as server:
        expected = answers(server)
    provider = StreamedProvider(args, shared_cache, values)
    with serving(provider) as server:
        assert answers(server) == expected
    assert provider.streamed is not None
    assert provider.streamed.stats().misses > 0
    provider.streamed.close()
    assert all(expected) and "".join(expected[3]) == expected[2]


def test_two_clients_in_turn_and_at_once(tiny: Path, shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = arguments(tiny, monkeypatch)
    prompts = [TEXT, "Rain."]
    with serving(ModelProvider(args)) as server:
        expected = [server.completion(prompt) for prompt in prompts]
    provider = StreamedProvider(args, shared_cache, STREAMED)
    with serving(provider) as server, ThreadPoolExecutor(2) as clients:
        assert [server.completion(prompt) for prompt in prompts] == expected
        assert list(clients.map(lambda prompt: server.completion(prompt, max_tokens=10), prompts)) == expected
    assert provider.streamed is not None
    provider.streamed.close()


def test_a_model_loaded_by_another_thread_than_the_servers(
    tiny: Path, shared_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = StreamedProvider(arguments(tiny, monkeypatch), shared_cache, STREAMED)
    provider._load(str(tiny), None, None)
    streamed = provider.streamed
    assert streamed is not None
    expected = streamed.generate(TEXT, 10)
    with serving(provider) as server:
        assert server.completion(TEXT) == expected
        assert provider.streamed is streamed
    streamed.close()
