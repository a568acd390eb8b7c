"""Ranks as processes, started by a launcher or here."""

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
    """Whether torchrun, or a launcher with the same variables, has started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def requested_ranks(ranks: int | None) -> int | None:
    """Return the number of ranks requested by the program, else by the environment, else None.

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
        raise LaunchError(f"{ranks} ranks requested", "request at least 1")
    return ranks


def require_same(ranks: int | None, running: int) -> None:
    """Refuse a program whose number of ranks differs from the number running.

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
    variables: Mapping[str, int] | None = None,
) -> None:
    """Call `fn` as one rank and destroy its process group afterwards.

    Args:
        fn: the function that the rank runs.
        rank: the global rank.
        args: the arguments of `fn` after the rank.
        variables: environment variables for the rank, see `single_rank_variables`; None if they
            are already set.
    """
    gloo_threads.let_go_at_exit()
    gloo_output.keep_off_stdout()
    with environment({name: str(value) for name, value in (variables or {}).items()}):
        fn(rank, *args)
        # Not after an exception: NCCL would wait here for ranks that still compute.
        if dist.is_initialized():
            dist.destroy_process_group()


def single_rank_variables() -> dict[str, int]:
    """Return the variables that torchrun would set for the only rank."""
    return {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1}


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables and restore the old ones afterwards."""
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
    # The store is served here, as in torchrun, on a port from the system: no free port is used
    # twice.
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
        # A rank that lost its peer in a collective may end before the peer that raised is noticed.
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
        # Ranks with one thread per core each would slow each other down.
        count = int(variables["LOCAL_WORLD_SIZE"])
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // count))
    run(fn, rank, args)


class WorkWithFinish:
    """Unfinished collective with a function to call when it is done.

    Args:
        work: the handle returned by torch.distributed.
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
