"""A model hub with one model in it, as far as fetching files goes, that notes what of each file is fetched."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import TracebackType

REVISION = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """Serves the files of ``folder`` as the model ``name`` (``owner/model``) while it is open. ``fetched`` counts the bytes of
    each file that went out."""

    def __init__(self, name: str, folder: Path) -> None:
        self.fetched: Counter[str] = Counter()
        fetched = self.fetched

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                paths = sorted(folder.iterdir())
                if self.path.startswith(f"/api/models/{name}/tree/"):
                    files = [{"type": "file", "path": path.name, "size": path.stat().st_size, "oid": ""} for path in paths]
                    return self._answer(json.dumps(files).encode())
                if self.path.startswith(f"/api/models/{name}"):
                    siblings = [{"rfilename": path.name} for path in paths]
                    return self._answer(json.dumps({"id": name, "sha": REVISION, "siblings": siblings}).encode())
                match = re.match(rf"/{name}/resolve/[^/]+/([^?]+)", self.path)
                if match is None or not (folder / match[1]).is_file():
                    return self._answer(b"", 404, {"X-Error-Code": "EntryNotFound" if match else "RepoNotFound"})
                content = (folder / match[1]).read_bytes()
                about = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": REVISION}
                asked = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
                if self.command == "GET":
                    content = content[int(asked[1]) : int(asked[2]) + 1] if asked else content
                    fetched[match[1]] += len(content)
                return self._answer(content, 206 if asked else 200, about)

            def _answer(self, content: bytes, status: int = 200, about: dict[str, str] | None = None) -> None:
                self.send_response(status)
                for key, value in (about or {}).items():
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> FakeHub:
        Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
