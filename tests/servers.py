"""Servers of ours: a Hugging Face hub, files by byte ranges, a bucket, and what disturbs their answers."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.waiting import LIMIT, until

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass(frozen=True)
class Content:
    """A file whose bytes are made when they are asked for.

    Attributes:
        size: in bytes.
        part: gives the bytes from a start to an end.
        version: of it.
    """

    size: int
    part: Callable[[int, int], bytes]
    version: str


def content_of(data: bytes) -> Content:
    return Content(len(data), lambda start, end: data[start:end], hashlib.sha256(data).hexdigest())


@dataclass
class Faults:
    """What goes wrong with answers, drawn by a seed.

    Attributes:
        seed: of the draws.
        rate: how many of all answers are disturbed.
        kinds: of "status" (429 or 503), "cut", "short", "repeated", "delay".
        most: no more than so many at all, so that each run ends.
    """

    seed: int
    rate: float = 0.2
    kinds: tuple[str, ...] = ("status", "cut", "short", "repeated", "delay")
    most: int = 1_000_000
    done: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.lock = threading.Lock()

    def draw(self) -> str:
        with self.lock:
            if len(self.done) >= self.most or self.random.random() >= self.rate:
                return ""
            self.done.append(self.random.choice(self.kinds))
            return self.done[-1]


class Handler(BaseHTTPRequestHandler):
    """Answers by `server.answer`, disturbed by `server.faults`."""

    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_: Any) -> None:
        pass

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):
            super().handle()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self._answer
        raise AttributeError(name)

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else b""
        with self.server.lock:
            self.server.requests.append((self.command, self.path, self.headers.get("Range", "")))
            self.server.running += 1
            self.server.most_running = max(self.server.most_running, self.server.running)
        begun = time.monotonic()
        try:
            if self.server.latency:
                time.sleep(self.server.latency)  # slow: a server far away
            status, headers, data = self.server.answer(self, body)
            self._send(status, dict(headers), data)
        finally:
            with self.server.lock:
                self.server.running -= 1
                self.server.spans.append((begun, time.monotonic()))

    def _send(self, status: int, headers: dict[str, str], data: bytes) -> None:
        fault = self.server.faults.draw() if self.server.faults else ""
        if fault == "status":
            status = self.server.faults.random.choice((429, 503))  # type: ignore[union-attr]
            headers, data = {"Retry-After": "0"}, b""
        elif fault == "delay":
            time.sleep(0.05)  # slow: the fault that was drawn
        elif fault == "short":
            data = data[: len(data) // 2]
        elif fault == "repeated" and self.command == "GET":
            data = data + data
        if self.command == "HEAD":
            headers.setdefault("Content-Length", str(len(data)))
            data = b""
        else:
            headers["Content-Length"] = str(len(data))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if fault == "cut" and data:
            self.wfile.write(data[: self.server.faults.random.randrange(len(data))])  # type: ignore[union-attr]
            self.wfile.flush()
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        self.wfile.write(data)


Answer = tuple[int, Mapping[str, str], bytes]


class Server(ThreadingHTTPServer):
    """A server of this machine, with a record of what it was asked.

    Attributes:
        requests: method, path and range of each, in their order.
        spans: when each answer was begun, and when it was sent.
        most_running: how many were being answered at a time, at most.
        latency: seconds before each answer.
        faults: what disturbs the answers.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.requests: list[tuple[str, str, str]] = []
        self.spans: list[tuple[float, float]] = []
        self.running = self.most_running = 0
        self.latency = 0.0
        self.faults: Faults | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, request: Handler, body: bytes) -> Answer:
        raise NotImplementedError

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass

    def depth(self) -> int:
        """How many requests, at most, were each sent when the one before was answered."""
        chain, end = 0, float("-inf")
        for begun, sent in sorted(self.spans, key=lambda span: span[1]):
            if begun >= end:
                chain, end = chain + 1, sent
        return chain

    def bytes_asked(self, path: str) -> list[tuple[int, int]]:
        """The ranges of a path that were asked for, sorted."""
        found = []
        for method, asked, span in self.requests:
            if method == "GET" and unquote(urlsplit(asked).path) == path and span:
                start, _, end = span.removeprefix("bytes=").partition("-")
                found.append((int(start), int(end) + 1))
        return sorted(found)


@contextlib.contextmanager
def running(server: Server) -> Iterator[Server]:
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _ranged(request: Handler, content: Content, headers: Mapping[str, str]) -> Answer:
    matched = _RANGE.fullmatch(request.headers.get("Range", ""))
    common = {"ETag": f'"{content.version}"', "Accept-Ranges": "bytes", **headers}
    expected = request.headers.get("If-Match")
    if expected and expected != common["ETag"]:
        return 412, {}, b""
    if request.command == "HEAD":
        return 200, {**common, "Content-Length": str(content.size)}, b""
    if matched is None:
        return 200, common, content.part(0, content.size)
    start = int(matched[1])
    end = min(int(matched[2]) + 1 if matched[2] else content.size, content.size)
    if start >= end:
        return 416, {**common, "Content-Range": f"bytes */{content.size}"}, b""
    span = f"bytes {start}-{end - 1}/{content.size}"
    return 206, {**common, "Content-Range": span}, content.part(start, end)


class FileServer(Server):
    """Files by path. `ranges` False: it gives them whole only; `etags` False: without versions."""

    def __init__(self, files: Mapping[str, bytes | Content] | None = None) -> None:
        super().__init__()
        self.files: dict[str, Content] = {}
        self.ranges = True
        self.statuses: dict[str, int] = {}
        for path, data in (files or {}).items():
            self.put(path, data)

    def put(self, path: str, data: bytes | Content) -> None:
        self.files[path] = data if isinstance(data, Content) else content_of(data)

    def answer(self, request: Handler, body: bytes) -> Answer:
        path = unquote(urlsplit(request.path).path)
        if path in self.statuses:
            return self.statuses[path], {}, b""
        if path not in self.files:
            return 404, {}, b""
        if not self.ranges:
            return 200, {}, self.files[path].part(0, self.files[path].size)
        return _ranged(request, self.files[path], {})


@dataclass
class Repository:
    """A repository of the hub.

    Attributes:
        files: path → content, of the newest commit.
        revisions: branch or tag → commit.
        commits: commit → files.
        token: who may read it; "" for all.
        gated: whether its files are given to nobody.
    """

    revisions: dict[str, str]
    commits: dict[str, dict[str, Content]]
    token: str = ""
    gated: bool = False


class HubServer(Server):
    """A hub, as far as its client asks it to list and read repositories.

    Attributes:
        repositories: by name.
        tokens: those that it knows; None: each is somebody's.
        sizes: whether its listings have the sizes of files; those of some mirrors have none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sizes = True
        self.tokens: set[str] | None = None
        self.repositories: dict[str, Repository] = {}

    def commit(
        self, name: str, files: Mapping[str, bytes | Content], branch: str = "main", **more: Any
    ) -> str:
        """Put files into a repository; the commit that has them, and nothing else."""
        contents = {
            path: data if isinstance(data, Content) else content_of(data)
            for path, data in files.items()
        }
        told = json.dumps([[path, content.version] for path, content in contents.items()])
        commit = hashlib.sha1(told.encode()).hexdigest()
        repository = self.repositories.setdefault(name, Repository({}, {}, **more))
        repository.commits[commit] = contents
        repository.revisions[branch] = commit
        return commit

    def answer(self, request: Handler, body: bytes) -> Answer:
        path = unquote(urlsplit(request.path).path)
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?/?", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        name, revision = (api[1], api[3]) if api else (file[1], file[2]) if file else ("", "")
        repository = self.repositories.get(name)
        authorization = request.headers.get("Authorization", "")
        known = self.tokens is None or authorization.removeprefix("Bearer ") in self.tokens
        if authorization and not known:
            return 401, {"X-Error-Message": "Invalid credentials in Authorization header"}, b"{}"
        if repository is None or (
            repository.token and authorization != f"Bearer {repository.token}"
        ):
            return 401, {"X-Error-Code": "RepoNotFound"}, b"{}"
        commit = repository.revisions.get(revision or "main", revision)
        if commit not in repository.commits:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
        files = repository.commits[commit]
        if api:
            siblings = [
                {"rfilename": path}
                | ({"size": content.size, "blobId": content.version} if self.sizes else {})
                for path, content in files.items()
            ]
            listed = [
                {"type": "file", "path": path, "size": content.size, "oid": content.version}
                for path, content in files.items()
            ]
            told: Any = (
                listed
                if api[2] == "tree"
                else {"_id": name, "id": name, "modelId": name, "sha": commit, "siblings": siblings}
                | {"private": bool(repository.token), "downloads": 0, "tags": [], "likes": 0}
            )
            return 200, {"Content-Type": "application/json"}, json.dumps(told).encode()
        assert file
        if repository.gated:
            return 403, {"X-Error-Code": "GatedRepo"}, b"{}"
        if file[3] not in files:
            return 404, {"X-Error-Code": "EntryNotFound"}, b"{}"
        return _ranged(request, files[file[3]], {"X-Repo-Commit": commit})


class BucketProxy(Server):
    """Before an emulated bucket: it hears what is asked, honors generations, and may disturb.

    The emulator gives the newest content whatever generation is asked for; the real one says 404.

    Attributes:
        forbidden: the methods that are refused.
        lost: what is written to an object of this name never arrives, and has no answer.
        waiting: how many wait for one.
    """

    def __init__(self, emulator: str) -> None:
        super().__init__()
        self.emulator = urlsplit(emulator)
        self.forbidden: set[str] = set()
        self.lost = ""
        self.waiting = 0
        self._given_up = threading.Event()

    def shutdown(self) -> None:
        self._given_up.set()
        super().shutdown()

    def answer(self, request: Handler, body: bytes) -> Answer:
        if request.command in self.forbidden:
            return 403, {}, b'{"error": {"code": 403, "message": "no"}}'
        if self.lost and request.command in ("POST", "PUT") and self.lost.encode() in body:
            self.waiting += 1
            self._given_up.wait()
            return 503, {}, b""
        query = parse_qs(urlsplit(request.path).query)
        if request.command == "GET" and "generation" in query and "media" in query.get("alt", []):
            described = request.path.partition("?")[0].removeprefix("/download")
            status, _, told = self._forward("GET", described, {}, b"")
            if status == 200 and json.loads(told).get("generation") != query["generation"][0]:
                return 404, {}, b""
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.lower() not in ("host", "connection", "content-length", "accept-encoding")
        }
        return self._forward(request.command, request.path, headers, body)

    def _forward(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.emulator.netloc, timeout=LIMIT)
        try:
            connection.request(method, path, body or None, dict(headers))
            answer = connection.getresponse()
            data = answer.read()
            kept = {
                name: value.replace(self.emulator.netloc, self.url.removeprefix("http://"))
                for name, value in answer.getheaders()
                if name.lower() not in ("content-length", "connection", "transfer-encoding", "date")
                and name.lower() != "server"
            }
            return answer.status, kept, data
        finally:
            connection.close()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


# It answers one request after another and lets five wait: what is sent to it beyond that is lost, and sent
# again a second later, then two, then four. A bucket does not do that.
_EMULATOR = """
import runpy, socketserver, sys
socketserver.TCPServer.request_queue_size = 256
sys.argv[0] = "gcp_storage_emulator"
runpy.run_module("gcp_storage_emulator", run_name="__main__", alter_sys=True)
"""


@contextlib.contextmanager
def bucket(folder: Path, name: str = "bkt") -> Iterator[str]:
    """The URL of an emulated Google Cloud Storage with one bucket, a process of its own."""
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    log = folder.with_name(f"{folder.name}.log")
    with log.open("wb") as out:
        process = subprocess.Popen(
            [
                *(sys.executable, "-c", _EMULATOR, "-d", str(folder.resolve())),
                *("start", "--port", str(port), "--default-bucket", name),
            ],
            stdout=out,
            stderr=out,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
        )
    try:
        until(lambda: process.poll() is not None or _listens(port), "the bucket")
        assert process.poll() is None, log.read_text()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as one:
        one.settimeout(1)
        return one.connect_ex(("127.0.0.1", port)) == 0
