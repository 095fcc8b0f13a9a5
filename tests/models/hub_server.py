"""A model hub on this machine, as much of it as a download needs."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

__all__ = ["COMMIT", "serve_hub"]

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def serve_hub(repo: str, files: Mapping[str, bytes]) -> Iterator[str]:
    """Serves one repository and gives the address; every other repository is unknown."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def _answer(self, with_body: bool) -> None:
            place = self.path.partition("?")[0].strip("/")
            headers: dict[str, str] = {}
            if place.startswith(f"api/models/{repo}/tree/"):
                tree = [{"type": "file", "path": p, "size": len(b), "oid": _oid(b)} for p, b in files.items()]
                body = json.dumps(tree).encode()
            elif place in (f"api/models/{repo}", f"api/models/{repo}/revision/main"):
                siblings = [{"rfilename": path} for path in files]
                body = json.dumps({"id": repo, "sha": COMMIT, "siblings": siblings}).encode()
            elif (name := place.rpartition("/")[2]) in files and place.startswith(f"{repo}/resolve/"):
                body = files[name]
                headers = {"ETag": f'"{_oid(body)}"', "X-Repo-Commit": COMMIT}
            else:
                self.send_response(404)
                self.send_header("X-Error-Code", "RepoNotFound")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(200)
            for key, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(key, value)
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _oid(body: bytes) -> str:
    return hashlib.sha1(body).hexdigest()
