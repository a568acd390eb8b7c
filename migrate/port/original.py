"""Load the original: the torch module that the user named, with its weights and inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from converters.graph.starts.watch import watching
from migrate.parity.ground.errors import InputsError, ParityError
from migrate.parity.ground.settings import SideSettings
from migrate.parity.inputs.make import make_inputs
from migrate.parity.inputs.set import InputSet
from migrate.parity.sides.load import has_weights, load_runner, untrained
from migrate.parity.sides.target import Target, parse_target
from migrate.port.errors import PortError
from migrate.port.sizes.construction import Construction, constructions

if TYPE_CHECKING:
    import torch

    from migrate.parity.sides.torch.runner import TorchRunner

SEED = 0
# What a port can bring to float32, or keep; with others (quantized, float8) it has no way to compute.
_DTYPES = (
    *("float64", "float32", "bfloat16", "float16", "complex64", "complex128", "bool"),
    *("int64", "int32", "int16", "int8", "uint8"),
)
_SHOWN = 5


@dataclass(frozen=True)
class OriginalModel:
    """A torch module that was built.

    Attributes:
        target: the target, as the user named it.
        runner: the original, as a side of `migrate parity`.
        checkpoint: the weights that the user named, or those of its folder; None: as its factory made them.
        construction: the call of its constructor; None: it was not seen.
        starts: how its factory was seen to initialize it; None: that could not be watched.
        arguments: what the constructors of its modules were seen to be called with: path → name → value.
    """

    target: Target
    runner: TorchRunner
    checkpoint: Path | None
    construction: Construction | None = None
    starts: Any = None
    arguments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def module(self) -> torch.nn.Module:
        """The module itself, in evaluation mode."""
        return self.runner.module

    @property
    def folder(self) -> Path | None:
        """The Hugging Face folder that it comes from; None: a factory."""
        path = Path(self.target.spec)
        return path if path.is_dir() else None

    def fresh(self, seed: int) -> torch.nn.Module | None:
        """The model as its factory makes it after another seed; None: the user named a module, no factory."""
        if self.folder is not None:
            module: torch.nn.Module = untrained(self.folder, seed)
            return module
        with _own_seeds_moved(seed):
            runner, _ = load_runner(self.target, seed)
        again: Any = runner
        return None if again.module is self.module else again.module

    @property
    def weights(self) -> str:
        """Origin of its weights, in words."""
        if self.checkpoint is not None:
            return f"from {self.checkpoint}"
        seeded = f"random weights of torch.manual_seed({SEED})"
        return (
            f"{seeded}, not trained; --weights FILE brings trained weights"
            if self.folder is None
            else f"{seeded}: the folder has none"
        )


class _Moved:
    """A generator whose seeds are moved by a number; in all else the generator itself."""

    def __init__(self, generator: Any, by: int) -> None:
        self._generator, self._by = generator, by

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)

    def manual_seed(self, seed: int) -> Any:
        """Seed the generator with another seed than `seed`."""
        return self._generator.manual_seed(seed + self._by)


@contextlib.contextmanager
def _own_seeds_moved(by: int) -> Iterator[None]:
    """Let a factory that seeds torch, numpy or Python's random draw other numbers than it does.

    With its own seeds, each new model would have the same weights.
    """
    import random

    import numpy as np
    import torch

    def moved(seed: Callable[..., None]) -> Callable[..., None]:
        def moved_seed(value: Any = None, *args: Any, **named: Any) -> None:
            seed(value + by if isinstance(value, int) else value, *args, **named)

        return moved_seed

    # The function `torch.manual_seed`, under whatever name a factory has it, asks this global.
    generator = torch.random.default_generator
    first = random.seed, np.random.seed
    torch.random.default_generator = _Moved(generator, by)
    random.seed, np.random.seed = moved(random.seed), moved(np.random.seed)
    try:
        yield
    finally:
        torch.random.default_generator = generator
        random.seed, np.random.seed = first


def load_original(text: str, weights: Path | None, work: Path) -> OriginalModel:
    """Build the model that the user named, and load the weights of a checkpoint, if one is named.

    Raises:
        PortError: it is no torch module, or holds tensors of dtypes that JAX does not compute with.
        TargetError: there is no such thing, or its factory raised.
        ParityError, ConversionError: the weights do not fit.
    """
    target = parse_target(text)
    if target.kind not in ("", "torch"):
        raise PortError(
            f"{text}: {target.kind}: names no torch module",
            "name file.py:Class, pkg.mod:factory or a Hugging Face folder",
        )
    with constructions() as seen, watching() as watch:
        runner, _ = load_runner(target, SEED)
    if runner.kind != "torch":
        if runner.kind == "jax":
            raise PortError(
                f"{text}: neither a torch module nor a factory without arguments",
                "name a class of a module, or a function without arguments that returns a module",
            )
        raise PortError(f"{text}: is a {runner.kind} module already", "name a torch module")
    program: Any = runner
    _require_dtypes(program.module, text)
    construction, arguments = seen.of(program.module), seen.arguments(program.module)
    folder = Path(target.spec)
    if folder.is_dir() and has_weights(folder):
        starts = _untrained_starts(folder)
        if weights is None:
            return OriginalModel(target, program, folder, construction, starts, arguments)
    else:
        starts = watch.starts(program.module)
    if weights is not None:
        from migrate.parity.align.weight_map import load_file
        from migrate.parity.sides.side import InProcess

        load_file(InProcess(program, work), weights, work)
    return OriginalModel(target, program, weights, construction, starts, arguments)


def _untrained_starts(folder: Path) -> Any:
    """Return the initial state of the model of a folder without the folder's weights, or None."""
    try:
        with watching() as watch:
            module = untrained(folder, SEED)
    except ParityError:
        return None
    starts = watch.starts(module)
    for tensor in module.parameters():
        tensor.data = tensor.data.new_empty(0)  # its values are not needed any more
    return starts


def _require_dtypes(module: torch.nn.Module, shown: str) -> None:
    odd = [
        f"{name} is {str(tensor.dtype).removeprefix('torch.')}"
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]
        if str(tensor.dtype).removeprefix("torch.") not in _DTYPES
    ]
    if odd:
        more = f" and {len(odd) - _SHOWN} more" if len(odd) > _SHOWN else ""
        raise PortError(
            f"{shown}: {', '.join(odd[:_SHOWN])}{more}: a port cannot compute with these dtypes",
            "port the model before quantization",
        )


@dataclass(frozen=True)
class OriginalInputs:
    """The inputs of a port.

    Attributes:
        inputs: all of them, by the names of the forward pass's parameters.
        model: the module in float32, in evaluation mode.
        notes: inputs that were left out.
    """

    inputs: InputSet
    model: torch.nn.Module
    notes: tuple[str, ...] = ()

    def tensors(self, arrays: Mapping[str, Any] | None = None) -> dict[str, torch.Tensor]:
        """Return one input as torch tensors: the first, or other values of it."""
        import torch

        from migrate.parity.sides.torch.call import tensors

        return tensors(arrays or self.inputs[0], torch.device("cpu"), SideSettings())


def given_inputs(
    original: OriginalModel, specs: Sequence[str], count: int, folder: Path
) -> OriginalInputs:
    """Make the inputs from the user's specification, or those that the model suggests.

    The model must accept them.

    Raises:
        InputsError: they cannot be made, or the model takes other arguments.
        ParityError: its forward pass raises; the line names the place.
    """
    from migrate.parity.inputs.set import write_inputs
    from migrate.parity.sides.torch.call import call, parameters

    runner, shown = original.runner, original.target.shown
    if specs:
        inputs = make_inputs(specs, count, SEED, folder / "given")
    else:
        inputs = runner.suggest_inputs(count, SEED, folder / "given")
    takes = [name for name, _ in parameters(runner.module)]
    named = {name: _parameter(name, takes, shown) for name in inputs.names}
    if list(named) != list(named.values()):
        arrays: list[Mapping[str, Any]] = [
            {named[name]: array for name, array in inputs[number].items()}
            for number in range(inputs.count)
        ]
        inputs = write_inputs(folder / "named", arrays, inputs.described)
    runner.prepare(SideSettings(), inputs)
    model, _ = runner.variant(SideSettings())
    original_inputs = OriginalInputs(inputs, model)
    import torch

    with torch.no_grad():
        call(model, model, original_inputs.tensors(), shown)
    return _with_numbers(original_inputs, shown, folder / "kept")


def _with_numbers(original_inputs: OriginalInputs, shown: str, folder: Path) -> OriginalInputs:
    """Drop the inputs for which the model gives NaN: they cannot be compared.

    Raises:
        InputsError: it gives NaN for all of them.
    """
    import torch

    from migrate.parity.inputs.set import write_inputs
    from migrate.parity.sides.torch.call import call

    nan: dict[int, str] = {}
    for number in range(original_inputs.inputs.count):
        with torch.no_grad():
            outputs = call(
                original_inputs.model,
                original_inputs.model,
                original_inputs.tensors(original_inputs.inputs[number]),
                shown,
            )
        for path, output in outputs:
            if output.is_floating_point() and bool(output.isnan().any()):
                nan[number] = f"output {path}" if path else "its output"
                break
    if not nan:
        return original_inputs
    names = ", ".join(original_inputs.inputs.names)
    if len(nan) == original_inputs.inputs.count:
        raise InputsError(
            f"{shown}: returns NaN for all {original_inputs.inputs.count} inputs ({nan[0]}): "
            f"the values of {names} do not suit the model",
            "pass realistic inputs (an adjacency matrix, values between 0 and 1, sorted lengths): "
            "--inputs data.py:batches, a file, or --from-script train.py",
        )
    kept: list[Mapping[str, Any]] = [
        original_inputs.inputs[number]
        for number in range(original_inputs.inputs.count)
        if number not in nan
    ]
    numbers = ", ".join(map(str, nan))
    note = (
        f"the original gives NaN for {len(nan)} of {original_inputs.inputs.count} inputs ({numbers}), "
        "which were left out: give inputs that it is made for "
        "(--inputs data.py:batches, a file, or --from-script train.py)"
    )
    return OriginalInputs(
        write_inputs(folder, kept, original_inputs.inputs.described), original_inputs.model, (note,)
    )


def _parameter(name: str, takes: Sequence[str], shown: str) -> str:
    """The parameter that a position names."""
    if not name.isdecimal():
        return name
    if int(name) >= len(takes):
        raise InputsError(
            f"{shown}: has no argument number {name}", f"it takes: {', '.join(takes) or 'nothing'}"
        )
    return takes[int(name)]
