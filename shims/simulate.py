"""N torch_xla replicas on the CPU, for programs that launch them with `torch_xla.launch`.

Each replica is a process with one real XLA:CPU device; its collectives run over gloo. It compiles
and runs what torch_xla would give to a TPU, cut into several graphs at the collectives, which a
TPU has inside one graph.

    variables = shims.activate.environment("simulate", replicas=4)
    subprocess.run([sys.executable, "train.py"], env=os.environ | variables)

Refused, never computed wrongly: object collectives on the xla group, `xm.send` / `xm.recv`,
replica groups that leave a replica out, SPMD collectives, and starts by torchrun.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from torch_xla._internal import pjrt

from shims import activate
from shims.errors import NotSimulatedError


def install() -> None:
    """Let `torch_xla.launch` in this process start as many replicas as the environment says.

    Raises:
        NotSimulatedError: the process was started by torchrun.
        BackendError: the number of replicas is not set.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise NotSimulatedError(
            "simulated replicas cannot be started by torchrun",
            "start the script itself: torch_xla.launch in it starts the replicas",
        )
    pjrt.run_multiprocess = functools.partial(_run_multiprocess, activate.replicas())


def _run_multiprocess(size: int, *args: Any, **kwargs: Any) -> dict[int, Any]:
    # Imported when the replicas start: a replica whose script imports torch_xla late comes here while
    # `_launch` itself is being imported.
    from shims import _launch

    return _launch.run_multiprocess(size, *args, **kwargs)
