"""Logging of device values without waiting for the device inside the step.

    shims.log(lambda loss: print(f"loss {loss:.3f}"), loss)

On XLA, `.item()` or `print` of a tensor cuts the step's graph in two and runs the first half
immediately. Values logged here stay on the device and are read together when the step has run.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import util
from typing import Any

import torch

from shims._shared import tree


@dataclass(frozen=True)
class _Entry:
    function: Callable[..., object]
    values: tuple[Any, ...]


class _Log:
    """The callable `shims.log`, with its unread entries by thread, since each thread may be a replica."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[_Entry]] = {}
        self._flushes_at_exit_of: int | None = None

    def __call__(self, fn: Callable[..., object], *values: Any) -> None:
        """Call `fn(*values)` with the tensors on the CPU, after the step if that saves a sync.

        With an XLA tensor among the values (also in nested dicts, lists and tuples), `fn` is called
        at the end of the step (`shims.step()`, `torch_xla.sync()`), at `shims.log.flush()`, or at
        the end of the program. All tensors logged in a step are read in one transfer, and the step
        has no additional executions. Each tensor is copied on the device at the time of the call,
        so a later in-place change does not alter it. Without XLA tensors `fn` is called at once,
        unless entries are waiting: the order of the calls is kept.

        An exception of `fn` is raised where `fn` is called, at the end of the step. Entries logged
        after it stay for the next step's end, `flush` or the end of the program.

        Args:
            fn: called with the values as arguments; its result is ignored.
            values: tensors of any shape and device, which `fn` receives detached and on the CPU, and
                other objects, which it receives unchanged. Containers are copied, mappings as dicts.
        """
        entry = _Entry(fn, tuple(tree.mapped(value, _kept) for value in values))
        thread = threading.get_ident()
        if not self._waiting.get(thread) and not any(_lazy(leaf) for leaf in _leaves([entry])):
            _run(_read([entry]))
            return
        self._waiting.setdefault(thread, []).append(entry)
        self._flush_at_exit()
        # The first closure of a step reads everything; the others find nothing left.
        sys.modules["torch_xla.core.xla_model"].add_step_closure(self._end_step)

    def flush(self) -> None:
        """Read all waiting entries of all threads and pass them on, now.

        In the middle of a step this runs the step's graph up to here, like `.item()`.
        """
        for thread in list(self._waiting):
            self._hand_over(thread)

    def _end_step(self) -> None:
        self._hand_over(threading.get_ident())

    def _hand_over(self, thread: int) -> None:
        entries = _read(self._waiting.pop(thread, []))
        try:
            _run(entries)
        finally:
            if entries:  # an entry has raised
                self._waiting[thread] = entries + self._waiting.get(thread, [])

    def _flush_at_exit(self) -> None:
        if self._flushes_at_exit_of == os.getpid():
            return
        self._flushes_at_exit_of = os.getpid()
        # Registered now, to run before torch_xla's own hook, which ends the runtime. Children of
        # multiprocessing run no atexit hooks, but their own finalizers.
        atexit.register(self.flush)
        util.Finalize(None, self.flush, exitpriority=1000)


def _kept(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    # On XLA a clone is one more output of the step's graph, not a separate execution.
    return leaf.detach().clone() if _lazy(leaf) else leaf.detach()


def _lazy(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.device.type == "xla"


def _leaves(entries: list[_Entry]) -> Iterator[object]:
    for entry in entries:
        for _, leaf in tree.leaves(entry.values):
            yield leaf


def _read(entries: list[_Entry]) -> list[_Entry]:
    """Return the entries with their tensors on the CPU; XLA tensors are copied in one transfer."""
    lazy = [leaf for leaf in _leaves(entries) if _lazy(leaf)]
    fetched = {}
    if lazy:
        on_cpu = sys.modules["torch_xla"]._XLAC._xla_get_cpu_tensors(lazy)
        fetched = {id(leaf): value for leaf, value in zip(lazy, on_cpu, strict=True)}

    def to_cpu(leaf: Any) -> Any:
        if id(leaf) in fetched:
            return fetched[id(leaf)]
        return leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf

    return [_Entry(entry.function, tree.mapped(entry.values, to_cpu)) for entry in entries]


def _run(entries: list[_Entry]) -> None:
    """Call the entries in order, removing each from the list before the call."""
    while entries:
        entry = entries.pop(0)
        entry.function(*entry.values)


log = _Log()
