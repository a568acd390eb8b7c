"""Message of a failed run, and the origin of the error: the script itself, or its rewrite."""

from __future__ import annotations

import os
import re
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path

from migrate.catalogue.target import XLA, Target
from migrate.place import Place
from migrate.process import CORRECT_ARGUMENTS, refused_arguments
from migrate.prove.errors import (
    ArgumentsRefusedError,
    HangError,
    NotAnsweredError,
    OriginalFailedError,
    RewriteFailedError,
    RunTimeoutError,
    ScriptFailedError,
)
from migrate.prove.run import run_script
from migrate.prove.runtimes import RUNTIMES, SIDES, Side
from shims import errors
from shims._started import stand_in

# Time limit of the original, which is run to see whether it fails as its rewrite did: it compiles nothing.
_AT_LEAST_SECONDS, _TIMES_AS_LONG = 60.0, 2.0


def whose(
    script: Path, args: Sequence[str], replicas: int, seconds: float, target: Target = XLA
) -> str:
    """Run the original to see whose error ended the rewrite of a script; return that in one line.

    It runs on the CPU with gloo, in a mirror of its folders that is removed at the end.

    Args:
        script: the original.
        args: its arguments.
        replicas: number of ranks.
        seconds: time after which the rewrite failed; an original that runs longer does not have the error.
        target: package that drives the TPU in the rewrite.
    """
    ours = f"the error comes from the rewrite or from {RUNTIMES[target].where}, not from the script"
    limit = max(_AT_LEAST_SECONDS, _TIMES_AS_LONG * seconds)
    with tempfile.TemporaryDirectory(prefix="migrate-run-") as folder:
        try:
            result = run_script(
                script,
                args,
                side="original",
                replicas=replicas,
                timeout=limit,
                output="capture",
                place=Place(Path(folder), script, Path.cwd()),
            )
        except HangError as hang:
            return f"{hang.what}: that is the script's own, not the rewrite's"
        except RunTimeoutError:
            return f"the original was still running on the CPU after {limit:.0f} s: {ours}"
    if not result.returncode:
        return f"the original runs to its end on the CPU: {ours}"
    error = failure(script, "original", result.returncode, result.output)
    if isinstance(error, ArgumentsRefusedError):
        return f"the script refuses its arguments: {error.reason}; {error.remedy}"
    if isinstance(error, NotAnsweredError):
        return f"whose error it is was not found out: the original {error.what.partition(' ')[2]}"
    return (
        f"the original fails on the CPU too ({error.reason}): if that is the same error, it is the script's "
        "own, not the rewrite's"
    )


def failure(path: Path, side: Side, returncode: int, output: str) -> ScriptFailedError:
    """Create the error of a failed script.

    Args:
        path: the script.
        side: original or rewrite.
        returncode: exit code of the script.
        output: the last lines that it wrote.
    """
    if side == "original" and (refused := refused_arguments(returncode, output)):
        what = f"{path} refuses its arguments: {refused}"
        return ArgumentsRefusedError(what, CORRECT_ARGUMENTS, "", refused)
    reason = last_error(output) or _ending(returncode)
    if side == "original" and re.match(_NOT_ANSWERED, reason):
        return NotAnsweredError(
            f"{path} cannot run on the CPU in CUDA's place: {reason}",
            "the script may be correct; shims does not simulate this call (docs/shims). Remove it "
            "from a copy of the script, and prove the copy",
            output,
            reason,
        )
    line = failing_line(path, output)
    where = f" ({line})" if line else ""
    if side == "original":
        return OriginalFailedError(
            f"{path} fails on the CPU as it is, without the rewrite: {reason}{where}",
            "make the original run on the CPU with gloo first",
            output,
            reason,
        )
    name = path.name if stand_in.stands_for(path) else path
    what = f"{name} failed on {SIDES[side].where} where the original runs: {_cause(reason)}{where}"
    to_do = f"fix {line or 'the rewritten script'}"
    if limit := SIDES[side].limit(reason):
        what, to_do = f"{what}: {limit[0]}, which is no fault of the rewrite", limit[1]
    return RewriteFailedError(
        what,
        f"{to_do}; the traceback is below",
        output,
        reason,
    )


def disagreement(reason: str) -> str:
    """Return where the simulated replicas diverge, in words; "" if the error `reason` is another one.

    Args:
        reason: the error's last line: see `last_error`.
    """
    cause = last_error(_cause(reason)) or ""
    kind, _, message = cause.partition(": ")
    name = kind.rpartition(".")[2]
    ended_early = name == errors.PeerLostError.__name__ and _RETURNED in message
    if name != errors.ReplicasDisagreeError.__name__ and not ended_early:
        return ""
    return f"the replicas of the rewrite diverge: {message}"


def failing_line(path: Path, output: str) -> str | None:
    """Return `file.py:line` of the script or its modules where the error was raised; None if unknown.

    Args:
        path: the script that ran, or its stand-in in a temporary folder.
        output: the last lines that it wrote.
    """
    own = {file.resolve() for file in (path, *stand_in.files(path).values())}
    root = Path(os.path.commonpath([file.parent for file in own]))
    # The process that starts the replicas raises an error of its own after theirs.
    first = output.rpartition(_CAUSED)[0] or output
    # torch prints the traceback of a member of a process group with its rank before each line.
    frames = re.findall(r'^(?:\[rank\d+\]: )? *File "([^"]+)", line (\d+)', first, re.M)
    lines = [f"{Path(f).relative_to(root)}:{line}" for f, line in frames if Path(f) in own]
    return lines[-1] if lines else None


def _cause(reason: str) -> str:
    """Return the error's last line without the words of the simulation around it."""
    return _OF_REPLICA.sub("", reason, count=1).removesuffix(_REPLICAS_STOPPED)


# Features that shims reject, and calls of a CUDA that does not exist: they were not answered by shims.
_NOT_ANSWERED = (
    r"shims\.\w+\.|.*(Torch not compiled with CUDA|NVIDIA driver|No CUDA GPUs|without ATen_cuda|"
    r"torch\._C' has no attribute '_(cuda|scatter|gather|broadcast|reduce|nccl)|"
    r"CUDA(HooksInterface| error| driver))"
)


# The simulation's own error, before the exception of a replica that it quotes.
_OF_REPLICA = re.compile(r"shims\.errors\.ReplicaFailedError: replica \d+ of \d+ failed: ")
_RETURNED = "never reaches: its function returned"
_REPLICAS_STOPPED = "; all replicas were stopped"
_CAUSED = "The above exception was the direct cause of the following exception:"


# A replica that left by `sys.exit` or `os._exit`, or that a signal ended.
_LEFT = re.compile(
    r"shims\.errors\.ReplicaFailedError: replica \d+ of \d+ "
    r"(?:exited with status |failed: (?:killed by |the process ended with exit code ))"
)


def is_own_ending(reason: str) -> bool:
    """Whether a replica ended by itself: by an exception or an exit of the script, not of the simulation.

    Args:
        reason: the error's last line: see `last_error`.
    """
    if _LEFT.match(reason):
        return True
    cause = last_error(_OF_REPLICA.sub("", reason, count=1))
    if cause is None:
        return False
    kind = getattr(errors, cause.partition(":")[0].rpartition(".")[2], None)
    return not (isinstance(kind, type) and issubclass(kind, errors.ShimError))


def _ending(returncode: int) -> str:
    if returncode < 0:
        return f"its process was ended by {signal.Signals(-returncode).name}"
    return f"exit code {returncode}"


def last_error(output: str) -> str | None:
    """Last line of the output that names an exception, or the message with which XLA's compiler aborts."""
    exception = r"(?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt)\b"
    named = rf"^(?:\[rank\d+\]: )?((?:{exception}|LLVM ERROR:).*)"
    lines = re.findall(named, output, re.M)
    return lines[-1].strip() if lines else None
