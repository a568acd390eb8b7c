"""Start of the replicas in separate processes, and their end when one fails."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sysconfig
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.multiprocessing
import torch_xla
from torch_xla._internal import pjrt

from shims import activate
from shims._shared.ports import free_port
from shims._simulated import meeting
from shims._simulated import replica as _replica
from shims._simulated.calls import first_difference
from shims._simulated.reads import READ_REMEDY
from shims.errors import PeerLostError, ReplicaFailedError, ReplicasDisagreeError

# The ends of the files whose frames start a replica.
_STARTING = (
    "shims/_simulated/launch.py",
    "torch_xla/_internal/pjrt.py",
    "concurrent/futures/_base.py",
    "concurrent/futures/thread.py",
)
_OWN = ("shims", "migrate")
# Seconds that the other replicas get after a failure to report their state, before they are killed.
_GRACE_SECONDS = 3.0


@dataclass(frozen=True)
class _Outcome:
    """Ending of a replica's function: a result, an error, or an exit status."""

    rank: int
    result: Any = None
    # Type name, text and formatted traceback of the exception.
    error: tuple[str, str, str] | None = None
    exit_status: object = None
    peer_lost: bool = False
    # Reads of collective results since the last collective: a digest, and a description of the last
    # read.
    reads: tuple[str, str] = ("", "")

    @property
    def failed(self) -> bool:
        return self.error is not None or self.exit_status not in (None, 0)

    @property
    def ending(self) -> str:
        """Return a description for the replicas that wait for this one."""
        if self.error is not None:
            return f"it raised {self.error[0]}: {self.error[1]}"
        if self.exit_status is not None:
            return f"it exited with status {self.exit_status!r}"
        return "its function returned"


class _ReplicaTracebackError(Exception):
    """Traceback formatted by the replica, shown as the cause of a `ReplicaFailedError`."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def run(size: int, fn: Callable[[], Any], start_method: str) -> dict[int, Any]:
    """Run `fn` in `size` replicas, each in a separate process.

    Args:
        size: the number of replicas.
        fn: a picklable function, called without arguments in the replica's worker thread.
        start_method: "spawn" or "fork", as in multiprocessing.

    Returns:
        The results of `fn`, by global ordinal.

    Raises:
        RuntimeError: the XLA runtime is already initialized in this process, as on a TPU.
        ReplicasDisagreeError: only some replicas read the last collective's result.
        ReplicaFailedError: a replica raised, or its process died.
    """
    if torch_xla._XLAC._xla_runtime_is_initialized():
        raise RuntimeError(
            "Runtime is already initialized. Do not use the XLA device before calling xmp.spawn."
        )
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context: Any = torch.multiprocessing.get_context(start_method)
    rendezvous_port = free_port()
    processes: list[Any] = []
    connections: list[Connection] = []
    try:
        for rank in range(size):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(
                target=_replica_main,
                args=(rank, size, store.port, rendezvous_port, sender, fn),
                name=f"replica {rank}",
            )
            process.start()
            # The child holds the other end. This end must be closed, or the child's death is not
            # noticed.
            sender.close()
            processes.append(process)
            connections.append(receiver)
        outcomes = _outcomes(processes, connections)
        if not any(outcome.failed for outcome in outcomes.values()):
            for process in processes:
                process.join()
    finally:
        _end(processes)
    return _results(outcomes, size)


def _replica_main(
    rank: int, size: int, port: int, rendezvous_port: int, sender: Connection, fn: Callable[[], Any]
) -> None:
    os.environ[activate.ONE_MACHINE] = "1"
    activate.after_import(meeting.MODULE, functools.partial(meeting.meet_at, rendezvous_port))
    watch = None
    try:
        watch = _replica.join(rank, size, port)
        results = pjrt._run_thread_per_device(rank, size, fn, pjrt.initialize_multiprocess)
        outcome = _Outcome(rank, result=results[rank], reads=watch.reads.since())
    except SystemExit as leaving:
        # As in torch_xla's process pool: an exit status is reported separately.
        status = 0 if leaving.code is None else leaving.code
        reads = ("", "") if watch is None else watch.reads.since()
        outcome = _Outcome(rank, exit_status=status, reads=reads)
    except BaseException as error:
        outcome = _Outcome(
            rank,
            error=(type(error).__name__, str(error), _trace(error)),
            peer_lost=isinstance(error, PeerLostError),
        )
    if watch is not None:
        watch.leave(outcome.ending)
    with contextlib.suppress(BrokenPipeError):
        sender.send(outcome)
    sender.close()


def _trace(error: BaseException) -> str:
    """Return the traceback of a replica's exception, without the frames that start the replica.

    The simulation's own finding, that replicas disagree, ends at the line of the script.
    """
    formatted = traceback.TracebackException.from_exception(error)
    frames = formatted.stack
    while len(frames) > 1 and frames[0].filename.endswith(_STARTING):
        del frames[0]
    if isinstance(error, ReplicasDisagreeError):
        while len(frames) > 1 and not _is_of_script(frames[-1].filename):
            del frames[-1]
    return "".join(formatted.format())


def _is_of_script(file: str) -> bool:
    """Whether `file` is no part of Python, of an installed package, or of tpu-migrate."""
    package = str(Path(__file__).parents[2])
    installed = (*sysconfig.get_paths().values(), *(f"{package}/{name}/" for name in _OWN))
    return not file.startswith(installed)


def _outcomes(processes: list[Any], connections: list[Connection]) -> dict[int, _Outcome]:
    """Wait for every replica; after the first failure, only for `_GRACE_SECONDS` more."""
    outcomes: dict[int, _Outcome] = {}
    waiting = {connection: rank for rank, connection in enumerate(connections)}
    deadline: float | None = None
    while waiting:
        remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = wait(list(waiting), remaining)
        if not ready:
            break
        for connection in ready:
            assert isinstance(connection, Connection)
            rank = waiting.pop(connection)
            try:
                outcome = connection.recv()
            except EOFError:
                processes[rank].join(_GRACE_SECONDS)
                outcome = _Outcome(rank, error=("", _death(processes[rank].exitcode), ""))
            outcomes[rank] = outcome
            if outcome.failed and deadline is None:
                deadline = time.monotonic() + _GRACE_SECONDS
    return outcomes


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"the process ended with exit code {code} before its function returned"


def _end(processes: list[Any]) -> None:
    for process in processes:
        if process.is_alive():
            process.terminate()
    for process in processes:
        process.join(_GRACE_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()


def _results(outcomes: dict[int, _Outcome], size: int) -> dict[int, Any]:
    failed = [outcome for _, outcome in sorted(outcomes.items()) if outcome.failed]
    # A replica that lost its peer is a consequence, and the cause only if nothing else failed.
    causes = [outcome for outcome in failed if not outcome.peer_lost]
    for outcome in causes or failed:
        replica = f"replica {outcome.rank} of {size}"
        if outcome.error is None:
            raise ReplicaFailedError(
                f"{replica} exited with status {outcome.exit_status!r}", "all replicas were stopped"
            )
        kind, text, trace = outcome.error
        raise ReplicaFailedError(
            f"{replica} failed: {kind}{': ' if kind else ''}{text}", "all replicas were stopped"
        ) from (_ReplicaTracebackError(trace) if trace else None)
    _expect_equal_reads(outcomes)
    if any(outcome.exit_status == 0 for outcome in outcomes.values()):
        raise SystemExit(0)
    return {rank: outcome.result for rank, outcome in outcomes.items()}


def _expect_equal_reads(outcomes: dict[int, _Outcome]) -> None:
    """Check that after the last collective, all replicas read its result or none does."""
    ended = [outcome for outcome in outcomes.values() if not outcome.failed]
    for reader in ended:
        for other in ended:
            if reader.reads[0] not in ("", other.reads[0]):
                what, _ = first_difference(reader.reads[1], other.reads[1])
                raise ReplicasDisagreeError(
                    f"replica {reader.rank} {what or 'reads other results of collectives'}, "
                    f"and replica {other.rank} does not before it ends",
                    READ_REMEDY,
                )


def run_multiprocess(
    size: int, fn: Callable[..., Any], *args: Any, start_method: str = "spawn", **kwargs: Any
) -> dict[int, Any]:
    """Replacement for `torch_xla._internal.pjrt.run_multiprocess` with `size` simulated replicas."""
    return run(size, functools.partial(fn, *args, **kwargs), start_method)
