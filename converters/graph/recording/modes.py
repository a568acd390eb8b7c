"""Differences of a model's training from its evaluation, and recordings of both."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from converters.graph.recording.state import State
from converters.graph.recording.trace import plain
from converters.host_draws import HostDraws, all_equal, host_draws, host_states, recorded_draws
from converters.single_draws import Decisions, DrawError, draws_compared
from converters.slow_paths import slow_paths

# Layers with running statistics: in training they normalize with the batch's statistics.
_BATCH_NORM = torch.nn.modules.batchnorm._BatchNorm
# Note on buffers, weights and attributes that a call in evaluation changes.
STATE = "each call changes it in the original, here it stays as the weights have it"
_FEW = 3


@dataclass(frozen=True)
class Comparison:
    """Differences of a model's modes.

    Attributes:
        otherwise: whether training computes something else than evaluation.
        changes: what training alone changes in the model for later calls; "" if nothing.
        notes: what evaluation changes in the model.
        drawn: what Python or numpy draws in training.
    """

    otherwise: bool
    changes: str = ""
    notes: tuple[str, ...] = ()
    drawn: HostDraws = field(default_factory=HostDraws)


def compare_modes(module: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> Comparison:
    """Run a model once in each mode, eagerly, and compare the operators, the outputs and the
    model's state.

    Raises:
        DrawError: a Python branch depends on a random number, or Python or numpy draws a number that is not a
            tensor, or draws in evaluation.
    """
    with preserved(module):
        module.train()
        with _put_back(module):
            drawn = host_draws(module, inputs)
        random_state = torch.get_rng_state()
        with recorded_draws(module, drawn):
            trained, outputs, decides, kept = _ran_from(module, inputs)
        module.eval()
        torch.set_rng_state(random_state)  # what both modes draw is the same
        evaluated, expected, _, always = _ran_from(module, inputs)
    statistics = {
        f"{path}.{name}" if path else name
        for path, layer in module.named_modules()
        if _is_known(layer)
        for name in layer._buffers
    }
    paths = [path for path in kept if path not in always and path not in statistics]
    notes = (f"{', '.join(_shown(always))}: {STATE}",) if always else ()
    return Comparison(
        decides or trained != evaluated or not all_equal(outputs, expected),
        ", ".join(_shown({path: kept[path] for path in paths})),
        notes,
        drawn,
    )


def _shown(changes: Mapping[str, str]) -> list[str]:
    """Up to a few of the changes, each with its line: "mean (net.py:12)"."""
    shown = [f"{path} ({line})" if line else path for path, line in list(changes.items())[:_FEW]]
    more = len(changes) - _FEW
    return [*shown, f"{more} more"] if more > 0 else shown


def _ran_from(
    module: torch.nn.Module, inputs: Mapping[str, torch.Tensor]
) -> tuple[list[str], list[Any], bool, dict[str, str]]:
    """The operators of a call, its outputs, whether it leaves out layers by chance, and its
    changes.

    Each change has its line. An attribute counts as changed if it makes the next call's result
    differ. The module is restored afterwards.
    """
    drawn = torch.get_rng_state()
    with _put_back(module) as state:
        operators, outputs, decides = _ran(module, inputs)
        changed = state.changed()
        if others := () if changed else state.attributes():
            torch.set_rng_state(drawn)
            _, later, _ = _ran(module, inputs)
            if not all_equal(outputs, later):
                changed = others
    return operators, outputs, decides, {path: state.lines.get(path, "") for path in changed}


@contextmanager
def _put_back(module: torch.nn.Module) -> Iterator[State]:
    """Record what calls change in a module, including weights, and restore it, also on failure."""
    state = State(module)
    try:
        with state:
            yield state
    finally:
        state.put_back()


def _ran(
    module: torch.nn.Module, inputs: Mapping[str, torch.Tensor]
) -> tuple[list[str], list[Any], bool]:
    """The operators that a model runs, its outputs, and whether it leaves out layers by chance."""
    before = host_states()
    with (
        slow_paths(),
        torch.no_grad(),
        warnings.catch_warnings(),
        draws_compared() as decisions,
        _Listed() as seen,
    ):
        warnings.simplefilter("ignore")
        outputs = pytree.tree_leaves(plain(module(**inputs)))
    if host_states() != before:
        raise DrawError("it draws random numbers by Python or numpy, which no recording has")
    return seen.names, outputs, bool(decisions.rates)


class _Listed(TorchDispatchMode):
    """Records the operators that run, with their numeric arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [argument for argument in args if isinstance(argument, bool | int | float)]
        self.names.append(f"{func} {plain}")
        return func(*args, **(kwargs or {}))


@contextmanager
def preserved(module: torch.nn.Module) -> Iterator[None]:
    """Restore what a training run changes: modes, buffers, and random states."""
    before, modes = module.training, [(layer, layer.training) for layer in module.modules()]
    state = State(module)
    states = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            yield
    finally:
        module.train(before)  # some modules do more than set the flag
        for layer, mode in modes:
            layer.training = mode
        state.put_back()
        random.setstate(states[0])
        np.random.set_state(states[1])


@contextmanager
def training(
    module: torch.nn.Module,
    inputs: Mapping[str, torch.Tensor],
    decisions: Decisions,
    drawn: HostDraws = HostDraws(),  # noqa: B008 (frozen)
) -> Iterator[set[str]]:
    """Put a model into training mode, with its batch norms in evaluation mode; yields the paths of
    these.

    The training behavior of these layers is known. Recorded, it would change their statistics in
    place.

    Args:
        module: the model.
        inputs: its inputs.
        decisions: which layers are left out by chance; afterwards those of the last forward pass.
        drawn: draws of Python or numpy, which become operators of a recording.
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
            stack.enter_context(recorded_draws(module, drawn))
            yield statistics


def _with_statistics_of_the_batch(
    module: torch.nn.Module, inputs: Mapping[str, torch.Tensor]
) -> set[str]:
    """Paths of the normalizations that are in training mode when called: a model may exclude some."""
    paths: set[str] = set()

    def note(path: str, layer: torch.nn.Module) -> None:
        if layer.training and getattr(layer, "track_running_stats", False):
            paths.add(path)

    with ExitStack() as stack, slow_paths(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stack.enter_context(draws_compared())
        for path, layer in module.named_modules():
            if _is_known(layer):
                hook = layer.register_forward_pre_hook(lambda m, a, path=path: note(path, m))
                stack.callback(hook.remove)
        if any(map(_is_known, module.modules())):
            module(**inputs)
    return paths


def _is_known(layer: torch.nn.Module) -> bool:
    """Whether a layer is one of torch's batch normalizations."""
    own = _BATCH_NORM.forward, torch.nn.SyncBatchNorm.forward
    return isinstance(layer, _BATCH_NORM) and type(layer).forward in own


@contextmanager
def _in_evaluation(layer: torch.nn.Module) -> Iterator[None]:
    """Run a layer's forward in evaluation mode, whatever mode is set meanwhile."""
    hook = layer.register_forward_pre_hook(lambda m, a: setattr(m, "training", False), prepend=True)
    layer.training = False
    try:
        yield
    finally:
        hook.remove()
