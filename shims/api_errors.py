"""Errors of the explicit API, each one line for the user.

The docstring of each class is its help page: cause, then remedy.
"""

from __future__ import annotations

from shims.errors import ShimError


class BackendMissingError(ShimError):
    """The requested backend cannot run on this machine.

    Remedy: install the package that the message names, or unset MIGRATE_BACKEND. The shims then use
    the TPU if there is one, otherwise CUDA, otherwise the CPU.
    """


class LaunchError(ShimError):
    """The ranks cannot be started as asked.

    Remedy: the message names the cause: an accelerator used before `shims.launch`, more ranks than
    devices, or `ranks=` with a launcher that has already set their number.
    """


class NotOnDeviceError(ShimError):
    """A model or tensor is not on this rank's device.

    Remedy: call `shims.to_device(model)` first, then `shims.ddp(model)`, then create the optimizer.
    In any other order, training on XLA runs without an error but changes no weights.
    """


class UnsupportedError(ShimError):
    """The backend cannot give a correct answer to this call.

    Remedy: use the form that the message names, which works on every backend. The shims refuse
    instead of returning a wrong value.
    """


class MemoryUnknownError(ShimError):
    """The backend does not report how much device memory is in use.

    Remedy: call it on a CUDA device or a TPU; elsewhere catch this error and log nothing. A zero
    would be wrong.
    """
