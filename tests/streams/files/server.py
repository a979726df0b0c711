"""A web server on this machine that misbehaves as it is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Site:
    """What the server has, how it treats the next requests, and which ones came."""

    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    faults: list[str] = field(
        default_factory=list
    )  # one per request: cut N, stall N, status N, unsized, hold; then none
    asked: list[tuple[str, str | None]] = field(default_factory=list)  # path and Range
    sent: int = 0
    address: str = ""
    closing: threading.Event = field(default_factory=threading.Event)
    holding: threading.Event = field(default_factory=threading.Event)  # a request is held
    release: threading.Event = field(default_factory=threading.Event)  # and may go on

    def url(self, name: str) -> str:
        return f"{self.address}/{name}"


@contextmanager
def serving(site: Site) -> Iterator[Site]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self, site)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        site.address = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield site
        finally:
            site.closing.set()
            server.shutdown()
            thread.join()


def answer(request: BaseHTTPRequestHandler, site: Site) -> None:
    wanted = request.headers.get("Range")
    site.asked.append((request.path[1:], wanted))
    fault, _, number = (site.faults.pop(0) if site.faults else "none 0").partition(" ")
    content = site.files.get(request.path[1:])
    if fault == "status" or content is None:
        request.send_response(int(number) if fault == "status" else 404)
        request.send_header("Content-Length", "0")
        request.end_headers()
        return
    start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and site.ranges else 0
    request.send_response(206 if start else 200)
    if start:
        request.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
    if fault != "unsized":
        request.send_header("Content-Length", str(len(content) - start))
    request.end_headers()
    if fault == "hold":
        site.holding.set()
        site.release.wait(60)
    body = content[start : start + int(number)] if fault in ("cut", "stall") else content[start:]
    site.sent += len(body)  # before: whoever reads it may have all of it while this thread has not gone on
    request.wfile.write(body)
    if fault == "stall":
        site.closing.wait(10)
