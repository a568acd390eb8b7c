"""Build the original: constructor arguments, inputs and outputs."""

from __future__ import annotations

import contextlib
import copy
import io
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np

from converters.graph.recording.trace import plain
from migrate.parity.ground.draws import Draws
from migrate.parity.sides.torch.draws import ComparisonDraws
from migrate.port.sizes.construction import Construction
from migrate.port.sizes.leaves import Leaf, Value, change
from migrate.port.weights import stir

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]
SEED = 0
# Parameters of a model whose products are too small to be divided among threads.
_SMALL = 2_000_000
# Parameters of a model that is built whatever its original's are, and factor for those above: four times a
# `dim_mul` of 2 over four stages gives layers of 512 times their width, which no machine holds.
_MOST, _TIMES = 100_000_000, 2


@dataclass(frozen=True)
class Axis:
    """An axis of an input that the recording has fixed."""

    name: str
    axis: int


@dataclass(frozen=True)
class SizeChange:
    """New value of a number or of input axes, with the changes that it needs.

    Attributes:
        leaf: the number; None: only axes.
        value: what it becomes.
        axes: input axes and their sizes.
    """

    leaf: Leaf | None
    value: Value
    axes: Mapping[Axis, int]

    @property
    def name(self) -> str:
        """The name for a reader."""
        if self.leaf is not None:
            return self.leaf.name
        return ", ".join(f"axis {axe.axis} of {axe.name}" for axe in self.axes)


@dataclass(frozen=True)
class SizedModel:
    """A model at one size, with its inputs and outputs.

    Attributes:
        module: the model, in evaluation mode.
        arguments: arguments of its constructor.
        inputs: what it was given.
        outputs: its output tensors, in the order of the recording.
    """

    module: Any
    arguments: Mapping[str, Any]
    inputs: Arrays
    outputs: Any


def built(
    construction: Construction,
    inputs: Arrays,
    changes: tuple[SizeChange, ...],
    shown: str,
    seed: int = SEED,
    *,
    computes: bool = True,
) -> SizedModel | None:
    """An instance with these changes, or None if the original refuses it, or is too big with them.

    Args:
        construction: construction of the ported model.
        inputs: what that is given.
        changes: what is to be other.
        shown: the model, for messages.
        seed: seed of its weights.
        computes: whether its outputs are needed; otherwise they are tensors of torch that have shapes alone,
            where the original runs without numbers.
    """
    import torch

    if any(step.leaf is not None for step in changes) and _is_too_big(construction, changes):
        return None
    # What a run without numbers leaves in a model, where it fails, is in no other one.
    for running in (run,) if computes else (_shaped, run):
        try:
            arguments = _changed(construction, changes)
            arrays = inputs
            for step in changes:
                arrays = resized(arrays, step.axes)
            with quiet(), torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                module = construction.build(arguments)
                if not isinstance(module, torch.nn.Module):
                    return None
                module = module.float().eval()
                outputs = running(module, arrays)
        except Exception:  # whatever a constructor or a forward of the user's raises
            continue
        if running is _shaped or _is_finite(outputs):
            return SizedModel(module, arguments, arrays, outputs)
    return None


def _changed(construction: Construction, changes: tuple[SizeChange, ...]) -> dict[str, Any]:
    """The arguments of a constructor with these changes."""
    arguments = construction.copied()
    for step in changes:
        if step.leaf is not None:
            change(arguments, step.leaf, step.value)
    return arguments


def _is_too_big(construction: Construction, changes: tuple[SizeChange, ...]) -> bool:
    """Whether a model with these changes has so many parameters that building it may take all memory."""
    count = _parameters(construction, changes)
    return count > _MOST and count > _TIMES * _parameters(construction, ())


def _parameters(construction: Construction, changes: tuple[SizeChange, ...]) -> int:
    """Parameters of a model with these changes, built without its numbers; 0 where that is not possible."""
    import torch

    try:
        with quiet(), torch.random.fork_rng(devices=[]), torch.device("meta"):
            module = construction.build(_changed(construction, changes))
        return sum(parameter.numel() for parameter in module.parameters())
    except (
        Exception
    ):  # it reads a number of a weight, or refuses the arguments: it is built in full
        return 0


def alive(instance: SizedModel, stirring: bool = True) -> SizedModel:
    """The instance with weights under which its parts count.

    A constructor's weights hide much: gates of zeros, and products so small that an attention looks at
    everything alike.
    """
    import torch

    before = copy.deepcopy(instance.module.state_dict())
    with torch.no_grad(), quiet():
        if stirring:
            stir(instance.module, SEED)
        for value in instance.module.parameters():
            if value.dim() > 1 and value.is_floating_point() and value.numel() > 1:
                spread = float(value.std())
                target = 1.0 / float(value[0].numel()) ** 0.5
                if 0 < spread < target:
                    value.mul_(target / spread)
        outputs = run(instance.module, instance.inputs)
    if _is_finite(outputs):
        return replace(instance, outputs=outputs)
    instance.module.load_state_dict(before)
    return instance


def run(module: Any, inputs: Arrays, dtype: Any = None) -> Any:
    """Return the outputs of a module for inputs, as numpy arrays in the order of the recording.

    A module that draws is given the draws that the port is given too.
    """
    import torch

    tensors = as_tensors(inputs, dtype)
    with torch.no_grad():
        before = torch.get_rng_state()
        outputs = module(**tensors)
        if not torch.equal(before, torch.get_rng_state()):
            with ComparisonDraws(Draws(SEED)):
                outputs = module(**tensors)
        return [_array(output) for output in flat(plain(outputs))]


def _shaped(module: Any, inputs: Arrays) -> Any:
    """Outputs of a module without their numbers.

    Raises:
        Exception: the module reads a number, or it keeps a tensor of this run.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        tensors = {name: mode.from_tensor(x) for name, x in as_tensors(inputs).items()}
        outputs = [*flat(plain(module(**tensors)))]
    held = (value for part in module.modules() for value in vars(part).values())
    if any(isinstance(x, FakeTensor) for x in (*module.parameters(), *module.buffers(), *held)):
        raise ValueError("a tensor without numbers is kept")
    return outputs


def as_tensors(inputs: Arrays, dtype: Any = None) -> dict[str, Any]:
    """Inputs as torch takes them, with 64 bits for integers."""
    import torch

    return {name: _tensor(array, dtype or torch.float32) for name, array in inputs.items()}


def flat(value: Any) -> Iterator[Any]:
    """The tensors or arrays in nested tuples, lists and mappings, by the order of their keys."""
    if is_dataclass(value):  # of the port: the original's is a mapping by now
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        for name in sorted(value):
            yield from flat(value[name])
    elif isinstance(value, list | tuple):
        for output in value:
            yield from flat(output)
    elif hasattr(value, "shape"):
        yield value


def _tensor(array: Array, dtype: Any) -> Any:
    import torch

    if array.dtype.kind in "iu":
        return torch.from_numpy(array.astype(np.int64))
    if array.dtype.kind == "f":
        return torch.tensor(array.astype(np.float64)).to(dtype)
    return torch.tensor(array)


def _array(tensor: Any) -> Array:
    import torch

    tensor = tensor.detach()
    wide = tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
    array: Array = wide.resolve_conj().numpy()
    return array


def _is_finite(outputs: list[Array]) -> bool:
    """Whether there is something to compare."""
    return bool(outputs) and any(
        bool(np.isfinite(output).any()) for output in outputs if output.size
    )


def resized(arrays: Arrays, axes: Mapping[Axis, int]) -> dict[str, Array]:
    """Inputs with so many entries along these axes: the first, or all of them again and again."""
    changed = dict(arrays)
    for axis, size in axes.items():
        if axis.name in changed:
            places = np.arange(size) % changed[axis.name].shape[axis.axis]
            changed[axis.name] = np.take(changed[axis.name], places, axis=axis.axis)
    return changed


@contextlib.contextmanager
def threads_for(module: Any) -> Iterator[None]:
    """Use one thread for a small model, for which further torch threads would only wait."""
    import torch

    before = torch.get_num_threads()
    if sum(parameter.numel() for parameter in module.parameters()) < _SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide the output and warnings of the user's code."""
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield
