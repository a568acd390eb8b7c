"""What meetings use of a TCPStore, served by Python's own XML-RPC: for an environment without torch."""

from __future__ import annotations

import socket
import threading
from http.client import HTTPConnection
from socketserver import ThreadingMixIn
from typing import Any
from xmlrpc.client import ServerProxy, Transport
from xmlrpc.server import SimpleXMLRPCRequestHandler, SimpleXMLRPCServer

_ANSWER_SECONDS = 30.0


class _Texts:
    """Texts by key, with the methods of a TCPStore."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._lock = threading.Lock()

    def check(self, keys: list[str]) -> bool:
        return self._texts.keys() >= set(keys)

    def get(self, key: str) -> bytes:
        return self._texts[key].encode()

    def set(self, key: str, text: str) -> bool:
        self._texts[key] = text
        return True  # XML-RPC has no None

    def compare_set(self, key: str, expected: str, text: str) -> bytes:
        with self._lock:
            if self._texts.get(key, "") == expected:
                self._texts[key] = text
            return self._texts[key].encode()


class ServedTexts(_Texts):
    """The texts in process 0, served as long as it holds this object.

    Args:
        listening: the socket at which they are served.
    """

    def __init__(self, listening: socket.socket) -> None:
        super().__init__()
        served = _Texts()  # the server must not hold this object
        self._texts, self._lock = served._texts, served._lock
        self._server = _Server(listening.getsockname(), _Handler, False, bind_and_activate=False)
        self._server.socket.close()
        self._server.socket = listening
        self._server.register_instance(served)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def __del__(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def reached_texts(host: str, port: int) -> ServerProxy:
    """Return what calls the same methods in another process."""
    address = f"[{host}]" if ":" in host else host
    return ServerProxy(f"http://{address}:{port}", transport=_Transport(use_builtin_types=True))


class _Handler(SimpleXMLRPCRequestHandler):
    timeout = _ANSWER_SECONDS

    def log_message(self, format: str, *values: Any) -> None:  # noqa: A002 (as it is called there)
        """Print nothing of what looks for open ports."""


class _Server(ThreadingMixIn, SimpleXMLRPCServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing of connections that break."""


class _Transport(Transport):
    def make_connection(self, host: Any) -> HTTPConnection:
        connection = super().make_connection(host)
        connection.timeout = _ANSWER_SECONDS
        return connection
