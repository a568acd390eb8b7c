"""Find weights that the original's forward does not read. A port has no place for them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from migrate.parity.sides.jax.weights import numberless
from migrate.port.dtypes import narrow_name
from migrate.port.package import package_of, unstacked
from migrate.port.weights import PARAMS


def unused_paths(folder: Path) -> tuple[str, ...]:
    """Paths in the folder's file of weights that its model does not have, with `#` for numbers of layers.

    Empty where the model cannot be made yet: its proof says why.
    """
    if not (folder / PARAMS).exists():
        return ()
    from safetensors import safe_open

    with safe_open(folder / PARAMS, framework="numpy") as file:
        paths = set(file.keys())
    try:
        with package_of(folder) as package:
            wanted = package.model_paths()
    except Exception:  # whatever a source that does not run raises
        return ()
    return tuple(sorted({numberless(path) for path in paths - wanted}))


def notes_on_methods(folder: Path, methods: Mapping[str, Mapping[str, Any]], api: str) -> list[str]:
    """Notes on methods that use weights which the forward does not use.

    Args:
        folder: folder of the port.
        methods: inputs of each method, by its name.
        api: API of Flax. An nnx model makes all its weights.
    """
    if not methods or api == "nnx":
        return []
    import jax

    notes = []
    try:
        with package_of(folder) as package:
            known = package.model_paths()
            for method, arrays in methods.items():
                shapes = {
                    name: jax.ShapeDtypeStruct(array.shape, narrow_name(array.dtype.name))
                    for name, array in arrays.items()
                }
                init = partial(package.build().init, method=method)
                stacked = jax.eval_shape(init, jax.random.key(0), **shapes)
                variables = jax.eval_shape(partial(unstacked, package), stacked)
                leaves = jax.tree_util.tree_leaves_with_path(variables)
                paths = {"/".join(str(step.key) for step in path) for path, _ in leaves}
                if alone := sorted(paths - known):
                    shown = ", ".join(alone[:3]) + f" and {len(alone) - 3} more" * (len(alone) > 3)
                    notes.append(
                        f"method {method} uses weights that the forward does not ({shown}): a file has "
                        f'them, `init` makes them only with method="{method}"'
                    )
    except Exception:  # whatever a source that does not run raises: its proof says why
        return notes
    return notes
