"""Byte ranges over HTTP, by the client of huggingface_hub, which knows of proxies and certificates."""

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


def session(place: object) -> Any:
    """The client, one for all threads.

    Raises:
        MissingDependencyError: huggingface_hub is not installed.
    """
    try:
        from huggingface_hub.utils import get_session
    except ImportError:
        raise missing_error("huggingface_hub", needed_by=str(place)) from None
    return get_session()


def asked(
    place: object,
    url: str,
    headers: Mapping[str, str],
    start: int,
    end: int,
    into: memoryview | None = None,
) -> Any:
    """The answer to a request for these bytes, its status one that does not pass.

    Args:
        place: what is asked for, for messages.
        url: of the file.
        headers: to be sent.
        start: the first byte.
        end: the one after the last.
        into: where the bytes of a range go as they come, so that they are in memory once; None: they are
            the content of the answer.

    Raises:
        TemporaryError: cut off, 429, 5xx, or not as many bytes as were asked for.
    """
    client = session(place)
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
        # Of the client's own kinds there are many; their texts hold URLs, which hold secrets.
        kind = type(error).__name__
        if kind == "OfflineModeIsEnabled":
            raise RemoteError(
                f"{place} is not downloaded: HF_HUB_OFFLINE is set",
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
    """As many bytes came as were asked for.

    Raises:
        TemporaryError: they did not.
    """
    if count != len(into):
        raise TemporaryError(f"{count} bytes came where {len(into)} were asked for")


def total_of(answer: Any) -> int | None:
    """How many bytes the file has of which the answer is a range; None: it is no range."""
    matched = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    return int(matched[3]) if matched and answer.status_code == 206 else None


def starts_at(answer: Any, start: int) -> bool:
    """Whether the range of the answer begins where it was asked to."""
    matched = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    return matched is not None and int(matched[1]) == start


def _errors_of(client: Any) -> type[BaseException]:
    """The base of the client's errors, whatever its package is called."""
    package = import_module(type(client).__module__.partition(".")[0])
    kind: type[BaseException] = getattr(package, "HTTPError", OSError)
    return kind


def _pause(headers: Any) -> float | None:
    text = headers.get("Retry-After", "")
    return min(float(text), _LONGEST_PAUSE) if text.isdecimal() else None
