"""What the explicit API refuses: each error is one line for the user.

The docstring of each class is its help page: cause, then remedy.
"""

from __future__ import annotations

from shims.errors import ShimError


class BackendMissingError(ShimError):
    """The backend that was asked for by name cannot run on this machine.

    Remedy: install what the message names, or unset MIGRATE_BACKEND: the shims then take the TPU if
    there is one, else CUDA, else the CPU.
    """


class LaunchError(ShimError):
    """The ranks cannot be started as asked.

    Remedy: the message names the cause: an accelerator used before `shims.launch`, more ranks than
    devices, or `ranks=` against a launcher that has already decided their number.
    """


class NotOnDeviceError(ShimError):
    """A model or tensor is not on this rank's device.

    Remedy: `shims.to_device(model)` comes first, then `shims.ddp(model)`, then the optimizer. In any
    other order training on XLA runs without an error and changes no weight.
    """


class UnsupportedError(ShimError):
    """The backend has no right answer to this call.

    Remedy: the message names the form that works on every backend. The shims refuse instead of giving
    a wrong value.
    """


class MemoryUnknownError(ShimError):
    """The backend does not say how much device memory is in use.

    Remedy: ask on a CUDA device or on a TPU; elsewhere catch this error and log nothing. A zero would
    be a wrong answer.
    """
