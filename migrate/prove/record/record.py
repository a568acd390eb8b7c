"""Record the losses, gradients and weights of a training script from the inside, without editing it.

`install` is loaded into every process of a run, through `shims.activate`. It hooks
`torch.autograd.backward`, the optimizers' global hooks and `nn.Module.__init__`, and writes the files of
`recording.records`.

On XLA nothing is read inside a step, because that would cut its graph in two. The values are kept lazy,
computed in the step's own graph, and read after a sync (`record.unread`). Not recorded:
`torch.autograd.grad` and `torch.func.grad`.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import multiprocessing.util
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from migrate.observe.boundaries import StepsInGraph, at_each_end
from migrate.prove.record import drawn, listen, norms, seeds, sums, variances
from migrate.prove.record.gather import Gathering
from migrate.prove.record.names import parameter_names, roots
from migrate.prove.record.noise import adam, elements
from migrate.prove.record.stop import StepLimit, StoppedError
from migrate.prove.record.unread import UnreadValues
from migrate.prove.recording import records
from migrate.prove.recording.elements import save as save_elements
from migrate.prove.recording.shards import local
from migrate.prove.recording.weights import parts, save
from migrate.prove.settings import ON, STEPS
from shims import activate


def install() -> None:
    """Record every optimizer step of this process, and seed its random generators."""
    steps = os.environ.get(STEPS)
    recorder = Recorder(
        Path(os.environ[records.RECORD_DIRECTORY]), steps=int(steps) if steps else None
    )
    os.register_at_fork(after_in_child=recorder.forget)
    seeds.install()
    norms.install()
    variances.install()
    listen.to_modules(recorder.saw_module)
    listen.to_losses(recorder.saw_losses)
    listen.to_dropout(recorder.saw_dropout)
    listen.to_clipping(recorder.saw_clipping)
    recorder.gathering.install()
    register_optimizer_step_pre_hook(recorder.before_step)
    register_optimizer_step_post_hook(recorder.after_step)


class Recorder:
    """Recorder of a process, with its observations since the start.

    Args:
        folder: folder to write into.
        steps: optimizer steps after which this rank stops; None: it does not stop.
    """

    def __init__(self, folder: Path, steps: int | None = None) -> None:
        self._folder = folder
        self._limit = StepLimit(folder, steps)
        self._hears_of_ends = False
        self._module_count = 0
        self._modules: weakref.WeakValueDictionary[int, torch.nn.Module] = (
            weakref.WeakValueDictionary()
        )
        self._dropout = 0.0
        self.gathering = Gathering()
        self.forget()

    def forget(self) -> None:
        """Start again in a forked child; the parent keeps its record."""
        self._losses: list[torch.Tensor] = []
        self._clipped_from: list[Any] = []
        self._step_depth = 0
        self._gradients = _Gradients.of(())
        # For each parameter, by its parts: the largest share of its gradient in the global norm so far.
        self._shares: dict[str, list[float]] = {}
        # Number and steps so far of each optimizer.
        self._optimizers: weakref.WeakKeyDictionary[torch.optim.Optimizer, tuple[int, int]] = (
            weakref.WeakKeyDictionary()
        )
        self._optimizer_count = 0
        self._names: dict[int, str] = {}
        # Held from the first step on: the model is a local variable of the script's function, and its last
        # weights are read after that has returned.
        self._roots: dict[str, torch.nn.Module] = {}
        self._header: records.Header | None = None
        self._unread = UnreadValues()
        self._in_graph = StepsInGraph()
        # In the original only: on XLA it would be part of each graph.
        self._elements = elements.Elements() if _is_original() else None

    def saw_module(self, module: torch.nn.Module) -> None:
        """Keep a weak reference to a module, by the order in which modules are created."""
        self._modules[self._module_count] = module
        self._module_count += 1

    def saw_losses(self, losses: list[torch.Tensor]) -> None:
        """Keep the values that a backward pass starts from."""
        self._limit.leave_if_it_goes_on()
        self._losses += map(local, losses)
        self.gathering.at("backward")

    def saw_dropout(self, probability: float) -> None:
        """Keep the largest probability of an active dropout."""
        self._dropout = max(self._dropout, probability)

    def saw_clipping(self, norm: Any) -> None:
        """Keep the gradient norm before it was clipped."""
        self._clipped_from.append(_kept(norm))
        self.gathering.at("clip")

    def before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Global optimizer hook: inspect the gradients that the step will use."""
        self._step_depth += 1
        if self._step_depth > 1:
            self._limit.inner(optimizer)
            return
        if self._limit.reached_before(optimizer):
            self._stop(now=True)
        self._gradients = _Gradients.of(_held(optimizer))
        self.gathering.before_step(optimizer, _held(optimizer))

    def after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Global optimizer hook: collect the step; its values are read after the sync."""
        self._step_depth -= 1
        if self._step_depth:
            # The inner optimizer of a wrapper, such as ZeroRedundancyOptimizer.
            return
        if args or kwargs.get("closure") is not None:
            # The gradients were computed inside the step.
            self._gradients = _Gradients.of(_held(optimizer))
        if optimizer not in self._optimizers:
            self._find_models()
            self._optimizers[optimizer] = (self._optimizer_count, 0)
            self._optimizer_count += 1
        number, count = self._optimizers[optimizer]
        self._optimizers[optimizer] = (number, count + 1)
        self._keep(optimizer, number, count + 1)
        if self._limit.reached_after(optimizer):
            self._stop()

    def _stop(self, *, now: bool = False) -> None:
        """Keep the current weights and leave the script; on XLA, once they can be read."""
        header = self._header
        assert header is not None
        final = {name: tensor.detach().clone() for name, tensor in self._tensors().items()}

        def end() -> None:
            self._finished = True
            save(final, records.final_path(self._folder, header.rank), self._shares)
            self._keep_last_elements()
            self.gathering.finish(self._folder, header.rank, self._roots)
            self._limit.leave(header.rank, header.world_size)

        if any(tensor.device.type == "xla" for tensor in final.values()):
            self._unread.add(end, at_once=True)
            if now:
                sys.modules["torch_xla"].sync()
        else:
            end()

    def _find_models(self) -> None:
        self._roots = roots(self._modules)
        self._names = parameter_names(self._roots)
        if self._header is None:
            self._header = records.Header(
                *_place(),
                parameters={
                    name: tuple(parameter.shape)
                    for name, parameter in _parameters(self._roots).items()
                },
            )
            self._append(self._header)
            # Registered after torch_xla's own function: the last comes first, so the weights are read while
            # the runtime still exists. Children of multiprocessing skip atexit.
            self._finished = False
            atexit.register(self.finish)
            multiprocessing.util.Finalize(None, self.finish, exitpriority=100)

    def _keep(self, optimizer: torch.optim.Optimizer, number: int, step: int) -> None:
        held = _held(optimizer)
        gradients = self._gradients
        names = [
            self._names.get(id(parameter), f"optimizer{number}.parameter{index}")
            for index, parameter in enumerate(held)
        ]
        record = records.StepRecord(
            step=step,
            optimizer=number,
            losses=(),
            gradient_norm=None,
            clipped_from=(),
            parameters=len(held),
            with_gradient=len(gradients.held_at),
            in_modules=sum(id(parameter) in self._names for parameter in held),
            learning_rates=(),
            checksum=(),
            dropout=self._dropout,
            switched_off=listen.switched_off(),
            made_bfloat16=listen.made_bfloat16(),
            in_graph=self._in_graph.stepped(optimizer),
            seeds=drawn.SEED.take(),
        )
        rates = [_kept(group.get("lr", float("nan"))) for group in optimizer.param_groups]
        losses, self._losses = self._losses, []
        clipped, self._clipped_from = self._clipped_from, []
        with torch.no_grad():
            checksum = sums.all_squares(held)
            if self._elements is not None:
                self._elements.stepped(optimizer)
            snapshot = {
                name: parameter.detach().clone()
                for name, parameter in zip(names, held, strict=True)
                if step in records.SNAPSHOT_STEPS
            }
        path = self._path(records.snapshot_path, number, step)
        moves = adam.first_moves(optimizer, dict(zip(map(id, held), names, strict=True)), step)
        details = self.gathering.after_step(optimizer, held, names, self._roots, self._modules)

        def read() -> None:
            norm, shares = gradients.read()
            for index, share in shares.items():
                known = self._shares.setdefault(names[index], [0.0] * len(share))
                known[:] = map(max, known, share)
            self._append(
                replace(
                    record,
                    losses=tuple(float(loss) for loss in losses),
                    gradient_norm=norm,
                    clipped_from=tuple(float(value) for value in clipped),
                    learning_rates=tuple(float(rate) for rate in rates),
                    checksum=(checksum.item(),),
                    details=details(),
                    moves=moves(self._shares),
                    norms=tuple(
                        fraction * (norm or 0.0) for share in shares.values() for fraction in share
                    )
                    if self._elements is not None
                    else (),
                )
            )
            if snapshot:
                save(snapshot, path, self._shares)
                self._keep_elements(held, names, number, step)

        if any(tensor.device.type == "xla" for tensor in [*held, *losses]):
            self._hook_ends()
            # Release the copies of all parameters.
            self._unread.add(read, at_once=bool(snapshot))
        else:
            read()

    def _keep_elements(
        self, held: Sequence[torch.Tensor], names: Sequence[str], number: int, step: int
    ) -> None:
        if self._elements is not None:
            path = self._path(records.elements_path, number, step)
            save_elements(self._elements.least(held, names), elements.gradients(held, names), path)

    def _keep_last_elements(self) -> None:
        header = self._header
        if self._elements is not None and header is not None:
            known = {id(parameter): parameter for parameter in _parameters(self._roots).values()}
            held = [known[parameter_id] for parameter_id in self._names if parameter_id in known]
            names = [self._names[id(parameter)] for parameter in held]
            path = records.final_elements_path(self._folder, header.rank)
            save_elements(self._elements.least(held, names), {}, path)

    def _hook_ends(self) -> None:
        if not self._hears_of_ends:
            self._hears_of_ends = True
            at_each_end(lambda: self._in_graph.ended())

    def finish(self) -> None:
        """Read the values that no sync came for, and keep the last parameters and buffers."""
        if self._finished or self._header is None:
            return
        with contextlib.suppress(StoppedError):
            self._unread.read_all()
        if not self._finished:
            self._finished = True
            save(self._tensors(), records.final_path(self._folder, self._header.rank), self._shares)
            self._keep_last_elements()
            self.gathering.finish(self._folder, self._header.rank, self._roots)

    def _tensors(self) -> dict[str, torch.Tensor]:
        return _parameters(self._roots) | {
            name: buffer
            for prefix, root in self._roots.items()
            for name, buffer in _named(prefix, root.named_buffers())
        }

    def _append(self, record: records.Header | records.StepRecord) -> None:
        header = self._header
        assert header is not None
        path = self._folder / f"rank{header.rank}.pid{os.getpid()}.jsonl"
        with path.open("a") as file:
            file.write(records.line(record))

    def _path(self, path_of: Callable[..., Path], *numbers: int) -> Path:
        header = self._header
        assert header is not None
        return path_of(self._folder, header.rank, *numbers)


@dataclass(frozen=True)
class _Gradients:
    """Squared L2 norms of an optimizer's gradients, lazy.

    Attributes:
        squares: one number for each part of each gradient; None without any.
        held_at: positions of their parameters among the optimizer's.
        parts: number of parts of each of these.
    """

    squares: torch.Tensor | None
    held_at: tuple[int, ...]
    parts: tuple[int, ...]

    @classmethod
    def of(cls, held: Sequence[torch.Tensor]) -> _Gradients:
        with torch.no_grad():
            values = {
                index: parameter.grad.coalesce().values()
                if parameter.grad.is_sparse
                else local(parameter.grad)
                for index, parameter in enumerate(held)
                if parameter.grad is not None
            }
            counts = tuple(map(parts, values.values()))
            squares = [
                sums.squares(value, count)
                for value, count in zip(values.values(), counts, strict=True)
            ]
            return cls(sums.joined(squares) if squares else None, tuple(values), counts)

    def read(self) -> tuple[float | None, dict[int, list[float]]]:
        """Return the global norm (None without gradients), and the shares in it, by position and part."""
        if self.squares is None:
            return None, {}
        squares = self.squares.tolist()
        norm = math.sqrt(sum(squares))
        shares = iter([math.sqrt(square) / norm if norm else 0.0 for square in squares])
        return norm, {
            index: [next(shares) for _ in range(count)]
            for index, count in zip(self.held_at, self.parts, strict=True)
        }


def _is_original() -> bool:
    return os.environ.get(activate.BACKEND) == "cpu" or ON in os.environ


def _place() -> tuple[int, int]:
    """Return the rank of this process, and the number of ranks."""
    if torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    if "torch_xla" in sys.modules:
        from torch_xla import runtime

        return runtime.global_ordinal(), runtime.world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _held(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _kept(value: Any) -> Any:
    # A tensor of the script may change in place before it is read.
    return local(value).detach().clone() if isinstance(value, torch.Tensor) else value


def _parameters(named_roots: dict[str, torch.nn.Module]) -> dict[str, torch.Tensor]:
    return {
        name: parameter
        for prefix, root in named_roots.items()
        for name, parameter in _named(prefix, root.named_parameters())
    }


def _named(prefix: str, tensors: Iterator[Any]) -> Iterator[tuple[str, torch.Tensor]]:
    return ((prefix + name, tensor) for name, tensor in tensors)
