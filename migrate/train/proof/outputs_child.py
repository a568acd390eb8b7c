"""Search for the outputs of the script's model in the written program, in a process of its own.

python -m migrate.train.proof.outputs_child FOLDER ARRAYS OPTIONS OUTPUT

ARRAYS has the inputs of the step ("input:NAME"), and the script's outputs ("output:NUMBER") of them.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

# Relative L2 distance up to which an array of the program is an output of the script.
_LIMIT = 1e-4


def main() -> None:
    """Find each recorded output among the values that the program's layers give."""
    folder, arrays, output = Path(sys.argv[1]), np.load(sys.argv[2]), Path(sys.argv[4])
    options: dict[str, Any] = json.loads(sys.argv[3])
    sys.path.insert(0, str(folder))
    import jax
    from flax import linen

    def nothing_dropped(self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        return inputs

    loss, train = import_module("loss"), import_module("train")
    linen.Dropout.__call__ = nothing_dropped
    with jax.default_matmul_precision("highest"):
        state = train.load()
        _, more = loss.STEP.apply(
            {**state.variables, "params": state.params},
            **{
                name.partition(":")[2]: arrays[name] for name in arrays if name.startswith("input:")
            },
            **options["arguments"],
            rngs={name: jax.random.key(n) for n, name in enumerate(options["streams"])},
            mutable=True,
            capture_intermediates=lambda module, name: name != "setup",
        )
    values = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(more["intermediates"]):
        keys = [getattr(key, "key", getattr(key, "idx", None)) for key in path]
        if None not in keys:
            values.append((keys, np.asarray(leaf)))
    count = sum(name.startswith("output:") for name in arrays)
    places = [nearest(values, arrays[f"output:{number}"]) for number in range(count)]
    output.write_text(json.dumps(places))


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
