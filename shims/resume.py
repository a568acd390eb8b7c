"""Training that goes on after a preemption where it stopped, to the same weights.

    with shims.resume("gs://bucket/run", model=model, optimizer=optimizer, every=500) as run:
        for epoch in run.epochs(3):
            sampler.set_epoch(epoch)
            for batch in run.batches(loader):
                train_step(batch)

Start the same program again to continue. It ends with exit code 75 when it was preempted.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import re
import signal
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch

from shims import checkpoint
from shims._saved import atomic, rng_state
from shims._saved.agreement import Agreement
from shims._saved.termination import Termination
from shims._shared import world
from shims.errors import ShimError

_T = TypeVar("_T")

# EX_TEMPFAIL of sysexits.h: it did not fail, start it again. A process that SIGTERM ended without
# a checkpoint has -15 or 143 instead.
PREEMPTED = 75

_FORMAT = 1
# A checkpoint between two epochs is a later place than the last step of the first of them.
_NAME = re.compile(r"step-(\d{9,})(-end)?\.pt")


class ResumeError(ShimError):
    """A run cannot be continued from its checkpoints, or the loop is not one that can be.

    Remedy: the message says what differs. Start with as many replicas as before, from a folder
    that every host sees, with the same loader; or name another folder for a new run.
    """


class Preempted(SystemExit):
    """Ends the program after SIGTERM, once its checkpoint is stored; the exit code is 75."""

    def __init__(self) -> None:
        super().__init__(PREEMPTED)


def resume(
    path: str | os.PathLike[str],
    *,
    model: Any,
    optimizer: Any = None,
    every: int | None = None,
    keep: int = 2,
    **more: Any,
) -> Run:
    """Continue a run from its newest complete checkpoint, and write new ones on the way.

    On SIGTERM, which a TPU gets before it is taken away, the step under way ends, with several
    replicas the one after it as well; then all write the same step and leave by `Preempted`. The
    next start of the same program continues behind that step: the loader is gone through up to
    there without training, and every random state is put back, so that the weights come out as
    without the interruption, to the bit, on the same kind and number of devices.

    Rank 0 writes, whole files or none; a broken newest checkpoint is passed over with a
    `ResumeWarning`, and the one before it is used. Every replica must call it, and make the same
    number of steps.

    Args:
        path: a folder for this run's checkpoints, local or a URL of fsspec; it is made. With
            several hosts it must be one that all see (`gs://…`).
        model: has `state_dict` and `load_state_dict`; DDP's own module is stored, so the checkpoint
            fits a model without it. Move it to its device first.
        optimizer: the same, or None.
        every: write after each so many steps, counted over the whole run. None writes only on
            SIGTERM and at the end.
        keep: how many of the newest checkpoints stay, at least 1. With 1 there is none to go back
            to should the newest be damaged.
        more: anything else with `state_dict` and `load_state_dict`, by a name of your choice:
            `scheduler=`, `scaler=`, `ema=`.

    Returns:
        A context manager whose value is the `Run`; it loads on entry.

    Raises:
        ResumeError: every or keep below 1, or `more` without a state. On entry: another number of
            replicas than the checkpoint's, state that does not fit, or no checkpoint that all
            replicas can read although there are some.
    """
    stateful = {"model": model, **({} if optimizer is None else {"optimizer": optimizer}), **more}
    for name, thing in stateful.items():
        if not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
            raise ResumeError(
                f"{name}= is a {type(thing).__name__} without state_dict and load_state_dict",
                "keep plain values in run.state",
            )
    if (every is not None and every < 1) or keep < 1:
        raise ResumeError(f"every={every}, keep={keep}", "give at least 1")
    return Run(os.fspath(path), stateful, every, keep)


class ResumeWarning(UserWarning):
    """A damaged checkpoint was passed over, and an older one is used."""


class Run(contextlib.AbstractContextManager["Run"]):
    """One run of training, over all its starts; made by `resume`.

    Attributes:
        step: finished steps since the very beginning.
        epoch: the epoch under way, from 0.
        state: your own values, stored with each checkpoint and back on the next start: numbers,
            strings, tensors, and containers of them.
    """

    def __init__(self, folder: str, stateful: dict[str, Any], every: int | None, keep: int) -> None:
        self.step = 0
        self.epoch = 0
        self.state: dict[str, Any] = {}
        self._folder = folder
        self._stateful = stateful
        self._every = every
        self._keep = keep
        self._batch = 0  # finished batches of this epoch
        self._loader: object = None
        # The random state before this epoch's loader began, from which its order follows.
        self._before_loader: dict[str, Any] | None = None
        self._restored: dict[str, Any] | None = None  # to put back where the loop had stopped
        self._generators: list[torch.Tensor] | None = None  # the same, for the next loader's own
        self._in_epoch = False
        self._began = False
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Run:
        self._agreement = Agreement()
        with contextlib.ExitStack() as stack:
            stack.callback(self._agreement.close)
            self._termination = stack.enter_context(Termination())
            self._load()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        # After an error the others may be anywhere: nothing may wait for them.
        if kind is None or issubclass(kind, Preempted):
            self._agreement.settle()
            self._stack.close()
        else:
            self._termination.__exit__()
            self._stack.pop_all()

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that are left of `count`: the one that was interrupted is the first.

        What comes behind `batches` in an epoch (validation, a scheduler's step) runs once for each
        epoch. When the last has ended the run is written; a later start has nothing left to do,
        unless `count` has grown.
        """
        while self.epoch < count:
            if self._before_loader is None:
                self._put_back(None)
            self._began = False
            self._in_epoch = True
            yield self.epoch
            self._in_epoch = False
            self._put_back(None)
            self.epoch += 1
            self._batch = 0
            self._before_loader = None
            self._boundary(write=self.epoch == count)

    def batches(self, loader: Iterable[_T]) -> Iterator[_T]:
        """The batches of this epoch that are left; once in each epoch.

        The order has to follow from the random state when iteration begins, from generators that
        the loader or its samplers have, or from the epoch: that holds for torch's samplers.

        Raises:
            ResumeError: not inside `epochs`, twice in one epoch, or the loader ends before the
                place where the run had stopped.
        """
        if not self._in_epoch or self._began:
            raise ResumeError(
                "run.batches outside run.epochs, or twice in one epoch",
                "use it once in each epoch; validation goes over its loader directly",
            )
        self._began = True
        self._loader = loader
        if self._before_loader is not None:
            rng_state.set_state(self._before_loader, loader)
        else:
            if self._generators is not None:
                rng_state.set_generators(loader, self._generators)
            self._before_loader = rng_state.get_state(loader)
        self._generators = None
        iterator = _begun(loader)
        for number in range(self._batch):
            try:
                next(iterator)
            except StopIteration:
                raise ResumeError(
                    f"the run had stopped behind batch {self._batch} of epoch {self.epoch}, the "
                    f"loader has {number}",
                    "give the loader that the run began with",
                ) from None
        self._put_back(loader)
        for batch in iterator:
            yield batch
            self._batch += 1
            self.step += 1
            self._boundary(write=self._every is not None and self.step % self._every == 0)

    def _put_back(self, loader: object) -> None:
        if self._restored is not None:
            rng_state.set_state(self._restored, loader)
            self._restored = None

    def _boundary(self, *, write: bool) -> None:
        """Between two steps, at the same step on every replica: write, and leave if asked to."""
        leave = self._agreement.poll(self._termination.asked())
        if write or leave:
            self._write()
        if leave:
            self._agreement.settle()
            raise Preempted

    def _write(self) -> None:
        world.run_pending()
        mine = {"here": rng_state.get_state(self._loader), "epoch": self._before_loader}
        buffer = io.BytesIO()
        torch.save(mine, buffer)
        random_states = self._agreement.gathered(
            torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
        )
        if self._agreement.rank == 0:
            atomic.make_folder(self._folder)
            place = 2 * self.step + (self._batch == 0)
            path = atomic.join(self._folder, _name(place))
            states = {name: _bare(thing).state_dict() for name, thing in self._stateful.items()}
            position = {"step": self.step, "epoch": self.epoch, "batch": self._batch}
            content = {"format": _FORMAT, "position": position, "random": random_states}
            checkpoint.save({**content, "states": states, "state": self.state}, path)
            # Later ones are what a start has passed over: they count for nothing.
            written = [other for other in self._complete() if other <= place]
            for other in written[: -self._keep]:
                atomic.remove(self._folder, _name(other))
        # Nobody leaves before the file is there: the end of one process may end the others.
        self._agreement.smallest(0)

    def _complete(self) -> list[int]:
        """The places of the finished checkpoints, oldest first."""
        matches = (_NAME.fullmatch(name) for name in atomic.names_in(self._folder))
        return sorted(2 * int(match[1]) + (match[2] is not None) for match in matches if match)

    def _load(self) -> None:
        if self._agreement.rank == 0:
            for name in atomic.names_in(self._folder):
                if atomic.is_temporary(name) and name.startswith(".step-"):
                    atomic.remove(self._folder, name)
        found, content = -1, None
        if self._agreement.rank == 0:
            found, content = self._newest_readable()
        place = self._agreement.of_rank_0(found)
        if place == -2:
            raise ResumeError(
                f"no checkpoint in {self._folder} can be read", "name another folder for a new run"
            )
        if place == -1:
            return
        if content is None:
            with contextlib.suppress(ShimError):
                content = checkpoint.load(atomic.join(self._folder, _name(place)))
        if not self._agreement.smallest(content is not None):
            raise ResumeError(
                f"not every replica can read {_name(place)} in {self._folder}",
                "give a folder that every host sees, such as gs://bucket/run",
            )
        assert content is not None
        self._restore(content)

    def _newest_readable(self) -> tuple[int, dict[str, Any] | None]:
        """Of rank 0: the place and the content; (-1, None) for none, (-2, None) for all broken."""
        complete = self._complete()
        for place in reversed(complete):
            try:
                return place, checkpoint.load(atomic.join(self._folder, _name(place)))
            except checkpoint.CheckpointError as error:
                warnings.warn(f"{error.what}; it is passed over", ResumeWarning, stacklevel=5)
        return (-2 if complete else -1), None

    def _restore(self, content: dict[str, Any]) -> None:
        replicas = len(content.get("random", ()))
        if content.get("format") != _FORMAT or replicas != self._agreement.size:
            raise ResumeError(
                f"the run in {self._folder} had {replicas} replicas, this start has "
                f"{self._agreement.size}",
                "start with as many, or name another folder and load the model from the old one",
            )
        states = content["states"]
        if states.keys() != self._stateful.keys():
            raise ResumeError(
                f"the run in {self._folder} holds {', '.join(states)}; resume was given "
                f"{', '.join(self._stateful)}",
                "give the same",
            )
        for name, thing in self._stateful.items():
            try:
                _bare(thing).load_state_dict(states[name])
            except (RuntimeError, ValueError, KeyError) as error:
                reason = str(error).partition("\n")[0]
                raise ResumeError(
                    f"the {name} in {self._folder} does not fit ({reason})",
                    "give what the run began with, or name another folder",
                ) from error
        position = content["position"]
        self.step, self.epoch = position["step"], position["epoch"]
        self._batch = position["batch"]
        self.state = content["state"]
        buffer = io.BytesIO(content["random"][self._agreement.rank].numpy().tobytes())
        mine = torch.load(buffer, weights_only=True)
        self._before_loader, self._restored = mine["epoch"], mine["here"]
        if self._before_loader is None:  # between two epochs: the next loader begins from here
            self._generators = mine["here"]["loader"]


def _begun(loader: Iterable[_T]) -> Iterator[_T]:
    """The loader's iterator, with its worker processes started so that SIGTERM does not end them.

    They inherit the mask. A machine that shuts down signals every process, and a worker that dies
    would take the training with it before the step has ended.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        iterator = iter(loader)
        # A loader that wraps another may start the workers only with the first batch.
        first = list(itertools.islice(iterator, 1))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return itertools.chain(first, iterator)


def _name(place: int) -> str:
    """The file name of a place: twice the number of finished steps, and one more between epochs."""
    return f"step-{place // 2:09d}{'-end' if place % 2 else ''}.pt"


def _bare(thing: Any) -> Any:
    """The model in DDP, whose names then fit without DDP too."""
    ddp = torch.nn.parallel.DistributedDataParallel
    return thing.module if isinstance(thing, ddp) else thing
