"""Answers for CUDA calls on machines without CUDA. Each concern is one file; every patch can be listed
and undone.

    import shims

`docs/shims/answers.md` lists the answer to each CUDA name. Nothing here imports torch until
`install` is called.

`docs/shims/answers.md` says what each name of CUDA answers. Nothing here imports torch until
`install` is called.
"""

from __future__ import annotations

import sys
import threading
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from shims.patches.registry import Patch

__all__ = ["install", "install_cpu", "installed", "uninstall"]

_LOCK = threading.RLock()
_STATE: dict[str, Any] = {"registry": None, "threads": None}


def install(target: Literal["cpu", "xla", "tpu"], devices: int) -> None:
    """Answer for CUDA devices in this process and its threads. A second call changes nothing.

    Args:
        target: the device of their tensors.
        devices: the number of devices reported to the program.
    """
    from shims.patches import assemble

    with _LOCK:
        if _STATE["registry"] is None:
            _STATE["registry"], _STATE["threads"] = assemble.install(target, devices)


def install_cpu() -> None:
    """Call `install("cpu")` for the number of devices in the environment.

    Raises:
        BackendError: the number of replicas is not set.
    """
    from shims import activate

    install("cpu", activate.replicas())


def uninstall() -> None:
    """Restore every replaced object of torch. Without an install, nothing changes."""
    with _LOCK:
        if _STATE["registry"] is not None:
            _STATE["threads"].leave()
            _STATE["registry"].uninstall()
            _STATE["registry"] = _STATE["threads"] = None


def installed() -> tuple[Patch, ...]:
    """Return every patched name of torch, with its answer."""
    with _LOCK:
        return () if _STATE["registry"] is None else _STATE["registry"].installed()


class _Listing(ModuleType):
    """Callable module: `shims.patches()` lists the installed patches."""

    def __call__(self) -> tuple[Patch, ...]:
        return installed()


sys.modules[__name__].__class__ = _Listing
