"""Start, rendezvous and identity of a program's ranks."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from shims.backends import current
from shims.backends.base import Backend


def backend() -> Backend:
    """Return the backend of this process: `.name` is "xla", "tpu", "cuda" or "cpu"; `.why` is the reason.

    Raises:
        BackendMissingError: `MIGRATE_BACKEND` forces one that cannot run here.
    """
    return current()


def launch(fn: Callable[..., object], args: tuple[Any, ...] = (), ranks: int | None = None) -> None:
    """Call `fn(rank, *args)` in every rank, and wait for all of them.

    | backend | ranks |
    |---|---|
    | XLA | torch_xla.launch: one for each device; on the CPU `ranks` simulated replicas |
    | CUDA | one for each GPU, or `ranks` |
    | CPU | `ranks`, else `MIGRATE_RANKS`, else 1 |
    | under torchrun | those that torchrun started |

    Every rank has RANK, LOCAL_RANK, WORLD_SIZE and LOCAL_WORLD_SIZE in its environment, as under
    torchrun. A single rank runs in this process, so that a debugger works (on XLA only if torch_xla
    does the same).

    Args:
        fn: a function that spawned processes can import from a module, not a lambda. Put the call
            of `shims.launch` under `if __name__ == "__main__":`.
        args: the arguments of `fn` after the global rank; picklable.
        ranks: the number of ranks. Best omitted: whoever starts the program decides.

    Raises:
        LaunchError: there are more ranks than devices, or the accelerator was used before.
        BackendMissingError: `MIGRATE_BACKEND` forces a backend that cannot run here.
    """
    current().launch(fn, args, ranks)


def launch_script(path: str | os.PathLike[str]) -> None:
    """Run a script as `__main__` on every rank, and wait for all of them: `shims.launch` for a file.

    For scripts that work at module level. Put it before all other work, so that only the process
    that starts the ranks reaches it:

        if __name__ == "__main__" and "RANK" not in os.environ:
            shims.launch_script(__file__)
            sys.exit()

    Args:
        path: the script. The ranks have the arguments of this process in `sys.argv`.

    Raises:
        LaunchError, BackendMissingError: as `launch`.
    """
    main = sys.modules["__main__"]
    hidden = {
        name: main.__dict__.pop(name) for name in ("__file__", "__spec__") if hasattr(main, name)
    }
    main.__spec__ = None  # otherwise a new process reads the script that it will run
    try:
        current().launch(_run_script, (os.path.abspath(path),), None)
    finally:
        main.__dict__.update(hidden)


def _run_script(rank: int, path: str) -> None:
    runpy.run_path(path, run_name="__main__")


def init_distributed(timeout: timedelta | None = None) -> None:
    """Join the default process group: gloo, NCCL or XLA; a group of one if nothing was launched.

    Args:
        timeout: the maximum wait of a collective; None for torch's default. XLA ignores it.
    """
    current().init_distributed(timeout)


def rank() -> int:
    """Return the global rank, from 0."""
    return current().rank()


def local_rank() -> int:
    """Return the rank within this machine, from 0."""
    return current().local_rank()


def world_size() -> int:
    """Return the number of ranks on all machines."""
    return current().world_size()


def local_world_size() -> int:
    """Return the number of ranks on this machine."""
    return current().local_world_size()


def is_main() -> bool:
    """Whether this is rank 0. Never guard a collective or `shims.save` with it: all ranks must call them."""
    return current().rank() == 0
