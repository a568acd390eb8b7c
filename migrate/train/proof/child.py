"""The written program in a process of its own: its gradients and updates on recorded batches.

python -m migrate.train.proof.child FOLDER RECORDED OUTPUT
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np


def main() -> None:
    """Run the program in FOLDER on the batches in RECORDED, and write what it gives."""
    folder, recorded, output = map(Path, sys.argv[1:])
    sys.path.insert(0, str(folder))
    import jax
    from flax import linen

    def nothing_dropped(self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        return inputs

    loss, test_same, train = map(import_module, ("loss", "test_same", "train"))

    # With dropout the losses of two frameworks differ; that the loss runs with it is seen by its shapes.
    _require_shapes(loss, test_same, train)
    linen.Dropout.__call__ = nothing_dropped
    results: dict[str, Any] = {}
    with jax.default_matmul_precision("highest"):
        state = train.load()
        updates = list(test_same.updates())
        batch = loss.inputs_of(updates[0][0][0])
        key = (train.KEY,) if hasattr(train, "KEY") else ()
        _, gradients = train.value_and_grad(state.params, state.variables, batch, *key)
        for path, leaf in jax.tree_util.tree_leaves_with_path(gradients):
            results["gradient:" + "/".join(part.key for part in path)] = np.array(leaf)
        for number, (micro, _) in enumerate(updates):
            state, losses, rate = train.train_step(state, micro)
            results[f"losses:{number}"] = np.array([float(x) for x in losses])
            results[f"rate:{number}"] = np.float64(rate)
            if number in (0, len(updates) - 1):
                which = "last" if number else "first"
                tree = {"params": state.params, **state.variables}
                for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
                    results[f"{which}:" + "/".join(part.key for part in path)] = np.array(leaf)
        count = len(np.load(recorded)["rates"])
        for number in range(len(updates), count):
            results[f"rate:{number}"] = np.float64(train.learning_rate_of(number))
    arrays: Any = {name: np.asarray(value) for name, value in results.items()}
    np.savez(output, **arrays)


def _require_shapes(loss: Any, test_same: Any, train: Any) -> None:
    """Trace the loss with its own dropout: one that lacks its random numbers raises."""
    import jax

    state = train.load()
    micro, _ = next(iter(test_same.updates()))
    key = (train.KEY,) if hasattr(train, "KEY") else ()
    jax.eval_shape(loss.loss_of, state.params, state.variables, loss.inputs_of(micro[0]), *key)


if __name__ == "__main__":
    main()
