"""Checkpoints of a run: started again, it continues where it stopped, with the same numbers.

A machine receives SIGTERM before it is taken away: the current update ends, a checkpoint is stored, and the
program ends with exit code 75.
"""

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
    """

    def __init__(self, folder: str | None, every: int) -> None:
        self.preempted, self._every = False, every
        self._manager: Any = None
        self._last: Any = None
        if folder:
            # orbax writes beside the checkpoint's folder and renames: a folder of a step is complete.
            options = ocp.CheckpointManagerOptions(max_to_keep=2, cleanup_tmp_directories=True)
            path = folder if "://" in folder else os.path.abspath(folder)
            self._manager = ocp.CheckpointManager(path, options=options)
            if jax.process_count() == 1:  # on several hosts JAX itself handles SIGTERM
                signal.signal(signal.SIGTERM, lambda *_: setattr(self, "preempted", True))

    def resume(self, state: Any, batches: Iterator[Any]) -> tuple[Any, Iterator[Any]]:
        """Return the newest state, and the batches after it. Those before it are loaded again."""
        batches = _loaded(batches)
        newest = self._manager.latest_step() if self._manager else None
        if newest is None:
            return state, batches
        held = ocp.args.StandardRestore({"state": state, "batches": 0})
        held, last = self._manager.restore(newest, args=held), None
        for micro in itertools.islice(batches, newest):
            last = micro
            if self.preempted:
                raise SystemExit(PREEMPTED)
        if digest(last) != held["batches"]:
            raise SystemExit(
                f"checkpoint of update {newest}: the data are not those of the run that stored it; "
                "start with the same data, or with another folder"
            )
        return held["state"]._replace(step=newest), batches

    def ends(self, state: Any, micro: Any) -> bool:
        """Store the state after an update if it is time; whether the run ends here."""
        self._last = state, micro
        if self._manager:
            self.preempted |= multihost_utils.reached_preemption_sync_point(state.step)
            if self.preempted or state.step % self._every == 0:
                self._store(state, micro)
        return self.preempted

    def close(self) -> None:
        """Store the last state, and wait until all is written."""
        if self._manager:
            if self._last and self._manager.latest_step() != self._last[0].step:
                self._store(*self._last)
            self._manager.close()

    def _store(self, state: Any, micro: Any) -> None:
        held = ocp.args.StandardSave({"state": state, "batches": digest(micro)})
        self._manager.save(state.step, args=held)


def digest(micro: Any) -> int:
    """Return a checksum of the arrays of an update's batches."""
    arrays = [leaf for leaf in jax.tree.leaves(micro) if isinstance(leaf, np.ndarray)]
    return zlib.crc32(b"".join(array.tobytes() for array in arrays))


def _loaded(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the batches; SIGTERM waits meanwhile, so that it does not end processes of the loader."""
    for number in itertools.count():
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            micro = next(batches, None)
        finally:  # an error of the loader must not leave a process that SIGTERM does not end
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if micro is None:
            return
        if number == 0 and jax.process_count() > 1:
            what = "the hosts have different batches: seed the script"
            multihost_utils.assert_equal(np.uint32(digest(micro)), what)
        yield micro
