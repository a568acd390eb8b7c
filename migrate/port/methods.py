"""Further methods of a model that are ported beside its forward: their inputs, and the proof of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from converters.graph.merging.methods import as_forward, require_method
from migrate.parity.ground.errors import InputsError
from migrate.parity.ground.settings import SideSettings
from migrate.parity.inputs.make import make_inputs
from migrate.parity.inputs.set import InputSet, write_inputs
from migrate.port.original import SEED, OriginalInputs, OriginalModel
from migrate.port.proof import Arrays, ProofComparison, asked


def specs_by_method(
    specs: Sequence[str], methods: Sequence[str]
) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """Split `--inputs` into those of the forward and those of each method: `decode:z=float32[2,16]`."""
    own: list[str] = []
    others: dict[str, list[str]] = {name: [] for name in methods}
    for spec in specs:
        name, _, rest = spec.partition(":")
        if rest and name in others:
            others[name].append(rest)
        else:
            own.append(spec)
    return tuple(own), {name: tuple(method_names) for name, method_names in others.items()}


def inputs_of_methods(
    original: OriginalModel,
    original_inputs: OriginalInputs,
    specs: Mapping[str, Sequence[str]],
    count: int,
    folder: Path,
    api: str = "linen",
) -> dict[str, InputSet]:
    """Make the inputs of each method; the model's method must take them.

    Args:
        original: the model.
        original_inputs: what its forward is given.
        specs: method → what the user says of its inputs; nothing: they are those of the forward, by name.
        count: how many inputs to make.
        folder: folder for the inputs.
        api: API of Flax.

    Raises:
        GraphError: the model has no such method.
        InputsError: nothing says what its inputs are, or it takes others.
        ParityError: it raises; the line names the place.
    """
    for name in specs:
        require_method(original_inputs.model, name, api)
    return {
        name: _inputs(original, original_inputs, name, own, count, folder / name)
        for name, own in specs.items()
    }


def _inputs(
    original: OriginalModel,
    original_inputs: OriginalInputs,
    method: str,
    specs: Sequence[str],
    count: int,
    folder: Path,
) -> InputSet:
    import torch

    from migrate.parity.sides.torch.call import call, parameters

    shown = f"{original.target.shown}, method {method}"
    with as_forward(original_inputs.model, method):
        takes = parameters(original_inputs.model)
        if specs:
            method_inputs = make_inputs(specs, count, SEED, folder)
        else:
            method_inputs = _of_forward(original_inputs.inputs, takes, method, shown, folder)
        names = [takes[int(name)][0] if name.isdecimal() else name for name in method_inputs.names]
        if names != list(method_inputs.names):
            arrays: list[Mapping[str, Any]] = [
                dict(zip(names, method_inputs[number].values(), strict=True))
                for number in range(method_inputs.count)
            ]
            method_inputs = write_inputs(folder / "named", arrays, method_inputs.described)
        with torch.no_grad():
            call(original_inputs.model, original_inputs.model, tensors_of(method_inputs[0]), shown)
    return method_inputs


def _of_forward(
    inputs: InputSet, takes: Sequence[tuple[str, bool]], method: str, shown: str, folder: Path
) -> InputSet:
    """The forward's inputs, where the method has arguments of these names."""
    if not takes:
        raise InputsError(f"{shown}: takes no tensors", "let it take tensors as arguments")
    needed = [name for name, required in takes if required]
    names = [name for name, _ in takes if name in inputs.names]
    if not names or not set(needed) <= set(names):
        unknown = [name for name in needed if name not in names] or [name for name, _ in takes[:1]]
        example = f"'{method}:{unknown[0]}=float32[2,16]'"
        raise InputsError(
            f"{shown}: input shapes are unknown ({', '.join(unknown)})",
            f"pass them: --inputs {example}",
        )
    arrays: list[Mapping[str, Any]] = [
        {name: inputs[number][name] for name in names} for number in range(inputs.count)
    ]
    return write_inputs(folder, arrays)


def tensors_of(arrays: Arrays) -> dict[str, Any]:
    """An input as torch takes it."""
    import torch

    from migrate.parity.sides.torch.call import tensors

    return tensors(arrays, torch.device("cpu"), SideSettings())


def asked_of_method(
    model: Any, method: Any, inputs: InputSet, takes: Callable[[Arrays], bool], trains: bool
) -> list[ProofComparison]:
    """The comparisons of a method: in float32, its gradients, training mode, other sizes of free axes.

    Args:
        model: the original in float32.
        method: method of the port.
        inputs: the inputs, as given.
        takes: whether a call of the original takes an input at all.
        trains: whether the port computes otherwise in training.
    """
    with as_forward(model, method.name):
        cases = list(asked(inputs, method.inputs, takes, trains))
    wanted = [case for case in cases if case.precision == "highest"]
    return [replace(case, name=f"{method.name}: {case.name}", layers=False) for case in wanted]
