"""DDP's gradient averaging in simulated replicas: one reduction at the end of the backward pass.

DDP's own Reducer copies gradients through flat buckets, and each bucket cuts the graph. On XLA:CPU
that costs several times the step itself. Here the C++ Reducer never expects gradients. Its work is
done for all gradients together: scale by 1 / world size, then sum, in the gradients' dtype (torch
2.9, `reducer.cpp`, `mark_variable_ready_dense` and `all_reduce_bucket`).

The Reducer stays in use for DDP with a communication hook, a static graph, its own mixed precision,
delayed parameters, `join()` or a group smaller than the world.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _find_tensors

from shims._simulated.collectives import Collectives

# Copies tensors from the device, running all pending graphs at once.
Fetch = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]
# Records device tensors returned by a collective.
RecordResults = Callable[[Sequence[torch.Tensor]], None]


def install(collectives: Collectives, fetch: Fetch, record_results: RecordResults) -> None:
    """Make every DDP of this replica average through `collectives`.

    Args:
        collectives: the collectives of this replica.
        fetch: copies the gradients to the host.
        record_results: records the averaged gradients.
    """
    reductions: weakref.WeakKeyDictionary[DistributedDataParallel, _Reduction] = (
        weakref.WeakKeyDictionary()
    )
    pre_forward = DistributedDataParallel._pre_forward
    post_forward = DistributedDataParallel._post_forward

    @functools.wraps(pre_forward)
    def before(model: DistributedDataParallel, *inputs: Any, **kwargs: Any) -> Any:
        if not _is_bypassed(model):
            return pre_forward(model, *inputs, **kwargs)
        if model not in reductions:
            reductions[model] = _Reduction(model, collectives, fetch, record_results)
        if _reduces(model):
            reductions[model].expect_none_left()
        with _reducer_at_rest(model):
            return pre_forward(model, *inputs, **kwargs)

    @functools.wraps(post_forward)
    def after(model: DistributedDataParallel, output: Any) -> Any:
        if not _is_bypassed(model):
            return post_forward(model, output)
        reduces = _reduces(model)
        with _reducer_at_rest(model):
            output = post_forward(model, output)
        # DDP's own condition for the next forward pass to send buffers.
        model.require_forward_param_sync = reduces
        if reduces:
            reductions[model].arm(output)
        return output

    DistributedDataParallel._pre_forward = before
    DistributedDataParallel._post_forward = after


def _is_bypassed(model: DistributedDataParallel) -> bool:
    return not (
        model._comm_hooks
        or model.static_graph
        or model.mixed_precision is not None
        or model._delay_all_reduce_params
        or model._use_python_reducer
        or model._join_config.enable
        or dist.get_backend(model.process_group) != "xla"
        or model.process_group.size() != dist.get_world_size()
    )


def _reduces(model: DistributedDataParallel) -> bool:
    return torch.is_grad_enabled() and bool(model.require_backward_grad_sync)


@contextlib.contextmanager
def _reducer_at_rest(model: DistributedDataParallel) -> Iterator[None]:
    """Context in which the Reducer expects no gradients and does nothing, as in `no_sync()`."""
    required = model.require_backward_grad_sync
    model.require_backward_grad_sync = False
    try:
        yield
    finally:
        model.require_backward_grad_sync = required


class _Reduction:
    """Replacement for the Reducer of one model.

    Args:
        model: referenced weakly, because the model's parameters hold this object.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        collectives: Collectives,
        fetch: Fetch,
        record_results: RecordResults,
    ) -> None:
        self._collectives = collectives
        self._fetch = fetch
        self._bring = record_results
        self._may_be_unused = model.find_unused_parameters
        names = {id(parameter): name for name, parameter in model.module.named_parameters()}
        self._parameters = [p for p in model._module_parameters if p.requires_grad]
        self._names = [names.get(id(parameter), "?") for parameter in self._parameters]
        # Used by the last forward pass on this replica.
        self._used = [False] * len(self._parameters)
        self._waiting: set[int] = set()  # used parameters whose gradient is missing
        self._armed = False
        self._begun = False
        for index, parameter in enumerate(self._parameters):
            parameter.register_post_accumulate_grad_hook(functools.partial(self._seen, index))

    def arm(self, output: Any) -> None:
        """Average in the next backward pass, once every gradient is there.

        Args:
            output: the result of the forward pass; its graph shows which parameters are unused.
        """
        self._used = [True] * len(self._parameters)
        if self._may_be_unused:
            reached = _reached_from(output)
            self._used = [id(parameter) in reached for parameter in self._parameters]
        self._waiting = {index for index, used in enumerate(self._used) if used}
        self._armed, self._begun = True, False
        if not self._waiting:
            # This replica uses no parameter, but the others still wait for it.
            self._finish()

    def expect_none_left(self) -> None:
        """Raise like DDP if the previous backward pass did not reach every parameter.

        Raises:
            RuntimeError: with the first sentences of DDP's message.
        """
        if self._armed and self._begun:
            left = ", ".join(self._names[index] for index in sorted(self._waiting))
            raise RuntimeError(
                "Expected to have finished reduction in the prior iteration before starting a new one. "
                "Parameters that received no gradient (find_unused_parameters=True averages without "
                f"them): {left}"
            )

    def _seen(self, index: int, _: torch.Tensor) -> None:
        if not self._armed:
            return
        if index not in self._waiting:
            # Several backward passes within one, as from reentrant checkpoints of a shared
            # parameter.
            raise RuntimeError(f"Expected to mark a variable ready only once: {self._names[index]}")
        self._begun = True
        self._waiting.discard(index)
        if not self._waiting:
            # Like the Reducer: at the end of the pass that computed the last gradient.
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)

    def _finish(self) -> None:
        self._armed = False
        used = self._used_by_any() if self._may_be_unused else self._used
        reduced = [p for p, anywhere in zip(self._parameters, used, strict=True) if anywhere]
        for parameter in reduced:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self._average([parameter.grad for parameter in reduced if parameter.grad is not None])

    def _used_by_any(self) -> list[bool]:
        """Return for each parameter whether any replica computed a gradient for it."""
        bits = torch.tensor(self._used, dtype=torch.uint8)
        (anywhere,) = self._collectives.all_reduce("max", [bits], 1.0, [])
        return [bool(bit) for bit in anywhere.tolist()]

    def _average(self, gradients: Sequence[torch.Tensor]) -> None:
        by_dtype: dict[torch.dtype, list[torch.Tensor]] = defaultdict(list)
        for gradient in gradients:
            by_dtype[gradient.dtype].append(gradient)
        with torch.no_grad():
            for same in by_dtype.values():
                self._average_flat(same)

    def _average_flat(self, gradients: Sequence[torch.Tensor]) -> None:
        values = self._fetch(gradients)
        flat = torch.cat([value.reshape(-1) for value in values])
        flat.mul_(1.0 / self._collectives.size)
        (total,) = self._collectives.all_reduce("sum", [flat], 1.0, [])
        pieces = total.split([value.numel() for value in values])
        for gradient, piece in zip(gradients, pieces, strict=True):
            result = piece.view(gradient.shape).to(gradient.device)
            self._bring([result])
            gradient.copy_(result)


def _reached_from(output: Any) -> set[int]:
    """Return the ids of the leaves that the graphs of the tensors in `output` lead to, like DDP."""
    waiting = [tensor.grad_fn for tensor in _find_tensors(output) if tensor.grad_fn is not None]
    seen, leaves = set(waiting), set()
    while waiting:
        node = waiting.pop()
        if (leaf := getattr(node, "variable", None)) is not None:
            leaves.add(id(leaf))
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return leaves
