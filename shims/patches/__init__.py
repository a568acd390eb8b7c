"""Answers for CUDA where there is none: each concern in a file, every patch declared and undone.

    import shims

    shims.patches.install("cpu", devices=2)
    for patch in shims.patches():
        ...  # patch.name, patch.answers
    shims.patches.uninstall()

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


def install(place: Literal["cpu", "xla"], devices: int) -> None:
    """Answer for CUDA devices in this process and its threads; done already, nothing changes.

    Args:
        place: where their tensors really are.
        devices: how many the program is told of.
    """
    from shims.patches import assemble

    with _LOCK:
        if _STATE["registry"] is None:
            _STATE["registry"], _STATE["threads"] = assemble.install(place, devices)


def install_cpu() -> None:
    """`install("cpu")` for as many devices as the environment says.

    Raises:
        BackendError: the number of replicas is not set.
    """
    from shims import activate

    install("cpu", activate.replicas())


def uninstall() -> None:
    """Put back every object of torch that was replaced; without an install, nothing changes."""
    with _LOCK:
        if _STATE["registry"] is not None:
            _STATE["threads"].leave()
            _STATE["registry"].uninstall()
            _STATE["registry"] = _STATE["threads"] = None


def installed() -> tuple[Patch, ...]:
    """Every name of torch that is answered now, with what answers it."""
    with _LOCK:
        return () if _STATE["registry"] is None else _STATE["registry"].installed()


class _Listing(ModuleType):
    """Lets `shims.patches()` list what is installed, beside `shims.patches.install` and `uninstall`."""

    def __call__(self) -> tuple[Patch, ...]:
        return installed()


sys.modules[__name__].__class__ = _Listing
