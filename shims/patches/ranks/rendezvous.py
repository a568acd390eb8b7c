"""Rendezvous of the ranks of `python -m shims`: on this machine, whatever host the script names.

The ranks meet at a port of their run: many scripts name the same port, and two of them may run at
once.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from torch.distributed.rendezvous import _rendezvous_handlers

from shims import activate
from shims.patches import calls
from shims.patches.cuda import refusal

LOOPBACK = "127.0.0.1"

# First port named by the script, which the run replaces. All ranks name the same port first.
_named: list[str] = []


@contextlib.contextmanager
def here(kwargs: dict[str, Any], devices: int) -> Iterator[dict[str, Any]]:
    """Yield the keywords of `init_process_group`, with the loopback as host if all ranks are local.

    Scripts name hosts of the cluster that they were written for, which nothing here may contact.
    All ranks are local if `python -m shims` started the program, or if they are simulated replicas,
    and the world size is the number of devices. A larger world spans machines, and its host is
    unchanged.

    Args:
        kwargs: the program's keywords.
        devices: the number of devices that the program was started with.
    """
    url = kwargs.get("init_method")
    if kwargs.get("store") is not None or not _all_here(kwargs, url, devices):
        yield kwargs
        return
    if url is None or urlsplit(url).scheme == "env":  # torch makes `env:?rank=0` of `env://`
        with _variable("MASTER_ADDR", lambda host: LOOPBACK), _variable("MASTER_PORT", _port):
            yield kwargs
        return
    parts = urlsplit(url)
    if parts.scheme == "tcp" and parts.port is not None:
        loopback = f"{LOOPBACK}:{_port(str(parts.port))}"
        if loopback != parts.netloc:
            _log(parts.netloc, loopback)
            url = parts._replace(netloc=loopback).geturl()
    yield {**kwargs, "init_method": url}


def install(devices: int) -> None:
    """Answer for every group of this process, whatever function makes it.

    Args:
        devices: the number of devices that the program was started with.
    """
    for scheme in ("env", "tcp"):
        _rendezvous_handlers[scheme] = _answered(_rendezvous_handlers[scheme], devices)


def _answered(handler: Callable[..., Any], devices: int) -> Callable[..., Iterator[Any]]:
    @functools.wraps(handler)
    def meet(url: str, *args: Any, **kwargs: Any) -> Iterator[Any]:
        # The address is read when the handler begins; what comes after it meets nowhere again.
        with here({"init_method": url}, devices) as reachable:
            joined = next(handler(reachable["init_method"], *args, **kwargs))
        yield joined

    return meet


def _port(named: str) -> str:
    """Return the run's port that replaces the script's port."""
    port = os.environ.get(activate.PORT)
    if port is None:
        return named
    if not _named:
        _named.append(named)
    return port if named == _named[0] else named


def require_same(asked: int | None, running: int) -> None:
    """Refuse a world size that differs from the number of running replicas, on XLA.

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
    world_size = kwargs.get("world_size", -1)
    if world_size is None or world_size < 0:
        asked = parse_qs(urlsplit(url).query).get("world_size") if url else None
        world_size = asked[0] if asked else os.environ.get("WORLD_SIZE", -1)
    return str(world_size) == str(devices)


@contextlib.contextmanager
def _variable(name: str, answer: Callable[[str], str]) -> Iterator[None]:
    previous = os.environ.get(name)
    if previous is None or answer(previous) == previous:
        yield
        return
    _log(previous, answer(previous))
    os.environ[name] = answer(previous)
    try:
        yield
    finally:
        os.environ[name] = previous


def _log(address: str, loopback: str) -> None:
    if calls.enabled():
        calls.saw(f"rendezvous at {address}", f"at {loopback}: all ranks are on this machine")
