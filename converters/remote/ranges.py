"""Byte ranges over HTTP, through the client of huggingface_hub, which supports proxies and certificates."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from converters.errors import RemoteError
from converters.installing import missing_error
from converters.remote.retries import TEMPORARY_STATUS, TemporaryError

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_SECONDS = 60.0
_LONGEST_PAUSE = 60.0


def session(source: object) -> Any:
    """Return the HTTP client; all threads share it.

    Raises:
        MissingDependencyError: huggingface_hub is not installed.
    """
    try:
        from huggingface_hub.utils import get_session
    except ImportError:
        raise missing_error("huggingface_hub", needed_by=str(source)) from None
    return get_session()


def request_range(
    source: object,
    url: str,
    headers: Mapping[str, str],
    start: int,
    end: int,
    into: memoryview | None = None,
) -> Any:
    """Return the answer to a request for these bytes, with a status that is not temporary.

    Args:
        source: the requested source, for messages.
        url: the URL of the file.
        headers: the headers to send.
        start: the first byte.
        end: the end of the range.
        into: the memory for the bytes as they arrive, so that they are in memory once; None to
            leave them in the answer.

    Raises:
        TemporaryError: the answer is truncated, 429, 5xx, or has another number of bytes.
    """
    client = session(source)
    asking = {**headers, "Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
    try:
        with client.stream(
            "GET", url, headers=asking, timeout=_SECONDS, follow_redirects=True
        ) as answer:
            if into is None or answer.status_code != 206:
                answer.read()
            else:
                _receive(answer, into)
    except TemporaryError:
        raise
    except Exception as error:
        # The client has many errors; their texts contain URLs, which contain secrets.
        kind = type(error).__name__
        if kind == "OfflineModeIsEnabled":
            raise RemoteError(
                f"{source} is not downloaded: HF_HUB_OFFLINE is set",
                "unset it, or name a local file",
            ) from None
        if isinstance(error, OSError | _errors_of(client)):
            raise TemporaryError(kind) from None
        raise
    if answer.status_code in TEMPORARY_STATUS:
        raise TemporaryError(f"status {answer.status_code}", _pause(answer.headers))
    return answer


def _receive(answer: Any, into: memoryview) -> None:
    done = 0
    for data in answer.iter_raw():
        if done + len(data) <= len(into):
            into[done : done + len(data)] = data
        done += len(data)
    require_length(done, into)


def require_length(count: int, into: memoryview) -> None:
    """Check that as many bytes arrived as requested.

    Raises:
        TemporaryError: the number differs.
    """
    if count != len(into):
        raise TemporaryError(f"{count} bytes came where {len(into)} were requested")


def total_of(answer: Any) -> int | None:
    """Return the total size of the file from a range answer; None if the answer is not a range."""
    matched = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    return int(matched[3]) if matched and answer.status_code == 206 else None


def starts_at(answer: Any, start: int) -> bool:
    """Whether the range of the answer starts at the requested byte."""
    matched = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    return matched is not None and int(matched[1]) == start


def _errors_of(client: Any) -> type[BaseException]:
    """Return the base class of the client's errors, whatever its package is called."""
    package = import_module(type(client).__module__.partition(".")[0])
    kind: type[BaseException] = getattr(package, "HTTPError", OSError)
    return kind


def _pause(headers: Any) -> float | None:
    text = headers.get("Retry-After", "")
    return min(float(text), _LONGEST_PAUSE) if text.isdecimal() else None
