"""Assignment of GPUs to ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping

from shims.api_errors import LaunchError

# If set to 1, several ranks may share a GPU. NCCL refuses that, so they communicate over gloo.
SHARE = "MIGRATE_SHARE_GPUS"
_REMEDY = (
    f"one rank for each GPU, {SHARE}=1 to let ranks share them over gloo (slow, for tests), or the backend "
    "cpu, which supports any number of ranks"
)


def shared(environment: Mapping[str, str] | None = None) -> bool:
    """Whether ranks may share a GPU.

    Args:
        environment: None for the environment of this process.
    """
    return (os.environ if environment is None else environment).get(SHARE) == "1"


def require(ranks: int, gpus: int, share: bool = False) -> None:
    """Refuse more ranks on this machine than GPUs.

    Args:
        ranks: the number of ranks on this machine.
        gpus: the number of GPUs visible to torch.
        share: whether ranks may share a GPU.

    Raises:
        LaunchError: there are too few GPUs.
    """
    if ranks > gpus and not (share and gpus):
        raise LaunchError(f"{ranks} ranks requested, but {_count(gpus)} here", _REMEDY)


def of_rank(local_rank: int, gpus: int, share: bool = False) -> int:
    """Return the number of a rank's GPU.

    Args:
        local_rank: the rank within this machine.
        gpus: the number of GPUs visible to torch.
        share: whether ranks may share a GPU.

    Raises:
        LaunchError: there is no GPU for this rank.
    """
    if local_rank < gpus:
        return local_rank
    if share and gpus:
        return local_rank % gpus
    raise LaunchError(f"there is no GPU for local rank {local_rank}: {_count(gpus)} here", _REMEDY)


def _count(gpus: int) -> str:
    return "1 GPU is" if gpus == 1 else f"{gpus or 'no'} GPUs are"
