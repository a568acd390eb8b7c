"""Existing inputs: files of tensors, folders of files, or a data loader of the user's."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from converters.checkpoint import open_checkpoint
from converters.errors import ConversionError
from converters.model import imported, named_object
from migrate.parity.ground.errors import InputsError
from migrate.parity.inputs.spec import InputFunction, Spec, Stored

Array = np.ndarray[Any, Any]
_SUFFIXES = (".safetensors", ".npz", ".npy", ".pt", ".pth", ".bin")
_SAVE = "save a dict of tensors by argument name, as safetensors"


def given_inputs(specs: Sequence[Spec], count: int) -> tuple[list[dict[str, Array]], list[str]]:
    """Read inputs from files or a function, at most `count`; also return a line on each source.

    Raises:
        InputsError: an input cannot be read or used.
    """
    functions = [spec for spec in specs if isinstance(spec, InputFunction)]
    if functions:
        return _from_function(functions[0], count)
    files = [file for spec in specs if isinstance(spec, Stored) for file in _files(spec.path)]
    inputs, described = [], []
    for file in files[:count]:
        tensors, left_out = read_tensors(file)
        inputs.append(tensors)
        described.append(f"{file.name}: {_shapes(tensors)}{left_out}")
    if len(files) > count:
        described.append(f"the first {count} of {len(files)} files")
    return inputs, described


def read_tensors(file: Path) -> tuple[dict[str, Array], str]:
    """Read the tensors of a file by argument name; also return what was left out.

    Raises:
        InputsError: the file cannot be read, or holds no named tensors. Nothing in it was executed.
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
    files = sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES and file.is_file())
    if not files:
        raise InputsError(f"{path}: has no {', '.join(_SUFFIXES)} file", _SAVE)
    return files


def _from_function(spec: InputFunction, count: int) -> tuple[list[dict[str, Array]], list[str]]:
    try:
        with imported(spec.shown, spec.location) as module:
            function = named_object(module, spec.location, spec.name)
            # Draw the inputs while the user's folder is importable: loaders import lazily.
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
    inputs = [arguments(item, f"{spec.shown}, input {number}") for number, item in enumerate(items)]
    return inputs, [f"{spec.shown}: {len(inputs)} inputs, the first {_shapes(inputs[0])}"]


def _items(loader: Any) -> Iterator[Any]:
    if (
        isinstance(loader, Mapping)
        or hasattr(loader, "__array__")
        or not isinstance(loader, Iterable)
    ):
        raise TypeError(
            f"the function returns a {type(loader).__name__}, not an iterable of inputs"
        )
    return iter(loader)


def arguments(item: Any, where: str) -> dict[str, Array]:
    """Arguments in what a data loader returns for one input; None among them is left out.

    Raises:
        InputsError: a part of it is no array of numbers.
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
    """Convert an array to the dtype in which it is kept: float32 for floating values."""
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
