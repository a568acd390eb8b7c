"""Ranks as processes: those that a launcher has started, or that are started here."""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing

from shims import activate
from shims._shared import gloo_output, gloo_threads
from shims.api_errors import LaunchError

RANKS = "MIGRATE_RANKS"


def in_environment() -> bool:
    """Whether torchrun, or a launcher that sets the same variables, has started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def wanted(ranks: int | None) -> int | None:
    """The number of ranks asked for: by the program, else by the environment, else None.

    Raises:
        LaunchError: it is not a positive number.
    """
    for name in (RANKS, activate.REPLICAS):
        text = os.environ.get(name)
        if ranks is None and text is not None:
            if not text.isdecimal():
                raise LaunchError(f"{name}={text!r} is not a number of ranks", "at least 1")
            ranks = int(text)
    if ranks is not None and ranks < 1:
        raise LaunchError(f"{ranks} ranks asked for", "at least 1")
    return ranks


def require_same(ranks: int | None, running: int) -> None:
    """Refuse a program's number of ranks other than the one that is running.

    Raises:
        LaunchError: they differ.
    """
    if ranks is not None and ranks != running:
        raise LaunchError(
            f"shims.launch(ranks={ranks}) where {running} are running",
            "leave ranks= out: whoever starts the program decides",
        )


def run(
    fn: Callable[..., object],
    rank: int,
    args: tuple[Any, ...],
    place: Mapping[str, int] | None = None,
) -> None:
    """Call `fn` as one rank and leave no process group behind it.

    Args:
        fn: what the rank runs.
        rank: the global rank.
        args: what `fn` gets after it.
        place: what the rank finds in its environment while it runs, see `place_of_one`; None where that
            is there already.
    """
    gloo_threads.let_go_at_exit()
    gloo_output.keep_off_stdout()
    with environment({name: str(value) for name, value in (place or {}).items()}):
        fn(rank, *args)
        # Not after an exception: NCCL would wait here for ranks that still compute.
        if dist.is_initialized():
            dist.destroy_process_group()


def place_of_one() -> dict[str, int]:
    """What torchrun would set for the only rank."""
    return {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1}


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment, and put back what was there."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def spawn(fn: Callable[..., object], args: tuple[Any, ...], count: int) -> None:
    """Call `fn(rank, *args)` in `count` new processes of this machine, and wait for them.

    The first failure ends the others and is raised here, with the rank's traceback.
    """
    # Held here, as torchrun does, on a port that the system gives: no port is free twice.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    variables = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": str(True),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
    }
    context = torch.multiprocessing.spawn(_worker, (fn, args, variables), nprocs=count, join=False)
    try:
        while not context.join():
            pass
    except torch.multiprocessing.ProcessExitedException as ended:
        # A rank that lost its peer in a collective may end before the peer that raised is seen.
        for rank, file in enumerate(context.error_files):
            if os.access(file, os.R_OK):
                raise torch.multiprocessing.ProcessRaisedException(
                    f"rank {rank} failed:\n{pickle.loads(Path(file).read_bytes())}",
                    rank,
                    context.processes[rank].pid,
                ) from ended
        raise


def _worker(
    rank: int, fn: Callable[..., object], args: tuple[Any, ...], variables: dict[str, str]
) -> None:
    os.environ.update(variables, RANK=str(rank), LOCAL_RANK=str(rank))
    if "OMP_NUM_THREADS" not in os.environ:
        # Ranks with a thread for each core each would hinder one another.
        count = int(variables["LOCAL_WORLD_SIZE"])
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // count))
    run(fn, rank, args)


class Then:
    """An unfinished collective with something to do once it is done.

    Args:
        work: what torch.distributed returned.
        finish: called once, by the first `wait`.
    """

    def __init__(self, work: Any, finish: Callable[[], None]) -> None:
        self._work = work
        self._finish: Callable[[], None] | None = finish

    def wait(self, timeout: Any = None) -> bool:
        """Block until the result is in the tensors."""
        done = bool(self._work.wait() if timeout is None else self._work.wait(timeout))
        if self._finish is not None:
            self._finish()
            self._finish = None
        return done

    def is_completed(self) -> bool:
        """Whether the result is in the tensors."""
        return self._finish is None
