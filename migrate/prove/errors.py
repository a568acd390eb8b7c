"""Errors of a run or a proof, apart from a difference, which is a result."""

from __future__ import annotations

from migrate.errors import MigrateError


class ScriptFailedError(MigrateError):
    """A script ended with an error of its own.

    Remedy: run it alone and fix what its traceback names.

    Args:
        what: what went wrong, and where, in one line.
        remedy: what the user can do about it, in one line.
        output: the last lines that the script wrote.
        reason: the last line of it that names an exception, or the exit code.
    """

    def __init__(self, what: str, remedy: str, output: str, reason: str = "") -> None:
        super().__init__(what, remedy)
        self.output = output
        self.reason = reason


class OriginalFailedError(ScriptFailedError):
    """The original script does not run on the CPU, so there is nothing to compare the rewrite with.

    Remedy: it was broken before it was rewritten, or it needs something that this machine or the
    CPU backend lacks (data, a package, a CUDA extension). Its traceback says what.
    """


class ArgumentsRefusedError(OriginalFailedError):
    """The argument parser of the script ended it.

    Remedy: correct the arguments after `--`.
    """


class NotAnsweredError(OriginalFailedError):
    """The original asks CUDA for something that its stand-in on the CPU does not answer.

    Remedy: nothing need be wrong with the script. Leave the call out of the run by an argument or a copy of
    the script, or rewrite it and compare with the figures of a run on a GPU.
    """


class RewriteFailedError(ScriptFailedError):
    """The original runs, the rewritten script does not.

    Remedy: its traceback says what torch_xla refuses; fix the script, or report a missing rule.
    """


class ReplicasPartedError(RewriteFailedError):
    """The rewrite was ended where its replicas execute other graphs than each other.

    Remedy: on a TPU they may wait for each other there. Compute and read in all replicas what one needs, and
    put only the printing under the condition.

    Args:
        what: what went wrong, and where, in one line.
        remedy: what the user can do about it, in one line.
        output: the last lines that the script wrote.
        reason: the last line of it that names an exception.
        where: where they part, in words.
    """

    def __init__(self, what: str, remedy: str, output: str, reason: str, where: str) -> None:
        super().__init__(what, remedy, output, reason)
        self.where = where


class RunTimeoutError(ScriptFailedError):
    """The script ran longer than the time that it was given, and was stopped with all its children.

    Remedy: give it more time, or fewer steps. Replicas that wait for each other also end here.
    """


class HangError(RunTimeoutError):
    """The ranks of a script wait for each other for ever: none works, and one waits in a collective.

    Remedy: let every rank come to the same collectives in the same order. A forward with SyncBatchNorm or
    DistributedDataParallel is one, and so is what `dist.barrier()` waits for.
    """


class RecordingError(MigrateError):
    """A run left recordings that cannot be read: a rank is missing, doubled or cut short.

    Remedy: let every process of the script end by returning, not by `os._exit` or a signal.
    """


class ReferenceFileError(MigrateError):
    """The record of an original that ran elsewhere cannot be written, read, or held against this script.

    Remedy: the message says which: another file, one that was cut short on its way, or a record of another
    script, of other arguments or of another version. Record it again on the machine with the GPUs.
    """


class NoScriptError(MigrateError):
    """The script to run is not a file.

    Remedy: check the path.
    """


class CudaScriptError(MigrateError):
    """The script to run is for GPUs: it joins a process group over NCCL.

    Remedy: --rewrite rewrites it for the run.
    """


class NotWrittenError(MigrateError):
    """The script never wrote the checkpoint that a proof of resuming starts from.

    Remedy: give the path that the script writes, relative to the working directory, and arguments with
    which it trains long enough to write it.
    """


class CheckpointPlaceError(MigrateError):
    """The checkpoint of a proof of resuming lies outside of the folders that each run has for itself.

    Remedy: let the script write it below the working directory or below its own folder.
    """
