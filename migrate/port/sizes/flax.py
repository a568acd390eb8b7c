"""A port at the sizes of another instance: its weights through the port's own mapping, its outputs."""

from __future__ import annotations

import importlib.util
import secrets
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from migrate.port.sizes.instance import Array, Arrays, flat, quiet
from migrate.port.weights import CONSTANTS, MAPPING, PARAMS

_CONVERTED = "weights.safetensors"


class PortRefusesError(Exception):
    """The port does not run at these sizes; the text says why in one line."""


@contextmanager
def package_of(folder: Path) -> Iterator[Any]:
    """The package in the folder of a port."""
    name = f"_port_{secrets.token_hex(8)}"
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    package = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(package)
        yield package
    finally:
        for one in [one for one in sys.modules if one == name or one.startswith(f"{name}.")]:
            del sys.modules[one]


def outputs_of(
    package: Any,
    folder: Path,
    names: tuple[str, str],
    settings: Mapping[str, Any],
    module: Any,
    inputs: Arrays,
    work: Path,
    method: tuple[str, Arrays] | None = None,
) -> list[Array]:
    """What a port gives at other sizes, with the weights of the original at these.

    Args:
        package: of the port.
        folder: of the port.
        names: of its model's class, and of its configuration's.
        settings: the sizes.
        module: the original at these.
        inputs: what both are given.
        work: for the weights.
        method: a further method, and what it is given; None: the forward.

    Raises:
        PortRefusesError: its classes, its mapping or its configuration refuse them.
    """
    import jax

    try:
        config = getattr(package, names[1])(**settings)
        arrays = {name: _narrow(array) for name, array in inputs.items()}
        cpu = jax.devices("cpu")[0]
        with quiet(), jax.default_device(cpu), jax.default_matmul_precision("highest"):
            variables: dict[str, Any] = {}
            if (folder / PARAMS).exists():
                file = _converted(folder, module, work)
                shapes = {
                    name: jax.ShapeDtypeStruct(one.shape, one.dtype) for name, one in arrays.items()
                }
                variables = package.load_params(file, config, **shapes)
            model = getattr(package, names[0])(config)
            options = {"xla_backend_optimization_level": 0}
            apply = model.apply
            if method is not None:
                apply = partial(model.apply, method=method[0])
                arrays = {name: _narrow(array) for name, array in method[1].items()}
            program = jax.jit(apply).lower(variables, **arrays)
            found = program.compile(options)(variables, **arrays)
            return [np.asarray(one) for one in flat(found)]
    except (
        Exception
    ) as error:  # whatever Flax, JAX or the mapping raise at a size that does not fit
        text = str(error).replace(f"{work}/{_CONVERTED}: ", "").replace(f"{folder}/", "")
        said = " ".join(text.split())
        raise PortRefusesError(f"{type(error).__name__}: {said[:160]}") from error


def _converted(folder: Path, module: Any, work: Path) -> Path:
    """The weights of the original, by the mapping of the port."""
    import torch
    from safetensors.numpy import load_file

    from converters.conversion import convert
    from converters.mapping import Outcome
    from converters.mapping.file import load_mapping

    work.mkdir(parents=True, exist_ok=True)
    saved, made = work / "weights.pt", work / _CONVERTED
    torch.save(module.state_dict(), saved)
    computed = any(one.outcome is Outcome.REFUSED for one in load_mapping(folder / MAPPING).rules)
    how: dict[str, Any] = {"model": module} if computed else {"mapping": folder / MAPPING}
    constants = folder / CONSTANTS
    extra = load_file(constants) if constants.exists() else None
    convert(saved, output=made, overwrite=True, extra=extra, **how)
    return made


def _narrow(array: Array) -> Array:
    """An array with JAX's 32 bits."""
    wide = {"float64": "float32", "int64": "int32", "uint64": "uint32", "complex128": "complex64"}
    return array.astype(wide.get(array.dtype.name, array.dtype.name))
