"""Training that continues after a preemption where it stopped, with the same weights.

    with shims.resume("gs://bucket/run", model=model, optimizer=optimizer, every=500) as run:
        for epoch in run.epochs(3):
            sampler.set_epoch(epoch)
            for batch in run.batches(loader):
                train_step(batch)

Start the same program again to continue. A preempted program ends with exit code 75.
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

# EX_TEMPFAIL of sysexits.h: not a failure, start it again. A process that SIGTERM ended without a
# checkpoint has -15 or 143 instead.
PREEMPTED = 75

_FORMAT = 1
# A checkpoint between two epochs has a later position than the last step of the first epoch.
_NAME = re.compile(r"step-(\d{9,})(-end)?\.pt")


class ResumeError(ShimError):
    """A run cannot be continued from its checkpoints, or its loop does not support it.

    Remedy: the message names the difference. Start with the same number of replicas, from a folder
    that every host sees, with the same loader; or name another folder for a new run.
    """


class Preempted(SystemExit):
    """Exit of the program after SIGTERM, once its checkpoint is stored; the exit code is 75."""

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
    """Continue a run from its newest complete checkpoint, and write new checkpoints during training.

    A TPU receives SIGTERM before it is taken away. The current step then ends; with several
    replicas, the next step as well. All replicas write the same step and exit by `Preempted`. The
    next start of the same program continues after that step. It advances the loader to that point
    without training, and restores every random state. The weights are bitwise the same as without
    the interruption, on the same kind and number of devices.

    Rank 0 writes complete files or nothing. A damaged newest checkpoint is skipped with a
    `ResumeWarning`, and the previous one is used. Every replica must call this function and make
    the same number of steps.

    Args:
        path: a folder for this run's checkpoints, local or an fsspec URL; it is created. With
            several hosts, all must see it (`gs://…`).
        model: has `state_dict` and `load_state_dict`. The module inside DDP is stored, so the
            checkpoint fits a model without DDP. Move the model to its device first.
        optimizer: the same, or None.
        every: steps between two checkpoints, counted over the whole run. None writes only on
            SIGTERM and at the end.
        keep: the number of newest checkpoints to keep, at least 1. With 1 there is no fallback if
            the newest is damaged.
        more: other objects with `state_dict` and `load_state_dict`, under names of your choice:
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
    """Warning that a damaged checkpoint was skipped and an older one is used."""


class Run(contextlib.AbstractContextManager["Run"]):
    """Training run over all its starts, created by `resume`.

    Attributes:
        step: finished steps since the first start.
        epoch: the current epoch, from 0.
        state: your own values, stored with each checkpoint and restored on the next start: numbers,
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
        # Random state before this epoch's loader began, which determines its order.
        self._before_loader: dict[str, Any] | None = None
        self._restored: dict[str, Any] | None = None  # to restore where the loop had stopped
        self._generators: list[torch.Tensor] | None = (
            None  # the same, for the next loader's own generators
        )
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
        # After an error the other replicas may be anywhere: nothing may wait for them.
        if kind is None or issubclass(kind, Preempted):
            self._agreement.settle()
            self._stack.close()
        else:
            self._termination.__exit__()
            self._stack.pop_all()

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the remaining epochs of `count`; the first is the interrupted one.

        Code after `batches` in an epoch (validation, a scheduler's step) runs once per epoch. After
        the last epoch the run is written. A later start then has nothing left to do, unless `count`
        has grown.
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
        """Yield the remaining batches of this epoch; use it once per epoch.

        The order must depend only on the random state when iteration begins, on generators of the
        loader or its samplers, or on the epoch. torch's samplers satisfy this.

        Raises:
            ResumeError: the call is outside `epochs`, the second in one epoch, or the loader
                ends before the position where the run had stopped.
        """
        if not self._in_epoch or self._began:
            raise ResumeError(
                "run.batches outside run.epochs, or twice in one epoch",
                "use it once in each epoch; iterate over a validation loader directly",
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
        """Write and leave if requested, between two steps, at the same step on every replica."""
        leave = self._agreement.poll(self._termination.asked())
        if write or leave:
            self._write()
        if leave:
            self._agreement.settle()
            raise Preempted

    def _write(self) -> None:
        world.run_pending()
        random_state = {"here": rng_state.get_state(self._loader), "epoch": self._before_loader}
        buffer = io.BytesIO()
        torch.save(random_state, buffer)
        random_states = self._agreement.gathered(
            torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
        )
        if self._agreement.rank == 0:
            atomic.make_folder(self._folder)
            position = 2 * self.step + (self._batch == 0)
            path = atomic.join(self._folder, _name(position))
            states = {name: _bare(thing).state_dict() for name, thing in self._stateful.items()}
            progress = {"step": self.step, "epoch": self.epoch, "batch": self._batch}
            content = {"format": _FORMAT, "position": progress, "random": random_states}
            checkpoint.save({**content, "states": states, "state": self.state}, path)
            # Later checkpoints were skipped at the start and do not count.
            written = [other for other in self._complete() if other <= position]
            for other in written[: -self._keep]:
                atomic.remove(self._folder, _name(other))
        # Nobody leaves before the file exists: the end of one process may end the others.
        self._agreement.smallest(0)

    def _complete(self) -> list[int]:
        """Return the positions of the finished checkpoints, oldest first."""
        matches = (_NAME.fullmatch(name) for name in atomic.names_in(self._folder))
        return sorted(2 * int(match[1]) + (match[2] is not None) for match in matches if match)

    def _load(self) -> None:
        if self._agreement.rank == 0:
            for name in atomic.names_in(self._folder):
                if atomic.is_temporary(name) and name.startswith(".step-"):
                    atomic.remove(self._folder, name)
        newest, content = -1, None
        if self._agreement.rank == 0:
            newest, content = self._newest_readable()
        position = self._agreement.of_rank_0(newest)
        if position == -2:
            raise ResumeError(
                f"no checkpoint in {self._folder} can be read", "name another folder for a new run"
            )
        if position == -1:
            return
        if content is None:
            with contextlib.suppress(ShimError):
                content = checkpoint.load(atomic.join(self._folder, _name(position)))
        if not self._agreement.smallest(content is not None):
            raise ResumeError(
                f"not every replica can read {_name(position)} in {self._folder}",
                "give a folder that every host sees, such as gs://bucket/run",
            )
        assert content is not None
        self._restore(content)

    def _newest_readable(self) -> tuple[int, dict[str, Any] | None]:
        """Return the position and content of rank 0's newest readable checkpoint.

        The result is (-1, None) without checkpoints, and (-2, None) if all are damaged.
        """
        complete = self._complete()
        for position in reversed(complete):
            try:
                return position, checkpoint.load(atomic.join(self._folder, _name(position)))
            except checkpoint.CheckpointError as error:
                warnings.warn(f"{error.what}; it is skipped", ResumeWarning, stacklevel=5)
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
        random_state = torch.load(buffer, weights_only=True)
        self._before_loader, self._restored = random_state["epoch"], random_state["here"]
        if self._before_loader is None:  # between two epochs: the next loader begins from here
            self._generators = random_state["here"]["loader"]


def _begun(loader: Iterable[_T]) -> Iterator[_T]:
    """Return the loader's iterator, with worker processes that SIGTERM does not end.

    The workers inherit the signal mask. A machine that shuts down signals every process, and a
    dying worker would end the training before the step has ended.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        iterator = iter(loader)
        # A loader that wraps another may start the workers only with the first batch.
        first = list(itertools.islice(iterator, 1))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return itertools.chain(first, iterator)


def _name(position: int) -> str:
    """Return the file name of a position: twice the number of finished steps, plus one between epochs."""
    return f"step-{position // 2:09d}{'-end' if position % 2 else ''}.pt"


def _bare(thing: Any) -> Any:
    """Return the model inside DDP, whose names also fit without DDP."""
    ddp = torch.nn.parallel.DistributedDataParallel
    return thing.module if isinstance(thing, ddp) else thing
