"""Where ranks meet: those of `python -m shims` are on this machine, whatever host the script names.

They meet at a port of their run: many scripts name the same one, and two of them may run at a time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from shims import activate
from shims.patches import calls
from shims.patches.cuda import refusal

LOOPBACK = "127.0.0.1"

# The first port that the script names, for which its run has another. All ranks name the same first.
_named: list[str] = []


@contextlib.contextmanager
def here(kwargs: dict[str, Any], devices: int) -> Iterator[dict[str, Any]]:
    """The keywords of `init_process_group`, with the loopback for a host where all ranks are here.

    Scripts name hosts of the cluster that they were written for, which nothing here may contact. All
    ranks are here if `python -m shims` started the program, or they are simulated replicas, and it
    has as many ranks as devices; a world that is larger spans machines, and its host is left alone.

    Args:
        kwargs: what the program gave.
        devices: how many devices it was started with.
    """
    url = kwargs.get("init_method")
    if kwargs.get("store") is not None or not _all_here(kwargs, url, devices):
        yield kwargs
        return
    if url is None or url.startswith("env://"):
        with _variable("MASTER_ADDR", lambda host: LOOPBACK), _variable("MASTER_PORT", _port):
            yield kwargs
        return
    parts = urlsplit(url)
    if parts.scheme == "tcp" and parts.port is not None:
        place = f"{LOOPBACK}:{_port(str(parts.port))}"
        if place != parts.netloc:
            _log(parts.netloc, place)
            url = parts._replace(netloc=place).geturl()
    yield {**kwargs, "init_method": url}


def _port(named: str) -> str:
    """The port of this run in the place of the one that the script names."""
    own = os.environ.get(activate.PORT)
    if own is None:
        return named
    if not _named:
        _named.append(named)
    return own if named == _named[0] else named


def require_same(asked: int | None, running: int) -> None:
    """Refuse a world of another size than that of the replicas that are running, on XLA.

    Raises:
        DeviceNotAnsweredError: they differ.
    """
    if asked is not None and asked >= 0 and asked != running:
        raise refusal(
            f"init_process_group(world_size={asked}) in {running} replicas",
            f"run it with --ranks {asked}",
            "init-process-group",
        )


def _all_here(kwargs: Mapping[str, Any], url: str | None, devices: int) -> bool:
    if activate.ONE_MACHINE not in os.environ:
        return False
    given = kwargs.get("world_size", -1)
    if given is None or given < 0:
        asked = parse_qs(urlsplit(url).query).get("world_size") if url else None
        given = asked[0] if asked else os.environ.get("WORLD_SIZE", -1)
    return str(given) == str(devices)


@contextlib.contextmanager
def _variable(name: str, answer: Callable[[str], str]) -> Iterator[None]:
    given = os.environ.get(name)
    if given is None or answer(given) == given:
        yield
        return
    _log(given, answer(given))
    os.environ[name] = answer(given)
    try:
        yield
    finally:
        os.environ[name] = given


def _log(given: str, place: str) -> None:
    if calls.enabled():
        calls.saw(f"rendezvous at {given}", f"at {place}: all ranks are on this machine")
