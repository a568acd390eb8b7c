"""Identity of this process among several: from the user, or detected by jax.distributed."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

from converters.errors import HostsError

_PROCESS = re.compile(r"(\d{1,7})/(\d{1,7})")
_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:/\[\]]+)):(\d{1,5})")
_SAY_IT = (
    "give --process 3/16 --coordinator HOST:PORT, or --process 0/1 to convert on this host alone"
)
_ANSWER_SECONDS = 30  # of a cluster that is asked for this process's identity


@dataclass(frozen=True)
class Process:
    """Process of several that do one task together.

    Attributes:
        index: its number, from 0.
        count: the number of processes.
        host: the host of process 0; "" for a single process.
        port: the port of process 0.
        reported_by: the origin of the identity: "--process", or jax's name of the cluster.
    """

    index: int
    count: int
    host: str = ""
    port: int = 0
    reported_by: str = "--process"

    def __str__(self) -> str:
        return f"process {self.index} of {self.count}"


def parse_process(text: str, coordinator: str | None) -> Process:
    """Parse `--process 3/16 --coordinator HOST:PORT`.

    Raises:
        HostsError: the text is invalid.
    """
    matched = _PROCESS.fullmatch(text)
    if matched is None:
        raise HostsError(
            f'"{text}" is not a process',
            "write the number of this process and of all processes: --process 3/16",
        )
    index, count = int(matched[1]), int(matched[2])
    if index >= count:
        raise HostsError(
            f"there is no process {index} of {count}",
            "processes are counted from 0: the last of 16 is 15/16",
        )
    if count == 1:
        return Process(0, 1)
    if coordinator is None:
        raise HostsError(
            f"--process {text} needs the address of process 0",
            "add --coordinator HOST:PORT, the same on all hosts: a free port of the host of process 0",
        )
    return Process(index, count, *_address(coordinator))


def detected() -> Process | None:
    """Return the identity detected by jax.distributed (Cloud TPU, GKE, SLURM, Open MPI); None for one
    process.

    Raises:
        HostsError: a cluster was detected, but it does not report the identity.
    """
    try:
        from jax._src.clusters import ClusterEnv
    except ImportError:
        return None  # without jax nothing can be detected
    name = "the cluster"
    try:
        kinds = _clusters(ClusterEnv)
        there = (kind for kind in kinds if not kind.opt_in_only_method and kind.is_env_present())
        cluster = next(there, None)
        if cluster is None:
            return None
        name = cluster.name
        address, count, index, _ = ClusterEnv.auto_detect_unset_distributed_params(
            os.environ.get("JAX_COORDINATOR_ADDRESS"), None, None, [0], None, _ANSWER_SECONDS
        )
    except Exception as error:  # each cluster has its own errors
        raise HostsError(
            f"{name} does not tell which process this is ({type(error).__name__}: {error})", _SAY_IT
        ) from None
    if count is None or index is None or count == 1:
        return None
    host, port = _address(str(address))
    return Process(int(index), int(count), host, port, name)


def _clusters(kind: Any) -> tuple[Any, ...]:
    import jax  # noqa: F401 (its import makes the kinds known)

    return tuple(getattr(kind, "_cluster_types", ()))


def _address(text: str) -> tuple[str, int]:
    matched = _ADDRESS.fullmatch(text)
    port = int(matched[3]) if matched else 0
    if matched is None or not 0 < port < 1 << 16:
        raise HostsError(f'"{text}" is not HOST:PORT', "write --coordinator 10.0.0.2:8476")
    return matched[1] or matched[2], port
