"""Where ranks meet: those of `python -m shims` are on this machine, whatever host the script names."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from shims import activate
from shims.patches import calls
from shims.patches.cuda import refusal

LOOPBACK = "127.0.0.1"


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
        with _variable("MASTER_ADDR"):
            yield kwargs
        return
    parts = urlsplit(url)
    if parts.scheme == "tcp" and parts.port is not None and parts.hostname != LOOPBACK:
        _log(parts.hostname)
        url = parts._replace(netloc=f"{LOOPBACK}:{parts.port}").geturl()
    yield {**kwargs, "init_method": url}


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
def _variable(name: str) -> Iterator[None]:
    host = os.environ.get(name)
    if host is None or host == LOOPBACK:
        yield
        return
    _log(host)
    os.environ[name] = LOOPBACK
    try:
        yield
    finally:
        os.environ[name] = host


def _log(host: str | None) -> None:
    if calls.enabled():
        calls.saw(f"rendezvous at {host}", f"at {LOOPBACK}: all ranks are on this machine")
