"""Inputs that are there already: files of tensors, folders of them, a data loader of the user's."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from converters.checkpoint import open_checkpoint
from converters.errors import ConversionError
from converters.model import imported
from migrate.parity.ground.errors import InputsError
from migrate.parity.inputs.spec import Loaded, Spec, Stored

Array = np.ndarray[Any, Any]
_SUFFIXES = (".safetensors", ".npz", ".npy", ".pt", ".pth", ".bin")
_SAVE = "save a dict of tensors by argument name, as safetensors"


def given_inputs(specs: Sequence[Spec], count: int) -> tuple[list[dict[str, Array]], list[str]]:
    """The inputs that files or a function give, at most `count`, and a line on each source.

    Raises:
        InputsError: one cannot be read, or is of no use as an input.
    """
    functions = [spec for spec in specs if isinstance(spec, Loaded)]
    if functions:
        return _from_function(functions[0], count)
    files = [file for spec in specs if isinstance(spec, Stored) for file in _files(spec.path)]
    made, described = [], []
    for file in files[:count]:
        tensors, left_out = read_tensors(file)
        made.append(tensors)
        described.append(f"{file.name}: {_shapes(tensors)}{left_out}")
    if len(files) > count:
        described.append(f"the first {count} of {len(files)} files")
    return made, described


def read_tensors(file: Path) -> tuple[dict[str, Array], str]:
    """The tensors in a file, by argument name, and what beside them was left out.

    Raises:
        InputsError: it cannot be read, or holds no tensors by name. Nothing in it was executed.
    """
    if file.suffix == ".npy":
        try:
            loaded = np.load(file, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise InputsError(f"{file}: {_line(error)}", _SAVE) from None
        return {"0": _kept(loaded, str(file))}, ""
    try:
        checkpoint = open_checkpoint(file)
        tensors = {
            key: _kept(np.array(checkpoint.read(key)), f"{file}: {key}") for key in checkpoint.infos
        }
    except ConversionError as error:
        raise InputsError(f"inputs cannot be read: {error.what}", _SAVE) from None
    others = ", ".join(f"{key} ({what})" for key, what in checkpoint.others.items())
    return tensors, f"; left out, no tensor: {others}" if others else ""


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES and file.is_file())
    if not found:
        raise InputsError(f"{path}: has no {', '.join(_SUFFIXES)} file", _SAVE)
    return found


def _from_function(spec: Loaded, count: int) -> tuple[list[dict[str, Array]], list[str]]:
    try:
        with imported(spec.shown, spec.location) as module:
            function = attrgetter(spec.name)(module)
            # Items are taken while the user's folder can be imported from: loaders import as they go.
            items = list(
                itertools.islice(_items(function() if callable(function) else function), count)
            )
    except ConversionError as error:
        raise InputsError(f"--inputs {error.what}", error.remedy) from None
    except (Exception, SystemExit) as error:
        raise InputsError(
            f"--inputs {spec.shown}: failed ({type(error).__name__}: {_line(error)})",
            "write a function without arguments that returns an iterable of dicts, tuples or arrays",
        ) from error
    if not items:
        raise InputsError(f"--inputs {spec.shown}: returns no inputs", "return at least one input")
    made = [arguments(item, f"{spec.shown}, input {number}") for number, item in enumerate(items)]
    return made, [f"{spec.shown}: {len(made)} inputs, the first {_shapes(made[0])}"]


def _items(given: Any) -> Iterator[Any]:
    if isinstance(given, Mapping) or hasattr(given, "__array__") or not isinstance(given, Iterable):
        raise TypeError(f"the function returns a {type(given).__name__}, not an iterable of inputs")
    return iter(given)


def arguments(item: Any, where: str) -> dict[str, Array]:
    """The arguments in what a data loader gives for one input; None among them is left out.

    Raises:
        InputsError: something in it is no array of numbers.
    """
    if isinstance(item, Mapping):
        pairs = [(str(name), value) for name, value in item.items()]
    elif isinstance(item, tuple | list):
        pairs = [(str(position), value) for position, value in enumerate(item)]
    else:
        pairs = [("0", item)]
    return {name: _array(value, f"{where}: {name}") for name, value in pairs if value is not None}


def _array(value: Any, where: str) -> Array:
    if hasattr(value, "detach"):  # a tensor of torch, perhaps on a device, perhaps bfloat16
        value = value.detach().cpu()
        value = value.float().numpy() if value.is_floating_point() else value.numpy()
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise InputsError(
            f"{where} is not an array ({_line(error)})", "give arrays or tensors"
        ) from None
    return _kept(array, where)


def _kept(array: Array, where: str) -> Array:
    """The array as it is kept: floating values as float32, the rest as it is."""
    if array.dtype.kind == "f" or "float" in array.dtype.name:
        return array.astype(np.float32)
    if array.dtype.kind not in "iub":
        raise InputsError(f"{where} holds {array.dtype.name}, no numbers", "give arrays or tensors")
    return array


def _shapes(tensors: Mapping[str, Array]) -> str:
    return ", ".join(
        f"{name} {array.dtype.name}{list(array.shape)}" for name, array in tensors.items()
    )


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or ["no message"])[0][:200]
