"""What running a program through the shims can fail with: each error is one line for the user, exit code 2.

The docstring of each class is its help page: cause, then remedy.
"""

from __future__ import annotations


class ShimError(Exception):
    """The program could not be run on this backend.

    Args:
        what: what went wrong, and where (file, line), in one line.
        remedy: what the user can do about it, in one line.
        rule: the rule of `migrate rewrite` that rewrites or explains the construct, if one does.
    """

    def __init__(self, what: str, remedy: str, rule: str = "") -> None:
        named = f" (`migrate rewrite`: rule {rule})" if rule else ""
        super().__init__(f"{what}; {remedy}{named}")
        self.what = what
        self.remedy = remedy
        self.rule = rule

    def __reduce__(self) -> tuple[type[ShimError], tuple[str, str, str]]:
        # Exceptions are pickled by `args`, which holds the one joined line: errors cross process
        # borders here (a replica's error reaches the process that launched it).
        return type(self), (self.what, self.remedy, self.rule)


class NotSimulatedError(ShimError):
    """The program uses something of a TPU that the simulated replicas do not have.

    Remedy: use the form named in the message, or run the program on a TPU. The simulation refuses
    what it cannot compute rightly instead of giving a wrong value.
    """


class RefusedOnTpuError(ShimError, RuntimeError):
    """The program does something that torch_xla or the TPU's compiler refuses, so the simulation does too.

    A RuntimeError, as what the compiler refuses is one in torch_xla.
    Remedy: the message names the form that works on a TPU.
    """


class WrongOnTpuError(ShimError):
    """The program asks for something that torch_xla computes wrongly on a TPU, without an error.

    Remedy: the message names the form that torch_xla computes rightly. Some of its functions pay no heed
    to the process group that they are given.
    """


class ReplicasDisagreeError(ShimError):
    """Two replicas are in different collectives, or wait for each other, or only one reads a result.

    The same collective with other shapes or dtypes is a different one.

    On a TPU every replica must run the same sequence of collectives: this would hang there.
    Remedy: look for a collective, a save or an optimizer step under a condition that differs
    between ranks (`if rank == 0:`), or for batches of unequal shape.
    """


class PeerLostError(ShimError):
    """A replica waits in a collective that another replica will never enter, as that one has ended.

    Remedy: make every replica run the same number of steps (equal loader lengths), and look for a
    collective under `if rank == 0:`.
    """


class ReplicaFailedError(ShimError):
    """A simulated replica raised an exception, or its process died; the others were stopped.

    Remedy: the replica's own traceback is printed above this message; mend what it names.
    """


class DeviceNotAnsweredError(ShimError):
    """The program asks a CUDA device for something that the CPU backend has no true answer to.

    Remedy: guard the call with `torch.cuda.is_available()` and a device check, or leave it out of
    the run; the CPU backend refuses instead of inventing a value.
    """


class BackendError(ShimError):
    """The shims' environment variables name no backend that exists, or no number of replicas.

    Remedy: set the variables through `shims.activate.environment`.
    """
