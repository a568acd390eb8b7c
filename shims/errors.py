"""Errors of running a program through the shims: each is one line for the user, with exit code 2.

The docstring of each class is its help page: cause, then remedy.
"""

from __future__ import annotations


class ShimError(Exception):
    """The program could not run on this backend.

    Args:
        what: the problem and its location (file, line), in one line.
        remedy: the remedy for the user, in one line.
        rule: the rule of `migrate rewrite` that rewrites or explains the construct, or "".
    """

    def __init__(self, what: str, remedy: str, rule: str = "") -> None:
        named = f" (`migrate rewrite`: rule {rule})" if rule else ""
        super().__init__(f"{what}; {remedy}{named}")
        self.what = what
        self.remedy = remedy
        self.rule = rule

    def __reduce__(self) -> tuple[type[ShimError], tuple[str, str, str]]:
        # Exceptions are pickled by `args`, which holds the one joined line. Errors cross process
        # borders here: a replica's error reaches the process that launched it.
        return type(self), (self.what, self.remedy, self.rule)


class NotSimulatedError(ShimError):
    """The program uses a TPU feature that the simulated replicas do not have.

    Remedy: use the form named in the message, or run the program on a TPU. The simulation refuses
    instead of computing a wrong value.
    """


class RefusedOnTpuError(ShimError, RuntimeError):
    """The program does something that torch_xla or the TPU's compiler refuses, so the simulation
    refuses it too.

    It is a RuntimeError, like a refusal of the compiler in torch_xla. Remedy: the message names the
    form that works on a TPU.
    """


class WrongOnTpuError(ShimError):
    """The program uses something that torch_xla computes wrong on a TPU, without an error.

    Remedy: use the form that the message names. Some functions of torch_xla ignore the process
    group they are given.
    """


class ReplicasDisagreeError(ShimError):
    """Two replicas are in different collectives, wait for each other, or only one of them reads a result.

    The same collective with other shapes or dtypes is a different one.

    On a TPU every replica must run the same sequence of collectives; otherwise it hangs. Remedy:
    look for a collective, a save or an optimizer step under a condition that differs between ranks
    (`if rank == 0:`), or for batches of unequal shape.
    """


class PeerLostError(ShimError):
    """A replica waits in a collective that another replica will never enter, because that replica has
    ended.

    Remedy: make every replica run the same number of steps (equal loader lengths), and look for a
    collective under `if rank == 0:`.
    """


class ReplicaFailedError(ShimError):
    """A simulated replica raised an exception, or its process died; the others were stopped.

    Remedy: the replica's own traceback is printed above this message; fix the error that it names.
    """


class DeviceNotAnsweredError(ShimError):
    """The program asks a CUDA device for something that the CPU backend cannot answer correctly.

    Remedy: guard the call with `torch.cuda.is_available()` and a device check, or omit it from the
    run. The CPU backend refuses instead of inventing a value.
    """


class BackendError(ShimError):
    """The shims' environment variables name an unknown backend or an invalid number of replicas.

    Remedy: set the variables through `shims.activate.environment`.
    """
