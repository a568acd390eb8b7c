"""How a model computes while it is trained, beside evaluation: whether it differs, and both recordings."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from converters.graph.recording.trace import plain
from converters.single_draws import Decisions, DrawError, draws_compared
from converters.slow_paths import slow_paths

# Layers that have running statistics: in training they normalise with the batch's.
_BATCH_NORM = torch.nn.modules.batchnorm._BatchNorm


def trains_otherwise(module: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> bool:
    """Whether a model computes something else in training than in evaluation.

    Both are run once, eagerly, and the operators that ran and the outputs are compared. Layers that are left
    out by chance are another computation.

    Raises:
        DrawError: a branch of Python rests on a random number, or one is drawn by Python or numpy.
    """
    with preserved(module):
        module.train()
        trained, outputs, decides = _ran(module, inputs)
        module.eval()
        evaluated, expected, _ = _ran(module, inputs)
        return decides or trained != evaluated or not all(map(_equal, outputs, expected))


def _equal(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor):
        return True
    return one.shape == other.shape and torch.allclose(one, other, 0, 0, equal_nan=True)


def _ran(
    module: torch.nn.Module, inputs: Mapping[str, torch.Tensor]
) -> tuple[list[str], list[Any], bool]:
    """The operators that a model runs, its outputs, and whether it leaves out layers by chance."""
    before = random.getstate(), _numpy_state()
    with (
        slow_paths(),
        torch.no_grad(),
        warnings.catch_warnings(),
        draws_compared() as decisions,
        _Listed() as seen,
    ):
        warnings.simplefilter("ignore")
        outputs = pytree.tree_leaves(plain(module(**inputs)))
    if (random.getstate(), _numpy_state()) != before:
        raise DrawError("it draws random numbers by Python or numpy, which no recording has")
    return seen.names, outputs, bool(decisions.rates)


def _numpy_state() -> Any:
    return str(np.random.get_state())


class _Listed(TorchDispatchMode):
    """The operators that run, with the numbers that they are given."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [one for one in args if isinstance(one, bool | int | float)]
        self.names.append(f"{func} {plain}")
        return func(*args, **(kwargs or {}))


@contextmanager
def preserved(module: torch.nn.Module) -> Iterator[None]:
    """Put back what a run in training changes: modes, buffers, the states of random numbers."""
    before, modes = module.training, [(one, one.training) for one in module.modules()]
    buffers = [(one, one.detach().clone()) for one in module.buffers()]
    states = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            yield
    finally:
        module.train(before)  # some do more than to note it
        for one, mode in modes:
            one.training = mode
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
        random.setstate(states[0])
        np.random.set_state(states[1])


@contextmanager
def training(
    module: torch.nn.Module, inputs: Mapping[str, torch.Tensor], decisions: Decisions
) -> Iterator[set[str]]:
    """A model in training, its batch normalisations as they are in evaluation; gives the paths of these.

    What such a layer does in training is known; recorded it would change its statistics in place.

    Args:
        module: the model.
        inputs: what it is called with.
        decisions: which layers are left out by chance; afterwards those of the last forward pass.
    """
    with preserved(module):
        module.train()
        statistics = _with_statistics_of_the_batch(module, inputs)
        with ExitStack() as stack:
            for path in statistics:
                stack.enter_context(_in_evaluation(module.get_submodule(path)))
            begin = module.register_forward_pre_hook(lambda *_: decisions.restart())
            stack.callback(begin.remove)
            stack.enter_context(draws_compared(decisions))
            yield statistics


def _with_statistics_of_the_batch(
    module: torch.nn.Module, inputs: Mapping[str, torch.Tensor]
) -> set[str]:
    """Paths of the normalisations that are in training when they are called: a model may keep some out."""
    found: set[str] = set()

    def note(path: str, one: torch.nn.Module) -> None:
        if one.training and getattr(one, "track_running_stats", False):
            found.add(path)

    def known(one: torch.nn.Module) -> bool:
        own = _BATCH_NORM.forward, torch.nn.SyncBatchNorm.forward
        return isinstance(one, _BATCH_NORM) and type(one).forward in own

    with ExitStack() as stack, slow_paths(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stack.enter_context(draws_compared())
        for path, one in module.named_modules():
            if known(one):
                hook = one.register_forward_pre_hook(lambda m, a, path=path: note(path, m))
                stack.callback(hook.remove)
        if any(map(known, module.modules())):
            module(**inputs)
    return found


@contextmanager
def _in_evaluation(layer: torch.nn.Module) -> Iterator[None]:
    """A layer whose forward runs in evaluation, whatever mode it is given meanwhile."""
    hook = layer.register_forward_pre_hook(lambda m, a: setattr(m, "training", False), prepend=True)
    layer.training = False
    try:
        yield
    finally:
        hook.remove()
