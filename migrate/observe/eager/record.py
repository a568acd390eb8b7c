"""Watch a process that trains on torch_tpu; loaded through `shims.activate`.

Compilations are torch_tpu's own record (`observe.eager.trace`). torch_tpu runs operators later than Python
calls them, so this waits for the device at the ends of each backward pass and of each optimizer step: what is
recorded until then belongs to it. Losses are read at the end.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import multiprocessing.util
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from migrate.observe.eager import records
from migrate.observe.eager.trace import compilation
from migrate.observe.graph_dump import DumpFrame
from migrate.observe.places import current_line, is_the_users
from migrate.observe.records import OBSERVE_DIRECTORY
from migrate.observe.untrained import OptimizerWatch
from shims._simulated_tpu.missing import missing_operator

# The last events may arrive from the threads that compile.
_LATE_SECONDS = 0.5


def install() -> None:
    """Watch this process, which has imported torch."""
    watch = EagerWatch(Path(os.environ[OBSERVE_DIRECTORY]))
    watch.start()
    os.register_at_fork(after_in_child=watch.start_in_child)


class EagerWatch:
    """Record of what a process does on torch_tpu.

    Args:
        folder: folder for the records.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._forget()

    def _forget(self) -> None:
        self._record = records.EagerRecord()
        self._optimizers = OptimizerWatch(lambda: _rank() or 0)
        # Times of the optimizer steps, in seconds.
        self._stepped_at: list[float] = []
        # Line of the backward pass that runs.
        self._backward: DumpFrame | None = None
        self._losses: list[torch.Tensor] = []
        # Parameters with a gradient, and their first values. The model may be a local variable of a function
        # that has returned when they are compared.
        self._held: dict[int, tuple[torch.Tensor, bytes]] = {}
        self._finished = False

    def start(self) -> None:
        """Register for backward passes, optimizer steps, errors and the end."""
        self._take_events()
        self._optimizers.follow()
        self._follow_backward()
        self._follow_errors()
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)
        self._finish_at_the_end()

    def start_in_child(self) -> None:
        """Start again in a forked child."""
        self._forget()
        self._finish_at_the_end()

    def _finish_at_the_end(self) -> None:
        atexit.register(self.finish)
        # Children of multiprocessing skip atexit.
        multiprocessing.util.Finalize(None, self.finish, exitpriority=100)

    def _take_events(self) -> None:
        from torch_tpu._internal import tracing

        # torch_tpu's own function would write them to TORCH_TRACE.
        tracing._flush = self._drain

    def _drain(self) -> None:
        from torch_tpu._internal import tracing

        drained = tracing._tpu_torch_tracing._drain_structured_log_buffer()
        self._record.dropped += drained.get("dropped_since_last_drain", 0)
        for event in drained.get("events", ()):
            self._record.operators += 1
            entry = compilation(event, len(self._stepped_at), self._backward)
            if entry is not None:
                self._record.compilations.append(entry)

    def _wait(self) -> None:
        """Wait for the device, and take what it has recorded."""
        with warnings.catch_warnings():
            # torch_tpu calls the name experimental.
            warnings.simplefilter("ignore")
            tpu: Any = torch.tpu
            if not tpu.is_initialized():
                return
        torch.accelerator.synchronize()
        self._drain()

    def _follow_backward(self) -> None:
        run_backward = torch.autograd.backward

        @functools.wraps(run_backward)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            starts = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
            if len(starts) == 1 and starts[0].numel() == 1:
                # The first and the last are kept.
                self._losses[1:] = [starts[0].detach()]
            if self._backward is not None:
                # Checkpointing runs a backward pass inside another.
                run_backward(tensors, *args, **kwargs)
                return
            self._wait()
            self._backward = current_line()
            try:
                run_backward(tensors, *args, **kwargs)
                self._wait()
            finally:
                self._backward = None

        torch.autograd.backward = backward

    def _follow_errors(self) -> None:
        show = sys.excepthook

        def noting(kind: Any, error: BaseException, trace: Any) -> None:
            self._failed(error)
            show(kind, error, trace)

        sys.excepthook = noting
        spawn: Any = sys.modules["torch.multiprocessing.spawn"]
        spawn._wrap = _noting_workers(spawn._wrap, self._failed)

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, SystemExit | KeyboardInterrupt):
            return
        frames = [
            DumpFrame(frame.name, frame.filename, frame.lineno or 0)
            for frame in traceback.extract_tb(error.__traceback__)
            if is_the_users(frame.filename)
        ]
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        line = frames[-1] if frames else None
        self._record.failure = records.Failure(text, line, missing_operator(error))

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and id(parameter) not in self._held:
                    self._held[id(parameter)] = (parameter, _digest(parameter))

    def _after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._optimizers.stepped(optimizer)
        self._wait()
        self._stepped_at.append(time.perf_counter())

    def finish(self) -> None:
        """Read what is pending, and write the record."""
        if self._finished:
            return
        self._finished = True
        record = self._record
        with contextlib.suppress(Exception):
            # After an error, the device may not answer.
            losses = [float(loss.item()) for loss in self._losses]
            if losses:
                record.first_loss, record.last_loss = losses[0], losses[-1]
            held = self._held.values()
            record.changed = sum(_digest(tensor) != before for tensor, before in held)
            record.parameters = len(held)
        time.sleep(_LATE_SECONDS)
        self._drain()
        record.rank = _rank()
        record.steps = len(self._stepped_at)
        record.seconds = self._steady_seconds()
        if record.operators or record.steps or record.failure:
            self._optimizers.write(self._folder)
            records.write(self._folder, record)

    def _steady_seconds(self) -> list[float]:
        """Seconds between optimizer steps without a compilation in between."""
        warm = {entry.step for entry in self._record.compilations}
        pairs = zip(self._stepped_at, self._stepped_at[1:], strict=False)
        return [end - begin for step, (begin, end) in enumerate(pairs, 1) if step not in warm]


def _noting_workers(wrap: Callable[..., Any], note: Callable[[BaseException], None]) -> Any:
    # `wraps` keeps the name by which a spawned process finds the function.
    @functools.wraps(wrap)
    def noting(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        @functools.wraps(fn)
        def worker(*inner: Any) -> Any:
            try:
                return fn(*inner)
            except BaseException as error:
                note(error)
                raise

        return wrap(worker, *args, **kwargs)

    return noting


def _digest(tensor: torch.Tensor) -> bytes:
    """Hash of a tensor's values."""
    with torch.no_grad():
        values = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
    return hashlib.blake2b(values.numpy().tobytes(), digest_size=16).digest()


_last_rank: list[int] = []


def _rank() -> int | None:
    """Return the rank of this process, also after it has left its group."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        _last_rank[:] = [dist.get_rank()]
    if _last_rank:
        return _last_rank[0]
    text = os.environ.get("RANK", "")
    return int(text) if text.isdecimal() else None
