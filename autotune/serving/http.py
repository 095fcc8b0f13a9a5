"""The HTTP side: mlx_lm's handler with statuses that OpenAI's clients understand, on a socket with an end."""

from __future__ import annotations

import contextlib
import errno
import json
import select
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from typing import Any

from mlx_lm.server import APIHandler

from autotune.errors import RequestInvalid
from autotune.serving.generator import StreamedGenerator
from streaming_core.errors import ModelNotFound

__all__ = ["Server", "bind"]


class Server(ThreadingHTTPServer):
    """Has its address from `bind`; answers once `serve` is called.  Closing it hangs up on whoever is connected."""

    daemon_threads = False  # closing waits for them
    generator: StreamedGenerator
    on_request: Callable[[str], None]

    def __init__(self, family: socket.AddressFamily, address: Any) -> None:
        self.address_family = family
        self._connections: set[socket.socket] = set()
        super().__init__(address, StreamedHandler, bind_and_activate=False)
        try:
            self.server_bind()
        except BaseException:
            self.server_close()
            raise

    @property
    def url(self) -> str:
        host = str(self.server_address[0])
        return f"http://{f'[{host}]' if ':' in host else host}:{self.server_port}/v1"

    def serve(
        self, generator: StreamedGenerator, on_ready: Callable[[], None], on_request: Callable[[str], None]
    ) -> None:
        """Runs the model in this thread until `generator.stop()`, KeyboardInterrupt or what else ends it.

        Raises RequestInvalid when somebody else took the port meanwhile.
        """
        self.generator, self.on_request = generator, on_request
        try:
            self.server_activate()
        except OSError as err:
            raise _refused(err, str(self.server_address[0]), self.server_port) from err
        listening = threading.Thread(target=self.serve_forever)
        listening.start()
        try:
            on_ready()
            generator.run()
        finally:
            self.shutdown()
            listening.join()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def finish_request(self, request: Any, client_address: Any) -> None:
        StreamedHandler(self.generator, request, client_address, self)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        for connection in list(self._connections):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                connection.shutdown(socket.SHUT_RDWR)
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, OSError) or not self.generator.is_healthy:  # the client is gone, or the server ends
            return
        self.on_request(f"{client_address[0]} was hung up on: {type(error).__name__}: {' '.join(str(error).split())}")


class StreamedHandler(APIHandler):  # type: ignore[misc]
    server: Server
    response_generator: Any
    stream_options: Any
    wfile: Any
    _answered = 200

    def do_POST(self) -> None:
        try:
            super().do_POST()
        except UnicodeDecodeError:  # of the body: nothing was answered yet
            self._refuse("the body of the request is not UTF-8")

    def handle_completion(self, request: Any, stop_words: Any) -> None:
        if not isinstance(stop_words, list) or not all(isinstance(word, str) and word for word in stop_words):
            return self._refuse("stop must be a text or a list of texts, none empty")
        if self.stream_options is not None:
            if not isinstance(self.stream_options, dict):
                return self._refuse("stream_options must be an object")
            self.stream_options = {"include_usage": False, **self.stream_options}
        generator = self.response_generator
        self.response_generator = _Attended(generator, self.connection)
        try:
            super().handle_completion(request, stop_words)
        finally:
            self.response_generator = generator

    def _refuse(self, reason: str) -> None:
        self._set_completion_headers(400)
        self.end_headers()
        self.wfile.write(json.dumps({"error": reason}).encode())

    def handle_text_completions(self) -> Any:
        if not isinstance(self.body.get("prompt"), str):
            raise RequestInvalid("prompt must be a text")
        return super().handle_text_completions()

    def handle_chat_completions(self) -> Any:
        messages = self.body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise RequestInvalid("messages must be a list with at least one message")
        if not all(isinstance(message, dict) and isinstance(message.get("role"), str) for message in messages):
            raise RequestInvalid("each of messages must be an object with a role and content")
        return super().handle_chat_completions()

    def handle_models_request(self) -> None:
        """The one model; mlx_lm would list every download."""
        model = {"id": self.response_generator.name, "object": "model", "created": self.created, "owned_by": "local"}
        self._set_completion_headers(200)
        self.end_headers()
        self.wfile.write(json.dumps({"object": "list", "data": [model]}).encode())

    def _set_completion_headers(self, status_code: int = 200) -> None:
        # mlx_lm says 404 to whatever keeps a request from being run.
        error = sys.exc_info()[1]
        if status_code == 404 and error is not None:
            status_code = self._status(error)
        self._answered = status_code
        super()._set_completion_headers(status_code)

    def _status(self, error: BaseException) -> int:
        if isinstance(error, ModelNotFound):
            return 404
        return 400 if self.response_generator.is_healthy else 503

    def end_headers(self) -> None:
        super().end_headers()
        if self._answered >= 400:
            self.wfile = _Refusal(self.wfile, self._answered)

    def log_request(self, code: Any = "-", size: Any = "-") -> None:
        self.server.on_request(f"{self.client_address[0]} {self.requestline} {int(code)}")

    def log_message(self, format: str, *args: Any) -> None:
        self.server.on_request(f"{self.client_address[0]} {format % args}")


class _Refusal:
    """Writes reasons where OpenAI's clients look for them; mlx_lm's are a bare text."""

    def __init__(self, file: Any, status: int) -> None:
        self._file, self._status = file, status

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, body: bytes) -> None:
        text = body.decode()
        message = json.loads(text)["error"] if text.startswith("{") else text
        kind = "invalid_request_error" if self._status < 500 else "server_error"
        error = {"message": " ".join(message.split()), "type": kind, "code": self._status}
        self._file.write(json.dumps({"error": error}).encode())


class _Attended:
    """The generator for one request: ends the answer when its client has gone, streamed or not, or the server stops."""

    def __init__(self, generator: StreamedGenerator, connection: socket.socket) -> None:
        self._generator, self._connection = generator, connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)

    def generate(self, request: Any, args: Any, progress_callback: Callable[[int, int], None]) -> Any:
        def progress(done: int, total: int) -> None:
            self._check()
            progress_callback(done, total)

        context, responses = self._generator.generate(request, args, progress_callback=progress)
        return context, self._attended(responses)

    def _attended(self, responses: Iterator[Any]) -> Iterator[Any]:
        for response in responses:
            self._check()
            yield response

    def _check(self) -> None:
        if self._generator.stopping:
            raise ConnectionAbortedError("the server stops")
        readable, _, _ = select.select([self._connection], [], [], 0)
        if readable and not self._connection.recv(1, socket.MSG_PEEK):
            raise ConnectionAbortedError("the client has gone")


def bind(host: str, port: int) -> Server:
    """A server that has its address and does not listen yet.  Raises RequestInvalid."""
    if not 0 <= port <= 65535:
        raise RequestInvalid(f"--port must be from 0 (a free one) to 65535, got {port}")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        server = Server(family, address)
    except (OSError, UnicodeError) as err:
        raise _refused(err, host, port) from err
    return server


def _refused(err: OSError | UnicodeError, host: str, port: int) -> RequestInvalid:
    number = err.errno if isinstance(err, OSError) and not isinstance(err, socket.gaierror) else None
    if number == errno.EADDRINUSE:
        return RequestInvalid(f"--port {port} is in use at {host}; take another, or 0 for a free one")
    if number in (errno.EACCES, errno.EPERM):
        return RequestInvalid(f"--port {port} may not be used by this user; take one from 1024 up, or 0 for a free one")
    reason = err.strerror if isinstance(err, OSError) else "no host's name"
    return RequestInvalid(f"--host {host}: {reason}; 127.0.0.1 is this machine alone, 0.0.0.0 all of its networks")
