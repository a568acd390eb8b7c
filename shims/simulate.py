"""Simulation of N torch_xla replicas on the CPU, for programs that call `torch_xla.launch`.

Each replica is a process with one real XLA:CPU device; its collectives run over gloo. It compiles
and runs the graphs that torch_xla would give to a TPU, except that collectives cut them into
several graphs.

    variables = shims.activate.environment("simulate", replicas=4)
    subprocess.run([sys.executable, "train.py"], env=os.environ | variables)

Under torchrun each of its processes is a replica, as on a TPU.

The simulation refuses what a TPU refuses (`_simulated.refusals`): groups that omit a replica,
reductions of 64 bits other than sums, `xm.send`, object collectives. It also refuses what torch_xla
silently computes wrong there (`dist.reduce` in a sub-group). A program that would hang on a TPU
ends within seconds with an error that names the replicas, their lines and their steps. Causes are
different collectives, a replica that ended or waits elsewhere for good (`_simulated.watch`), and a
result that only some replicas read (`_simulated.reads`).

Sums of bfloat16 are added in float32, as on a TPU (`_simulated.half_sums`), and gradients of resized images
are computed on the device (`_simulated.resize`).

SPMD collectives and several machines are not simulated. docs/shims/simulation.md lists the
differences to a TPU.
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch_xla
from torch_xla._internal import pjrt

from shims import activate
from shims._simulated import autocast, half_sums, resize
from shims.errors import NotSimulatedError, ReplicaFailedError


def install() -> None:
    """Let `torch_xla.launch` in this process start the number of replicas given by the environment.

    A process started by torchrun joins the other replicas instead: `torch_xla.launch` starts none
    there.

    Raises:
        NotSimulatedError: torchrun runs on several machines, or has no store of its own.
        BackendError: the number of replicas is not set.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        # torchrun's own process has no rank, and trains nothing.
        if "RANK" in os.environ:
            _join_torchruns()
        return
    half_sums.install("XLA")
    resize.install()
    autocast.install()
    sys.excepthook = functools.partial(_show_failure, sys.excepthook)
    pjrt.run_multiprocess = functools.partial(_run_multiprocess, activate.replicas())


def _join_torchruns() -> None:
    from shims._simulated import replica

    local = os.environ["LOCAL_WORLD_SIZE"] == os.environ["WORLD_SIZE"]
    if not local or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        raise NotSimulatedError(
            "simulated replicas are all on one machine, and meet in torchrun's store",
            "start them with torchrun --standalone --nproc-per-node N",
        )
    os.environ[activate.ONE_MACHINE] = "1"
    replica.join(
        int(os.environ["RANK"]),
        int(os.environ["WORLD_SIZE"]),
        int(os.environ["MASTER_PORT"]),
        attempt=int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
    )


def _show_failure(
    otherwise: Callable[..., None], kind: type[BaseException], error: BaseException, trace: Any
) -> None:
    """Print the failure of a replica: its own traceback, and the lines of the script that started it."""
    if not isinstance(error, ReplicaFailedError):
        otherwise(kind, error, trace)
        return
    shown = traceback.TracebackException(kind, error, trace)
    while len(shown.stack) > 1 and _starts_replicas(shown.stack[-1].filename):
        shown.stack.pop()
    sys.stderr.write("".join(shown.format()))


def _starts_replicas(file: str) -> bool:
    """Whether a file is of torch_xla or of the simulation."""
    packages = (Path(package).parent for package in (torch_xla.__file__, __file__))
    return any(Path(file).is_relative_to(package) for package in packages)


def _run_multiprocess(size: int, *args: Any, **kwargs: Any) -> dict[int, Any]:
    # Imported when the replicas start: a replica whose script imports torch_xla late gets here
    # while `launch` itself is being imported.
    from shims._simulated import launch

    return launch.run_multiprocess(size, *args, **kwargs)
