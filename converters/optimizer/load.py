"""Loading of a converted optimizer state into optax's structure, and saving such a structure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from converters.errors import OptimizerError
from converters.optimizer.convert import with_arrays
from converters.optimizer.file import OptimizerFile, read_optimizer_file, write_optimizer
from converters.optimizer.names import field_of, normal

Array = np.ndarray[Any, Any]


def load_optimizer(path: Path | str, tx: Any, params: Any) -> Any:
    """Load the optax state in a file of `convert_optimizer`, in the structure of `tx.init(params)`.

    Args:
        path: the file.
        tx: the optax transformation: the result of `recipe.build(params)`, or one with the same
            moments (with a schedule, gradient clipping, …).
        params: linen's `variables["params"]` (or all variables), or the `nnx.State` of the parameters.

    Raises:
        OptimizerError: arrays are missing, extra or of another shape; the message names all.
    """
    import jax
    import jax.numpy as jnp

    file = read_optimizer_file(Path(path))
    wanted = jax.eval_shape(tx.init, params)
    leaves, structure = jax.tree_util.tree_flatten_with_path(wanted)
    names = _Names(file)
    problems: list[str] = []
    values = []
    for where, leaf in leaves:
        name = names.find(where)
        array = None if name is None else file.arrays[name]
        if array is None:
            problems.append(f"nothing for {jax.tree_util.keystr(where)}")
        elif array.shape != leaf.shape:
            problems.append(f"{name} is {array.shape}, not {leaf.shape}")
        else:
            values.append(jnp.asarray(array))
    problems += [f"{name} has no place" for name in names.left()]
    if problems:
        shown = ", ".join(problems[:8])
        more = f" and {len(problems) - 8} more" if len(problems) > 8 else ""
        raise OptimizerError(
            f"{path} is not the state of this optimizer: {shown}{more}",
            "take the optimizer of optimizer_recipe(path).build(params)",
        )
    return jax.tree.unflatten(structure, values)


def save_optimizer(
    output: Path | str, opt_state: Any, *, like: Path | str, overwrite: bool = False
) -> Path:
    """Save an optax state after more training, so that `optimizer_to_torch` can convert it.

    Args:
        output: the file to write.
        opt_state: the state, in the structure returned by `load_optimizer`.
        like: the file that it was loaded from, whose options and names are kept.
        overwrite: whether an existing output may be replaced.

    Raises:
        OptimizerError: the state is not of that optimizer.
        OutputError: the output exists and may not be overwritten, or the disk refuses.
    """
    import jax

    file = read_optimizer_file(Path(like))
    names = _Names(file)
    arrays: dict[str, Array] = {}
    for where, leaf in jax.tree_util.tree_flatten_with_path(opt_state)[0]:
        for name in names.all(where):
            arrays[name] = np.asarray(leaf)
    ordered = {name: arrays[name] for name in file.arrays if name in arrays}
    write_optimizer(Path(output), with_arrays(file, ordered), overwrite=overwrite)
    return Path(output)


class _Names:
    """Names in the file for the leaves of an optax state."""

    def __init__(self, file: OptimizerFile) -> None:
        self._names = {_normal(name): name for name in file.arrays}
        self._counts = {
            name.removeprefix("count/"): name for name in file.arrays if name.startswith("count/")
        }
        self._values: Mapping[str, Array] = file.arrays
        self._used: set[str] = set()

    def find(self, where: Any) -> str | None:
        """Return the name of the array for a leaf, or None."""
        names = self.all(where)
        if len({int(self._values[name]) for name in names if name.startswith("count/")}) > 1:
            return None  # steps of several labels, and nothing that distinguishes them
        return names[0] if names else None

    def all(self, where: Any) -> list[str]:
        """Return all names for a leaf: one count may be shared by several labels."""
        location = field_of(where)
        if location is None:
            return []
        parents, field, path = location
        if field == "count":
            labels = [label for label in parents if label in self._counts] or list(self._counts)
            names = [self._counts[label] for label in labels]
        else:
            name = self._names.get(f"{field}/{normal(path)}")
            names = [] if name is None else [name]
        self._used |= set(names)
        return names

    def left(self) -> list[str]:
        """Return the names that no leaf requested; steps that optax does not count are ignored."""
        return [
            name
            for name in self._values
            if name not in self._used and not name.startswith("count/")
        ]


def _normal(name: str) -> str:
    field, _, path = name.partition("/")
    return f"{field}/{normal(path)}"
