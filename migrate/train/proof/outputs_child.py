"""Search for the outputs of the script's model in the written program, and compare its functions.

python -m migrate.train.proof.outputs_child FOLDER ARRAYS OPTIONS OUTPUT

ARRAYS has the inputs of the step ("input:NAME"), and the outputs of the script's trained modules
("output:NUMBER"), which a frozen copy may have too; of each function what it was called with
("METHOD:input:NAME") and what it gave ("METHOD:output:NUMBER").
"""

from __future__ import annotations

import inspect
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from migrate.train.noise import jax_noise
from migrate.train.proof.dropouts import samples_dropped

# Relative L2 distance up to which an array of the program is an output of the script.
_LIMIT = 1e-4


def main() -> None:
    """Find each recorded output among the layers' values, and functions that give other values."""
    folder, arrays, output = Path(sys.argv[1]), np.load(sys.argv[2]), Path(sys.argv[4])
    options: dict[str, Any] = json.loads(sys.argv[3])
    sys.path.insert(0, str(folder))
    import jax
    from flax import linen

    step, train = getattr(import_module("loss"), options["step"]), import_module("train")
    linen.Dropout.__call__ = samples_dropped(linen.Dropout.__call__)
    with jax.default_matmul_precision("highest"):
        start = options.get("start")
        state = train.load(start) if start else train.load()
        # Dropout is off; other random numbers are those that the script drew here.
        with jax_noise():
            _, more = step.apply(
                {**state.variables, "params": state.params},
                **{n.partition(":")[2]: arrays[n] for n in arrays if n.startswith("input:")},
                **options["arguments"],
                rngs={name: jax.random.key(n) for n, name in enumerate(options["streams"])},
                mutable=True,
                capture_intermediates=lambda module, name: name != "setup",
            )
        values = []
        for path, leaf in jax.tree_util.tree_leaves_with_path(more["intermediates"]):
            keys = [getattr(key, "key", getattr(key, "idx", None)) for key in path]
            if None not in keys and keys[0] in options["trained"]:
                values.append((keys, np.asarray(leaf)))
        count = sum(name.startswith("output:") for name in arrays)
        places = [nearest(values, arrays[f"output:{number}"]) for number in range(count)]
        differs = [
            method
            for method in options["functions"]
            if not _is_same(method, step, state, options, arrays)
        ]
    output.write_text(json.dumps({"outputs": places, "differs": differs}))


def _is_same(method: str, step: Any, state: Any, options: dict[str, Any], arrays: Any) -> bool:
    """Whether a function of the program gives what the script's function gave."""
    import jax

    functions = type(step)
    if Path(sys.argv[1], "functions.py").exists() and not hasattr(functions, method):
        functions = getattr(import_module("functions"), options["class"])
    taken = inspect.signature(getattr(functions, method)).parameters
    start = f"{method}:input:"
    values, _ = functions(step.config).apply(
        {**state.variables, "params": state.params},
        **{name.removeprefix(start): arrays[name] for name in arrays if name.startswith(start)},
        **{name: value for name, value in options["arguments"].items() if name in taken},
        rngs={name: jax.random.key(n) for n, name in enumerate(options["streams"])},
        mutable=True,
        method=method,
    )
    ours = values if isinstance(values, tuple) else (values,)
    theirs = [name for name in arrays if name.startswith(f"{method}:output:")]
    return len(ours) == len(theirs) and all(
        _near(np.asarray(value), arrays[f"{method}:output:{number}"])
        for number, value in enumerate(ours)
    )


def _near(ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any]) -> bool:
    if ours.shape != theirs.shape:
        return False
    if theirs.dtype.kind != "f":
        return bool(np.array_equal(ours, theirs))
    # Differences of large numbers are near zero.
    return bool(np.allclose(ours, theirs, rtol=_LIMIT, atol=1e-5, equal_nan=True))


def nearest(
    values: list[tuple[list[Any], np.ndarray[Any, Any]]], wanted: np.ndarray[Any, Any]
) -> list[Any] | None:
    """Keys of the outermost value that is the wanted one; None if there is none."""
    size = float(np.linalg.norm(wanted.astype(np.float64)))
    same = [
        keys
        for keys, value in values
        if value.shape == wanted.shape
        and np.linalg.norm(value.astype(np.float64) - wanted) <= _LIMIT * size
    ]
    return min(same, key=len) if same else None


if __name__ == "__main__":
    main()
