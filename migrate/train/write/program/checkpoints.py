"""Checkpoints of a run: started again, it continues where it stopped, with the same numbers.

A machine receives SIGTERM before it is taken away: the current update ends, a checkpoint is stored, and the
program ends with exit code 75.
"""

import collections
import itertools
import os
import signal
import zlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

PREEMPTED = 75


class Checkpoints:
    """The newest states of a run, in a folder.

    Args:
        folder: a folder, or the URL of a bucket's folder. All hosts must see it. None: nothing is stored.
        every: updates between two checkpoints.

    Attributes:
        values: values of evaluations so far; `data.py` reads them again when the run continues.
    """

    def __init__(self, folder: str | None, every: int) -> None:
        self.values: list[Any] = []
        self._preempted = False
        self._manager: Any = None
        self._last: Any = None
        if folder:
            options = ocp.CheckpointManagerOptions(
                save_interval_steps=every, max_to_keep=2, cleanup_tmp_directories=True
            )
            path = folder if "://" in folder else os.path.abspath(folder)
            self._manager = ocp.CheckpointManager(path, options=options)
            if jax.process_count() == 1:  # on several hosts JAX itself handles SIGTERM
                signal.signal(signal.SIGTERM, lambda *_: setattr(self, "_preempted", True))

    def resume(self, state: Any, batches: Iterator[Any]) -> tuple[Any, Iterator[Any]]:
        """Return the newest state, and the batches after it. Those before it are loaded again."""
        batches = self._loaded(batches)
        newest = self._manager.latest_step() if self._manager else None
        if newest is None:
            return state, batches
        asked = ocp.args.Composite(
            state=ocp.args.StandardRestore(state), data=ocp.args.JsonRestore()
        )
        held = self._manager.restore(newest, args=asked)
        self.values += held.data["values"]
        skipped = collections.deque(itertools.islice(batches, newest), maxlen=1)
        if self._preempted:
            raise SystemExit(PREEMPTED)
        if digest([*skipped]) != held.data["batches"]:
            raise SystemExit(
                f"checkpoint of update {newest}: the data are not those of the run that stored it; "
                "start with the same data, or with another folder"
            )
        return held.state._replace(step=newest), batches

    def store(self, state: Any, micro: Any) -> None:
        """Store the state after an update if it is time."""
        self._last = state, micro
        if self._manager:
            self._preempted |= self._manager.reached_preemption(state.step)
            if self._manager.should_save(state.step):
                self._save()

    def close(self) -> None:
        """Store the last state, and wait until all is written; a preempted program ends here."""
        if self._manager:
            if self._last and self._manager.latest_step() != self._last[0].step:
                self._save()
            self._manager.close()
        if self._preempted:
            raise SystemExit(PREEMPTED)

    def _save(self) -> None:
        state, micro = self._last
        data = {"batches": digest(micro), "values": [*self.values]}
        held = ocp.args.Composite(state=ocp.args.StandardSave(state), data=ocp.args.JsonSave(data))
        self._manager.save(state.step, args=held, force=True)

    def _loaded(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches until SIGTERM; it waits meanwhile, so that it ends no process of the loader."""
        is_compared = jax.process_count() > 1
        while not self._preempted:
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            try:
                micro = next(batches)
            except StopIteration:
                return
            finally:  # an error of the loader must not leave a process that SIGTERM does not end
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            if is_compared:
                what = "the hosts have different batches: seed the script"
                multihost_utils.assert_equal(np.uint32(digest(micro)), what)
                is_compared = False
            yield micro


def digest(micro: Any) -> int:
    """Return a checksum of the arrays of an update's batches."""
    arrays = [leaf for leaf in jax.tree.leaves(micro) if isinstance(leaf, np.ndarray)]
    return zlib.crc32(b"".join(array.tobytes() for array in arrays))
